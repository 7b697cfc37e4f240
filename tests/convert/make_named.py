#!/usr/bin/env python3
"""make_named.py FOLDER: models that Keras 3 itself names, exported, and files of two of each that one program made.

FOLDER/NAME: model.onnx, exported with one set of weights, and want.onnx, the same with another; first.* and second.*: that
other set saved from the model that was exported and from a second one of the same code, whose layers Keras counted on. Run it
with a Python that has Keras 3 on TensorFlow and tf2onnx."""
import os, sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras as k
import numpy as np

L, I, S = k.layers, k.Input, k.Sequential


def towers():
    a, b = I((3,), name="a"), I((3,), name="b")
    x, y = L.Dense(3, "relu")(a), L.Dense(3, "relu")(b)
    x, y = L.Dense(3)(x), L.Dense(3)(y)
    return k.Model([a, b], L.Dense(2)(L.Concatenate()([x, y])))


def attention():
    a, b = I((4, 3)), I((4, 3))
    x = L.Concatenate()([L.Attention(use_scale=True)([a, b]), L.AdditiveAttention()([a, b])])
    return k.Model([a, b], L.Dense(2)(L.GlobalAveragePooling1D()(x)))


def reversible():
    i, e = I((4,), dtype="int32"), L.ReversibleEmbedding(8, 4)
    return k.Model(i, e(L.Dense(4)(e(i)), reverse=True))


def depths():
    inner = S([I((3,)), L.Dense(3), L.Dense(3)])
    i, outer = I((3,)), S([I((3,)), inner, L.Dense(3)])
    return k.Model(i, L.Dense(3)(inner(outer(i))))


def normalization():
    n = L.Normalization()
    n.adapt(np.float32([[1, 2, 3], [2, 6, 11]]))
    return S([I((3,)), L.Dense(3), n, L.Dense(2)])


MODELS = {
    "reversible": reversible,
    "depths": depths,
    "normalization": normalization,
    "spectral": lambda: S([I((3,)), L.SpectralNormalization(L.Dense(2)), L.Dense(2)]),
    "towers": towers,
    "attention": attention,
    "separable": lambda: S([I((5, 5, 2)), L.SeparableConv2D(2, 2), L.SeparableConv2D(2, 2), L.DepthwiseConv2D(2), L.DepthwiseConv2D(2),
                            L.GlobalAveragePooling2D()]),
    "transposed": lambda: S([I((3, 3, 2)), L.Conv2DTranspose(2, 2), L.Conv2D(2, 2), L.Conv2DTranspose(2, 2), L.Conv2D(2, 2)]),
    "mixed": lambda: S([I((3,)), L.Dense(3, "relu", dtype="mixed_float16"), L.Dense(3, dtype="mixed_float16"), L.Dense(2, dtype="float32")]),
    "masked": lambda: S([I((4,), dtype="int32"), L.Embedding(5, 3, mask_zero=True), L.LSTM(3), L.Dense(2)]),
    "cells": lambda: S([I((4, 3)), L.RNN([L.LSTMCell(3), L.LSTMCell(3)]), L.Dense(2)]),
    "two_ways": lambda: S([I((4, 3)), L.Bidirectional(L.LSTM(3, return_sequences=True), backward_layer=L.LSTM(
        3, return_sequences=True, go_backwards=True, name="back")), L.Bidirectional(L.GRU(3)), L.Dense(2)]),
    "no_bias": lambda: S([I((4, 3)), L.GRU(3, use_bias=False, return_sequences=True), L.LSTM(3, use_bias=False), L.Dense(2)]),
    "conv_lstm": lambda: S([I((2, 4, 4, 1)), L.ConvLSTM2D(2, 2), L.Flatten(), L.Dense(2)]),
    "each": lambda: S([I((3, 4, 4, 1)), L.TimeDistributed(L.Conv2D(2, 2)), L.TimeDistributed(L.Flatten()), L.TimeDistributed(L.Dense(3)), L.LSTM(3),
                       L.Dense(2)]),
}


def fill(model, seed):
    """Numbers that float16 has, so that mixed precision rounds none; what was adapted stays."""
    rng = np.random.default_rng(seed)
    for w in model.weights:
        if w.name not in ("mean", "variance", "count"):
            w.assign((rng.integers(1, 512, w.shape) / 256).astype(w.dtype))


def main():
    for name, make in MODELS.items():
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        at = lambda f: os.path.join(folder, f)
        k.backend.clear_session()
        first, second = make(), make()
        for model, seed, path in ((first, 1, "model.onnx"), (first, 2, "want.onnx")):
            fill(model, seed)
            model(first.inputs if len(first.inputs) > 1 else first.inputs[0])
            model.export(at(path), format="onnx", verbose=False)
        fill(second, 2)
        for model, stem in ((first, "first"), (second, "second")):
            model.save_weights(at(stem + ".weights.h5"))
            model.save(at(stem + ".keras"))
            model.save(at(stem + ".h5"))


if __name__ == "__main__":
    main()
