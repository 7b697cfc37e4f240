#!/usr/bin/env python3
"""make_named.py FOLDER {keras,tf_keras} [NAME...]: models that Keras itself names, exported, and files of two of each that one program made.

FOLDER/NAME: model.onnx, exported with one set of weights, and want.onnx, the same with another; first.* and second.*: that
other set saved from the model that was exported and from a second one of the same code, whose layers Keras counted on. Run it
with a Python that has Keras 3 on TensorFlow, or tf_keras, and tf2onnx."""
import importlib, os, sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_USE_LEGACY_KERAS", str(int(sys.argv[2] == "tf_keras")))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
k = importlib.import_module(sys.argv[2])
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


def given():
    return S([I((3,)), L.Dense(3), L.Normalization(mean=[1, 2, 3], variance=[1, 4, 9]), L.Dense(2)])


def inverted():
    n = L.Normalization(invert=True)
    n.adapt(np.float32([[1, 2, 3], [2, 6, 11]]))
    return S([I((3,)), L.Dense(3), n, L.Dense(2)])


class Block(L.Layer):
    """Its attributes have other names than its layers."""

    def __init__(self):
        super().__init__()
        self.attend, self.scale = L.MultiHeadAttention(2, 2), L.LayerNormalization()

    def call(self, x):
        return self.scale(self.attend(x, x))


def block():
    i = I((2, 4))
    return k.Model(i, L.Dense(2)(Block()(Block()(i))))


class Scale(L.Layer):
    """Multiplies, but is no Dense."""

    def build(self, shape):
        self.g = self.add_weight(name="g", shape=(3,), initializer="ones")
        self.w = self.add_weight(name="w", shape=(3, 3))

    def call(self, x):
        return k.ops.matmul(x, self.w) * self.g


def plain_attention():
    i = I((2, 4))
    return k.Model(i, L.Dense(2)(L.MultiHeadAttention(2, 2, use_bias=False)(i, i)))


# Of tf_keras, whose stores have no names of layers.
OLD_MODELS = {
    "old_attention": plain_attention,
    "old_back": lambda: S([I((4, 3)), L.Conv1DTranspose(2, 2), L.Dense(2)]),
    "old_cells": lambda: S([I((4, 3)), L.RNN(L.GRUCell(3), return_sequences=True), L.RNN([L.GRUCell(3), L.GRUCell(3)]), L.Dense(2)]),
    "old_masked": lambda: S([I((4,), dtype="int32"), L.Embedding(5, 3, mask_zero=True), L.LSTM(2, return_sequences=True),
                             L.Bidirectional(L.GRU(2, return_sequences=True)), L.GRU(2, reset_after=False), L.Dense(2)]),
    "old_block": block,
    "old_layers": lambda: S([I((3, 3, 4)), L.GroupNormalization(2), L.Reshape((1, 3, 3, 4)), L.ConvLSTM2D(2, 2), L.Reshape((4, 2)),
                             L.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"), L.RNN(L.LSTMCell(2)), L.SpectralNormalization(L.Dense(2))]),
}

def frames():
    frame = S([I((4, 4, 1)), L.Conv2D(2, 2), L.GlobalAveragePooling2D()], name="frame")
    return S([I((2, 4, 4, 1)), L.TimeDistributed(frame), L.LSTM(3), L.Dense(2)])


MODELS = {
    "block": block,
    "masked_gru": lambda: S([I((4,), dtype="int32"), L.Embedding(5, 3, mask_zero=True), L.GRU(2, return_sequences=True), L.GRU(2, reset_after=False),
                             L.Dense(2)]),
    "own": lambda: S([I((3,)), L.Dense(3), Scale(), L.Dense(2)]),
    "frames": frames,
    "given": given,
    "inverted": inverted,
    "one_channel": lambda: S([I((5, 5, 1)), L.SeparableConv2D(2, 2), L.Conv2D(1, 2), L.DepthwiseConv2D(2)]),
    "one_channel_1d": lambda: S([I((6, 1)), L.SeparableConv1D(2, 2, depth_multiplier=2), L.Conv1D(1, 1), L.DepthwiseConv1D(2)]),
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
        if w.name.split(":")[0] not in ("mean", "variance", "count"):
            w.assign((rng.integers(1, 512, w.shape) / 256).astype(np.dtype(getattr(w.dtype, "as_numpy_dtype", w.dtype))))


def export(model, path):
    if k.__name__ == "keras":
        model(model.inputs if len(model.inputs) > 1 else model.inputs[0])
        model.export(path, format="onnx", verbose=False)
    else:
        import tf2onnx

        tf2onnx.convert.from_keras(model, opset=17, output_path=path)


def states(folder):
    """Files of a model that was trained for two updates: an optimizer with three arrays a weight, none, or a schedule; of tf_keras."""
    os.makedirs(folder, exist_ok=True)
    o, new = k.optimizers, k.__name__ == "keras"
    three = (("rmsprop", o.RMSprop(0.01, momentum=0.5, centered=True)), ("centered", o.RMSprop(0.01, centered=True)), ("sgd", o.SGD(0.01)),
             ("schedule", o.Adam(o.schedules.ExponentialDecay(0.01, 1, 0.9))))
    for name, optimizer in three if new else (("tf_adam", o.Adam(0.01)), ("tf_sgd", o.SGD(0.01))):
        k.backend.clear_session()
        model = S([I((2,)), L.Dense(3), L.Dense(2)])
        fill(model, 1)
        model.compile(optimizer, "mse")
        model.fit(np.eye(2), np.eye(2) + 1, batch_size=1, epochs=1, shuffle=False, verbose=0)
        model.save(os.path.join(folder, name + ".keras"))
    if new:
        export(model, os.path.join(folder, "model.onnx"))


def main():
    if sys.argv[3:] == ["state"]:
        return states(os.path.join(sys.argv[1], "state"))
    for name, make in (MODELS if k.__name__ == "keras" else OLD_MODELS).items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        at = lambda f: os.path.join(folder, f)
        k.backend.clear_session()
        first, second = make(), make()
        for model, seed, path in ((first, 1, "model.onnx"), (first, 2, "want.onnx")):
            fill(model, seed)
            export(model, at(path))
        fill(second, 2)
        for model, stem in ((first, "first"), (second, "second")):
            model.save_weights(at(stem + ".weights.h5"))
            model.save(at(stem + ".keras"))
            model.save(at(stem + ".h5"))


if __name__ == "__main__":
    main()
