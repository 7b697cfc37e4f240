"""Losses and their gradients as PyTorch and Keras 3 compute them in float64.

    KERAS_BACKEND=torch python3 tests/train/make_losses.py > tests/train/golden_losses.h

Needs torch, keras and numpy; also writes tests/train/class_weights_4.npy.
"""

import os

import keras
import numpy as np
import torch
import torch.nn.functional as F

torch.manual_seed(11)
torch.set_default_dtype(torch.float64)
keras.config.set_floatx("float64")
HERE = os.path.dirname(os.path.abspath(__file__))
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 1.25])
WEIGHTS_FILE = "tests/train/class_weights_4.npy"
np.save(os.path.join(HERE, "class_weights_4.npy"), WEIGHTS.numpy())


def numbers(values):
    if values is None:
        return "NULL"
    flat = [repr(float(v)) for v in values.detach().flatten()]
    return "(const double[]){" + ", ".join(flat) + "}"


def ints(values):
    return "{" + ", ".join(str(int(v)) for v in values) + "}"


def row(text, x, labels, loss, after="NONE", batch=0, samples=None, whole=None, near=1e-12,
        near_float=3e-5):
    """`loss` makes one number of the output and the labels. `whole`: the labels' shape in the data
    where it is not that of `labels`. `near`, `near_float`: the tolerances in double and float."""
    x = x.clone().requires_grad_()
    y = {"NONE": lambda: x, "SIGMOID": lambda: torch.sigmoid(x),
         "SOFTMAX": lambda: x.softmax(1), "LOG_SOFTMAX": lambda: x.log_softmax(1)}[after]()
    value = loss(y, labels)
    value.backward()
    kind = "INT64" if labels.dtype == torch.int64 else "DOUBLE"
    shape = whole or labels.shape
    print(f"    {{.text = \"{text}\",")
    print(f"     .after = AFTER_{after}, .batch = {batch}, .near = {near}, .near_float = {near_float},")
    print(f"     .rank = {x.dim()}, .dims = {ints(x.shape)}, .x = {numbers(x)},")
    print(f"     .type = MGPU_{kind}, .label_rank = {len(shape)}, .label_dims = {ints(shape)},")
    print(f"     .labels = {numbers(labels)}, .weights = {numbers(samples)},")
    print(f"     .loss = {value.item()!r}, .dx = {numbers(x.grad)}}},")


def ce(**options):
    return lambda y, t: F.cross_entropy(y, t, **options)


def first(loss):
    """The classes of y stand last."""
    return lambda y, t: loss(y.movedim(-1, 1), t)


def weighted(each, w, counts=None):
    """Mean by sample weight of a loss that comes element by element."""
    def loss(y, t):
        l = each(y, t)
        spread = w.reshape([-1] + [1] * (l.dim() - 1)).expand(l.shape)
        c = spread if counts is None else spread * counts(t)
        return (l * spread).sum() / c.sum()
    return loss


# Keras takes means in float32.
NEAR = {"near": 1e-6}


def keras_loss(function, **options):
    return lambda y, t: function(t, y, **options).mean()


def labels_of(shape, classes=4, ignored=None):
    t = torch.randint(0, classes, shape)
    if ignored is not None:
        t.view(-1)[1::3] = ignored
    return t


def distribution(*shape):
    return torch.rand(shape).softmax(1)


print("/* Losses and gradients of PyTorch and Keras. Made by tests/train/make_losses.py. */")
print("static const struct golden golden[] = {")
n4, n = torch.randn(5, 4) * 2, (5,)
image = torch.randn(2, 4, 3, 5)
row("cross_entropy", n4, labels_of(n), ce())
row("CrossEntropyLoss", n4, labels_of(n), ce())
row("cross_entropy", n4, labels_of(n), ce(), whole=(5, 1))
row("cross_entropy", n4, labels_of(n, ignored=-100), ce())
row("cross_entropy,ignore_index=2", n4, labels_of(n, ignored=2), ce(ignore_index=2))
row("cross_entropy,label_smoothing=0.1", n4, labels_of(n), ce(label_smoothing=0.1))
row(f"cross_entropy,class_weights={WEIGHTS_FILE}", n4, labels_of(n), ce(weight=WEIGHTS))
row(f"cross_entropy,ignore_index=255,label_smoothing=0.2,class_weights={WEIGHTS_FILE}", image,
    labels_of((2, 3, 5), ignored=255), ce(weight=WEIGHTS, ignore_index=255, label_smoothing=0.2))
row("cross_entropy", n4, distribution(5, 4), ce())
row(f"cross_entropy,label_smoothing=0.3,class_weights={WEIGHTS_FILE}", n4, distribution(5, 4),
    ce(weight=WEIGHTS, label_smoothing=0.3))
row("cross_entropy", n4, F.one_hot(labels_of(n), 4), lambda y, t: F.cross_entropy(y, t.double()))
row("cross_entropy,axis=1", image, distribution(2, 4, 3, 5), ce())
row("cross_entropy,weight=0.25", n4, labels_of(n), lambda y, t: 0.25 * F.cross_entropy(y, t))
row("cross_entropy,reduction=sum", n4, labels_of(n, ignored=-100), ce(reduction="sum"))
row("cross_entropy", torch.randn(3, 6, 4), labels_of((3, 6)), first(ce()))
row("cross_entropy,axis=-1", torch.randn(3, 4, 4), labels_of((3, 4)), first(ce()))
row("cross_entropy,axis=1", torch.randn(3, 4, 4), labels_of((3, 4)), ce())
row("cross_entropy", torch.randn(6, 3, 4), labels_of((6, 3)), first(ce()), batch=1)
w5 = torch.tensor([0.5, 0.0, 2.0, 1.0, 0.25])
row(f"cross_entropy,class_weights={WEIGHTS_FILE}", n4, labels_of(n, ignored=-100),
    weighted(ce(weight=WEIGHTS, reduction="none"), w5,
             lambda t: torch.where(t >= 0, WEIGHTS[t.clamp(0)], 0.0)), samples=w5)
