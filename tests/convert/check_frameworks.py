#!/usr/bin/env python3
"""check_frameworks.py BUILD CHECKPOINTS CASES {keras3,tf_keras,torch,h5py}: what we write, loaded by those who would use it.

CHECKPOINTS: folders with model.onnx, forward.h5 and an architecture (keras3.keras, tfkeras2.15.model.h5); CASES: tests/cases. Each
line: what was written, by which call it was loaded, and the largest difference of the predictions from ONNX Runtime's (h5py: from
the arrays themselves). Run it with a Python that has the framework; frameworks.txt holds the last results."""
import os, subprocess, sys, tempfile
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
LIMIT = 2e-5
worst = 0.0


def run(build, tool, *args):
    r = subprocess.run([os.path.join(build, tool), *args], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return r.stdout.strip()


def report(what, call, ours, want):
    global worst
    difference = max(float(np.abs(np.asarray(a, np.float64) - b).max()) for a, b in zip(ours, want))
    worst = max(worst, difference)
    print("%-44s %-40s %.1e %s" % (what, call, difference, "" if difference <= LIMIT else "FAILED"))


def reference(model, inputs):
    """The model's outputs, by ONNX Runtime or, where that is not installed, by mgpu-train's own --predict."""
    import onnxruntime
    s = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return s.run(None, inputs)


def sets(path, group):
    import h5py
    with h5py.File(path) as f:
        text = lambda n: n.decode() if isinstance(n, bytes) else n
        return {text(f[group][k].attrs["name"]): f[group][k][()] for k in f[group]}


def trained(build, folder, temp):
    """A few steps on the model's own outputs, moved: all weights change."""
    import h5py
    data = os.path.join(temp, "data.h5")
    inputs, forward = sets(os.path.join(folder, "forward.h5"), "inputs"), sets(os.path.join(folder, "forward.h5"), "forward")
    with h5py.File(data, "w") as f:
        for k, v in inputs.items():
            f[k] = v
        f["label"] = list(forward.values())[0] + 0.5
    out = {e: os.path.join(temp, "trained" + e) for e in (".onnx", ".h5", ".weights.h5", ".safetensors")}
    like = os.path.join(folder, "keras3.weights.h5")
    args = ["--data", data, "--loss", "mse", "--batch", "4", "--epochs", "2", "--optimizer", "adam,lr=0.01", "--quiet"]
    for e in (".onnx", ".safetensors", ".weights.h5"):
        args += ["--save", out[e]]
    if os.path.basename(folder) == "nested":
        args += ["--like", like]
    run(build, "mgpu-train", os.path.join(folder, "model.onnx"), *args)
    run(build, "mgpu-convert", out[".onnx"], out[".h5"], *(
        ["--like", os.path.join(folder, "tfkeras2.15.legacy.h5")] if os.path.basename(folder) == "nested" else []))
    return out, inputs


def order(model, inputs):
    names = [t.name.split(":")[0] for t in model.inputs]
    values = [next(v for k, v in inputs.items() if k.split(":")[0] == n) for n in names]
    return values if len(values) > 1 else values[0]


def blank(model):
    model.set_weights([np.full_like(w, 0.5) for w in model.get_weights()])
    return model


def keras3(build, checkpoints, temp):
    import keras
    for name in ("plain", "separable", "transposed", "bilstm", "gru_after", "shared", "nested"):
        folder = os.path.join(checkpoints, name)
        out, inputs = trained(build, folder, temp)
        want = reference(out[".onnx"], inputs)
        for e in (".weights.h5", ".h5"):
            model = blank(keras.models.load_model(os.path.join(folder, "keras3.keras"), compile=False))
            model.load_weights(out[e])
            report("%s: trained%s" % (name, e), "Keras %s load_weights" % keras.__version__, [model.predict(order(model, inputs), verbose=0)], want)


def tf_keras(build, checkpoints, temp):
    import tf_keras as k
    for name in ("plain", "separable", "bilstm", "gru_after", "shared", "nested"):
        folder = os.path.join(checkpoints, name)
        out, inputs = trained(build, folder, temp)
        want = reference(out[".onnx"], inputs)
        model = blank(k.models.load_model(os.path.join(folder, "tfkeras2.15.model.h5"), compile=False))
        model.load_weights(out[".h5"])
        report("%s: trained.h5" % name, "tf_keras %s load_weights" % k.__version__, [model.predict(order(model, inputs), verbose=0)], want)


def torch_models():
    from torch import nn
    import torch
    import torch.nn.functional as F

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.gru, self.fc = nn.Embedding(60, 16), nn.GRU(16, 16, 2, batch_first=True, bidirectional=True), nn.Linear(32, 9)

        def forward(self, ids):
            return self.fc(self.gru(self.emb(ids))[0])

    class FashionCNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
            self.fc1, self.fc2 = nn.Linear(16 * 7 * 7, 32), nn.Linear(32, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))

    return {"torch-mlp-ts": nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)),
            "torch-gru-tagger": Tagger(), "torch-fmnist-cnn-dy": FashionCNN()}


def torch(build, cases, temp):
    import torch as t
    from safetensors.torch import load_file
    for name, model in torch_models().items():
        golden = os.path.join(cases, name, "golden.h5")
        inputs, labels = sets(golden, "inputs"), sets(golden, "labels")
        onnx, out = os.path.join(temp, "trained.onnx"), os.path.join(temp, "trained.safetensors")
        (x,), (y,) = inputs, labels
        run(build, "mgpu-train", os.path.join(cases, name, "model.onnx"), "--data", "%s=%s:inputs/0000" % (x, golden), "--data", "%s=%s:labels/0000" % (y, golden),
            "--loss", "cross_entropy,axis=-1,ignore_index=-1", "--batch", "4", "--epochs", "2", "--save", onnx, "--save", out, "--quiet")
        model.load_state_dict(load_file(out))
        model.eval()
        with t.no_grad():
            ours = model(t.from_numpy(inputs[x])).numpy()
        report("%s: trained.safetensors" % name, "torch %s load_state_dict" % t.__version__, [ours], reference(onnx, inputs))


def h5py(build, checkpoints, temp):
    import h5py as h
    out, _ = trained(build, os.path.join(checkpoints, "plain"), temp)
    npz = os.path.join(temp, "trained.npz")
    run(build, "mgpu-convert", out[".onnx"], npz)
    arrays = np.load(npz)
    with h.File(out[".h5"]) as f:
        layers = [n.decode() for n in f.attrs["layer_names"]]
        pairs = [(n.decode(), f[l][n.decode()][()]) for l in layers for n in f[l].attrs["weight_names"]]
    assert len(pairs) == len(arrays.files), (len(pairs), arrays.files)
    report("plain: trained.h5, trained.npz", "h5py %s and numpy %s" % (h.__version__, np.__version__), [a for _, a in pairs], [arrays[n.split(":")[0]] for n, _ in pairs])


def main():
    build, checkpoints, cases, which = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temp:
        {"keras3": keras3, "tf_keras": tf_keras, "torch": torch, "h5py": h5py}[which](build, cases if which == "torch" else checkpoints, temp)
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
