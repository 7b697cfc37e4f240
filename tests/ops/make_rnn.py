"""What ONNX Runtime and PyTorch answer for recurrent layers, for tests/ops/test_rnn.c.

    python3 tests/ops/make_rnn.py | clang-format > tests/ops/golden_rnn.h

Inputs are not stored: element i of tensor number `salt` is number(salt, i), in C and here alike.
"""
import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper

from golden import begin

T, N, I, H = 4, 3, 2, 3
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
NAMES = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
LENGTHS = np.array([4, 2, 3], np.int32)
ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
BETA = {"Affine", "ScaledTanh", "HardSigmoid"}


def number(salt, shape):
    i = np.arange(int(np.prod(shape)))
    return (((i * 37 + salt * 11) % 97 - 48) / 64).reshape(shape)


def tensors(kind, d, optional):
    g = GATES[kind]
    shapes = {"X": (T, N, I), "W": (d, g * H, I), "R": (d, g * H, H), "B": (d, 2 * g * H),
              "initial_h": (d, N, H), "initial_c": (d, N, H), "P": (d, 3 * H)}
    out = {n: number(NAMES.index(n), s) for n, s in shapes.items()
           if n in ("X", "W", "R") or n in optional}
    if "sequence_lens" in optional:
        out["sequence_lens"] = LENGTHS
    return out


def array(name, values):
    digits = "%.9g" if np.asarray(values).dtype == np.float32 else "%.15g"
    text = ", ".join(digits % v for v in np.asarray(values, float).ravel())
    return "        .%s = {%s},\n" % (name, text)


def attributes(kind, direction, acts, more):
    lines = "        .attrs = {.kind = MGPU_%s, .direction = MGPU_RNN_%s, .hidden = %d" % (
        kind, direction.upper(), H)
    lines += ", .activation = {%s}" % ", ".join("MGPU_ACT_" + snake(a[0]) for a in acts)
    lines += ", .alpha = {%s}" % ", ".join("%g" % a[1] for a in acts)
    lines += ", .beta = {%s}" % ", ".join("%g" % a[2] for a in acts)
    for key, value in more.items():
        lines += ", .%s = %s" % (key, ("%g" % value) if key == "clip" else "true")
    return lines + "},\n"


def snake(name):
    return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(name)).upper()


def optional_bits(optional):
    return "        .optional = %d,\n" % sum(1 << NAMES.index(n) for n in optional)


# ---- ONNX Runtime: every option, forward ------------------------------------------------------


def run_onnx(kind, direction, acts, more, values):
    d = 2 if direction == "bidirectional" else 1
    per = {"RNN": 1, "GRU": 2, "LSTM": 3}[kind]
    used = [a for k in range(d) for a in acts[3 * k:3 * k + per]]
    attrs = dict(hidden_size=H, direction=direction, activations=[a[0] for a in used],
                 activation_alpha=[float(a[1]) for a in used if a[0] in ALPHA],
                 activation_beta=[float(a[2]) for a in used if a[0] in BETA])
    attrs.update({k: v if k == "clip" else int(v) for k, v in more.items()})
    attrs = {k: v for k, v in attrs.items() if v != []}
    names = NAMES if kind == "LSTM" else NAMES[:6]
    outputs = ["Y", "Y_h", "Y_c"][:3 if kind == "LSTM" else 2]
    feeds = {n: v if n == "sequence_lens" else v.astype(np.float32) for n, v in values.items()}
    node = helper.make_node(kind, [n if n in feeds else "" for n in names], outputs, **attrs)
    kinds = {n: TensorProto.INT32 if n == "sequence_lens" else TensorProto.FLOAT for n in feeds}
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, kinds[n], v.shape) for n, v in feeds.items()],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])
    return dict(zip(["y", "y_h", "y_c"], session.run(None, feeds)))


def default(kind):
    f, g, h = {"RNN": ("Tanh", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh", "Tanh"),
               "LSTM": ("Sigmoid", "Tanh", "Tanh")}[kind]
    return [(f, 0, 0), (g, 0, 0), (h, 0, 0)] * 2


def onnx_case(name, kind, direction, optional=(), acts=None, **more):
    acts = acts or default(kind)
    values = tensors(kind, 2 if direction == "bidirectional" else 1, optional)
    print('    {\n        .name = "%s",' % name)
    print(attributes(kind, direction, acts, more) + optional_bits(optional), end="")
    for key, value in run_onnx(kind, direction, acts, more, values).items():
        print(array(key, value), end="")
    print("    },")


def onnx_cases():
    some = ("B", "sequence_lens", "initial_h")
    every = some + ("initial_c", "P")
    onnx_case("RNN", "RNN", "forward")
    onnx_case("RNN bidirectional, lengths", "RNN", "bidirectional", some,
              [("Relu", 0, 0), ("Tanh", 0, 0), ("Tanh", 0, 0), ("Tanh", 0, 0), ("Tanh", 0, 0),
               ("Tanh", 0, 0)])
    for act in [("Affine", 0.5, 0.25), ("LeakyRelu", 0.25, 0), ("ThresholdedRelu", 0.25, 0),
                ("ScaledTanh", 0.5, 1.5), ("HardSigmoid", 0.25, 0.5), ("Elu", 0.5, 0),
                ("Softsign", 0, 0), ("Softplus", 0, 0), ("Sigmoid", 0, 0)]:
        onnx_case("RNN with " + act[0], "RNN", "forward", ("B",), [act] * 6)
    onnx_case("RNN with clip", "RNN", "reverse", ("B",), clip=0.5)
    onnx_case("GRU", "GRU", "forward", ("B",))
    onnx_case("GRU reverse, lengths", "GRU", "reverse", some)
    onnx_case("GRU linear before reset", "GRU", "bidirectional", some, linear_before_reset=True)
    onnx_case("GRU with clip and other activations", "GRU", "bidirectional", some,
              [("HardSigmoid", 0.25, 0.5), ("Softsign", 0, 0), ("Tanh", 0, 0),
               ("Sigmoid", 0, 0), ("ScaledTanh", 0.5, 1.5), ("Tanh", 0, 0)], clip=0.75)
    onnx_case("LSTM", "LSTM", "forward", ("B",))
    onnx_case("LSTM with every input", "LSTM", "bidirectional", every)
    onnx_case("LSTM with coupled gates", "LSTM", "reverse", every, input_forget=True)
    onnx_case("LSTM with clip and other activations", "LSTM", "bidirectional", every,
              [("HardSigmoid", 0.25, 0.5), ("Softsign", 0, 0), ("Affine", 0.5, 0.25),
               ("Sigmoid", 0, 0), ("ScaledTanh", 0.5, 1.5), ("Elu", 0.5, 0)], clip=0.5)


# ---- PyTorch: gradients, in double --------------------------------------------------------------

# Where PyTorch's gates stand in ONNX's order: GRU z r h of r z n, LSTM i o f c of i f g o.
ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}