w2 = torch.tensor([3.0, 0.5])
row("cross_entropy", image, labels_of((2, 3, 5)), weighted(ce(reduction="none"), w2), samples=w2)

entropy = keras.losses.categorical_crossentropy
far = torch.tensor([[40.0, 30, -20], [1, 2, 3], [-5, 0, 5]])
row("cross_entropy", far, torch.tensor([1, 0, 2]), lambda y, t: F.cross_entropy(y.log(), t),
    after="SOFTMAX")
row("sparse_categorical_crossentropy", far, torch.tensor([1, 0, 2]),
    lambda y, t: F.cross_entropy(y.log(), t), after="SOFTMAX")
row("cross_entropy", n4, labels_of(n), lambda y, t: F.nll_loss(y, t), after="LOG_SOFTMAX")
row("nll", n4, labels_of(n), lambda y, t: F.nll_loss(y, t), after="LOG_SOFTMAX")
row(f"nll,ignore_index=0,class_weights={WEIGHTS_FILE}", image, labels_of((2, 3, 5)),
    lambda y, t: F.nll_loss(y, t, weight=WEIGHTS, ignore_index=0), after="LOG_SOFTMAX")
row("cross_entropy,from_logits=1", n4, labels_of(n), ce(), after="SOFTMAX")
p4 = torch.rand(5, 4) + 0.1
row("categorical_crossentropy", p4, distribution(5, 4), keras_loss(entropy))
row("cross_entropy,from_logits=0", p4, distribution(5, 4), keras_loss(entropy))
row("sparse_categorical_crossentropy", p4 / p4.sum(1, keepdim=True), labels_of(n),
    lambda y, t: -y.gather(1, t[:, None]).clamp(1e-7, 1 - 1e-7).log().mean())
row("CategoricalCrossentropy,from_logits=1", n4, distribution(5, 4),
    keras_loss(entropy, from_logits=True))

a, b = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
w3 = torch.tensor([1.0, 0.0, 3.0])
row("mse", a, b, F.mse_loss)
row("MeanSquaredError", a, b, F.mse_loss, whole=(3, 8))
row("mse", a, b, weighted(lambda y, t: (y - t) ** 2, w3), samples=w3)
row("mse", a, labels_of((3, 2, 4)), F.mse_loss)
row("mse,reduction=sum,weight=2", a, b, lambda y, t: 2 * F.mse_loss(y, t, reduction="sum"))
row("mse,reduction=batchmean", a, b, lambda y, t: F.mse_loss(y, t, reduction="sum") / 3)
row("mae", a, b, F.l1_loss)
row("l1", a[:, 0, 0], b[:, 0, 0], F.l1_loss, whole=(3, 1))
row("huber", 2 * a, b, F.huber_loss)
row("huber,delta=0.5", 2 * a, b, lambda y, t: F.huber_loss(y, t, delta=0.5))
t01 = labels_of((3, 2, 4), 2)
row("bce_logits", 9 * a, t01.double(), F.binary_cross_entropy_with_logits)
row("bce_with_logits", a, torch.rand(3, 2, 4), F.binary_cross_entropy_with_logits)
row("bce", 9 * a, t01, lambda y, t: F.binary_cross_entropy(y, t.double()), after="SIGMOID",
    near=1e-10)
row("bce,from_logits=1", a, t01, lambda y, t: F.binary_cross_entropy_with_logits(y, t.double()))
row("bce_logits", a, t01, weighted(lambda y, t: F.binary_cross_entropy_with_logits(
    y, t.double(), reduction="none"), w3), samples=w3)
clipped = torch.tensor([[0.0, 1.0, 1e-9], [0.25, 1 - 1e-9, 0.75]])
row("bce", clipped, torch.tensor([[1.0, 0, 0], [1, 1, 0]]),
    keras_loss(keras.losses.binary_crossentropy), near=1e-6, near_float=1e-2)
row("binary_crossentropy,label_smoothing=0.2", torch.rand(3, 2), labels_of((3, 2), 2).double(),
    keras_loss(keras.losses.binary_crossentropy, label_smoothing=0.2), **NEAR)
row("hinge", 2 * a, t01.double(), keras_loss(keras.losses.hinge), **NEAR)
row("hinge", 2 * a, 2 * t01.double() - 1, keras_loss(keras.losses.hinge), **NEAR)
target = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [1.0, 0, 0, 0]])
row("kl", torch.randn(3, 4).log_softmax(1), target, lambda y, t: F.kl_div(y, t, reduction="mean"))
row("KLDivLoss,reduction=batchmean", torch.randn(3, 4).log_softmax(1), target,
    lambda y, t: F.kl_div(y, t, reduction="batchmean"))
row("kl,from_logits=1", torch.randn(3, 4), target,
    lambda y, t: F.kl_div(y.log_softmax(1), t, reduction="mean"))
row("kl_divergence", torch.randn(3, 4), target, keras_loss(keras.losses.kl_divergence),
    after="SOFTMAX")
print("    {.text = NULL},\n};")
