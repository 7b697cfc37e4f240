"""Exports the network of `./dev demo`: a small CNN for Fashion-MNIST, freshly initialised, as PyTorch's TorchScript exporter writes it.

    python make_fmnist.py fmnist.onnx        (torch 2.13)
"""
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))
torch.onnx.export(model, (torch.zeros(2, 1, 28, 28),), sys.argv[1], dynamo=False, opset_version=17, input_names=["input"],
                  output_names=["logits"], dynamic_axes={"input": {0: "N"}, "logits": {0: "N"}})