def regate(kind, a, to_torch):
    order = ORDER[kind]
    blocks = np.split(a, len(order), axis=0)
    back = [order.index(k) for k in range(len(order))]
    return np.concatenate([blocks[k] for k in (back if to_torch else order)], axis=0)


def torch_layer(kind, d, values):
    layer = getattr(torch.nn, kind)(I, H, bidirectional=d == 2).double()
    half = GATES[kind] * H
    for k in range(d):
        suffix = "_l0" + ("_reverse" if k else "")
        parts = {"weight_ih": values["W"][k], "weight_hh": values["R"][k],
                 "bias_ih": values["B"][k][:half], "bias_hh": values["B"][k][half:]}
        for key, value in parts.items():
            getattr(layer, key + suffix).data = torch.tensor(regate(kind, value, True))
    return layer


def torch_gradients(kind, d, layer):
    def of(key, k):
        name = key + "_l0" + ("_reverse" if k else "")
        return regate(kind, getattr(layer, name).grad.numpy(), False)
    return {"dw": np.stack([of("weight_ih", k) for k in range(d)]),
            "dr": np.stack([of("weight_hh", k) for k in range(d)]),
            "db": np.stack([np.concatenate([of("bias_ih", k), of("bias_hh", k)])
                            for k in range(d)])}


def torch_case(name, kind, direction, lengths):
    d = 2 if direction == "bidirectional" else 1
    optional = ("B", "initial_h") + (("initial_c",) if kind == "LSTM" else ())
    optional += ("sequence_lens",) if lengths else ()
    values = tensors(kind, d, optional)
    layer = torch_layer(kind, d, values)
    leaf = {n: torch.tensor(values[n], requires_grad=True)
            for n in ("X", "initial_h", "initial_c") if n in values}
    x = leaf["X"]
    if lengths:
        x = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS).long(),
                                                    enforce_sorted=False)
    state = (leaf["initial_h"], leaf["initial_c"]) if kind == "LSTM" else leaf["initial_h"]
    y, last = layer(x, state)
    if lengths:
        y = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=T)[0]
    y = y.reshape(T, N, d, H).permute(0, 2, 1, 3)
    last = last if kind == "LSTM" else (last,)
    outputs = dict(zip(["y", "y_h", "y_c"], (y,) + last))
    loss = sum((torch.tensor(number(20 + k, tuple(v.shape))) * v).sum()
               for k, v in enumerate(outputs.values()))
    loss.backward()
    results = {k: v.detach().numpy() for k, v in outputs.items()}
    results["dx"] = leaf["X"].grad.numpy()
    results.update(torch_gradients(kind, d, layer))
    results["dh"] = leaf["initial_h"].grad.numpy()
    if kind == "LSTM":
        results["dc"] = leaf["initial_c"].grad.numpy()
    more = {"linear_before_reset": True} if kind == "GRU" else {}
    print('    {\n        .name = "%s",' % name)
    print(attributes(kind, direction, default(kind), more) + optional_bits(optional), end="")
    for key, value in results.items():
        print(array(key, value), end="")
    print("    },")


def main():
    begin("make_rnn.py", "Outputs and gradients for tests/ops/test_rnn.c.")
    print("static const struct golden onnx_golden[] = {")
    onnx_cases()
    print("};\n\nstatic const struct golden torch_golden[] = {")
    torch_case("PyTorch RNN", "RNN", "forward", False)
    torch_case("PyTorch RNN, lengths", "RNN", "bidirectional", True)
    torch_case("PyTorch GRU", "GRU", "forward", False)
    torch_case("PyTorch GRU, lengths", "GRU", "bidirectional", True)
    torch_case("PyTorch LSTM", "LSTM", "forward", False)
    torch_case("PyTorch LSTM, lengths", "LSTM", "bidirectional", True)
    print("};")


main()
