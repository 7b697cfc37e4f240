#!/usr/bin/env python3
"""check_frameworks.py BUILD CHECKPOINTS CASES {keras3,tf_keras,keras3_inside,tf_keras_inside,torch,h5py}: what we write, loaded by those who would use it.

CHECKPOINTS: folders with model.onnx, forward.h5 and an architecture (keras3.keras, tfkeras2.15.model.h5); CASES: tests/cases. Each
line: what was written, by which call it was loaded, and the largest difference of the predictions from ONNX Runtime's (h5py: from
the arrays themselves; *_inside, models in models, which need tf2onnx: from Keras's own). Run it with a Python that has the framework; frameworks.txt holds the last results."""
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


def training_data(folder, temp):
    """The model's own outputs, moved: all weights change."""
    import h5py
    data = os.path.join(temp, "data.h5")
    inputs, forward = sets(os.path.join(folder, "forward.h5"), "inputs"), sets(os.path.join(folder, "forward.h5"), "forward")
    label = list(forward.values())[0] + 0.5
    with h5py.File(data, "w") as f:
        for k, v in inputs.items():
            f[k] = v
        f["label"] = label
    return data, inputs, label


def trained(build, folder, temp):
    """A few steps; Keras files to be followed only where they are asked for, which is said."""
    data, inputs, _ = training_data(folder, temp)
    out = {e: os.path.join(temp, "trained" + e) for e in (".onnx", ".h5", ".weights.h5", ".safetensors")}
    like = [a for f in ("keras3.weights.h5", "tfkeras2.15.legacy.h5") for a in ("--like", os.path.join(folder, f))]
    args = ["--data", data, "--loss", "mse", "--batch", "4", "--epochs", "2", "--optimizer", "adam,lr=0.01"]
    for path in out.values():
        args += ["--save", path]
    command = [os.path.join(build, "mgpu-train"), os.path.join(folder, "model.onnx"), *args]
    r, how = subprocess.run(command, capture_output=True, text=True), ""
    told = "names with '/'" in r.stderr
    if r.returncode or told:
        assert told or "give --like FILE" in r.stderr, r.stderr
        how = ", like (%s)" % ("told" if told else "asked for")
        run(build, "mgpu-train", *command[1:], *like)
    return out, inputs, how


def went_on(build, folder, temp):
    """Two epochs of ours, a third one of ours, and a third one of Keras with the optimizer's state."""
    import keras
    data, inputs, label = training_data(folder, temp)
    model, at = os.path.join(folder, "model.onnx"), lambda name: os.path.join(temp, name)
    args = [model, "--data", data, "--loss", "mse", "--batch", "4", "--no-shuffle", "--optimizer", "adam,lr=0.01,style=keras3", "--quiet"]
    run(build, "mgpu-train", *args, "--epochs", "2", "--checkpoint", at("run.h5"))
    run(build, "mgpu-train", *args, "--epochs", "3", "--resume", at("run.h5"), "--save", at("third.onnx"))
    run(build, "mgpu-convert", at("run.h5"), at("state.weights.h5"), "--model", model, "--optimizer-state")
    theirs = blank(keras.models.load_model(os.path.join(folder, "keras3.keras"), compile=False))
    theirs.compile(keras.optimizers.Adam(0.01), "mse")
    theirs.optimizer.build(theirs.trainable_variables)
    theirs.load_weights(at("state.weights.h5"))
    assert int(theirs.optimizer.iterations.numpy()) > 0
    theirs.fit(order(theirs, inputs), label, batch_size=4, shuffle=False, verbose=0)
    report("%s: state.weights.h5, a third epoch" % os.path.basename(folder), "Keras %s load_weights, fit" % keras.__version__,
           [theirs.predict(order(theirs, inputs), verbose=0)], reference(at("third.onnx"), inputs))


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
        out, inputs, how = trained(build, folder, temp)
        want = reference(out[".onnx"], inputs)
        for e in (".weights.h5", ".h5"):
            model = blank(keras.models.load_model(os.path.join(folder, "keras3.keras"), compile=False))
            model.load_weights(out[e])
            report("%s: trained%s%s" % (name, e, how), "Keras %s load_weights" % keras.__version__, [model.predict(order(model, inputs), verbose=0)], want)
    went_on(build, os.path.join(checkpoints, "plain"), temp)


def tf_keras(build, checkpoints, temp):
    import tf_keras as k
    for name in ("plain", "separable", "bilstm", "gru_after", "shared", "nested"):
        folder = os.path.join(checkpoints, name)
        out, inputs, how = trained(build, folder, temp)
        want = reference(out[".onnx"], inputs)
        model = blank(k.models.load_model(os.path.join(folder, "tfkeras2.15.model.h5"), compile=False))
        model.load_weights(out[".h5"])
        report("%s: trained.h5%s" % (name, how), "tf_keras %s load_weights" % k.__version__, [model.predict(order(model, inputs), verbose=0)], want)


def models_inside(k):
    """Models in models, and layers around layers."""
    L, M, S = k.layers, k.Model, k.Sequential

    def convs(**name):
        i = L.Input((6, 6, 2))
        return M(i, L.Conv2D(4, 3)(L.Conv2D(3, 3)(i)), **name)

    def denses(**name):
        return S([L.Input((4,)), L.Dense(5, activation="relu"), L.Dense(5)], **name)

    def on_top(inner, *more):
        i = L.Input((6, 6, 2))
        x = L.GlobalAveragePooling2D()(inner(i))
        for m in more:
            x = m(x)
        return M(i, L.Dense(2)(x))

    def twice(inner):
        a, b = L.Input((4,)), L.Input((4,))
        return M([a, b], L.Dense(2)(L.Concatenate()([inner(a), inner(b)])))

    def on_vector(*more):
        i = x = L.Input((4,))
        for m in more:
            x = m(x)
        return M(i, x)

    def deep():
        i = L.Input((6, 6, 2))
        return on_top_of(M(i, L.Dense(5)(L.GlobalAveragePooling2D()(convs()(i)))))

    def on_top_of(middle):
        i = L.Input((6, 6, 2))
        return M(i, L.Dense(2)(middle(i)))

    def recurrent():
        i = L.Input((7, 4))
        return M(i, L.Dense(2)(S([L.Input((7, 4)), L.Bidirectional(L.LSTM(3, return_sequences=True)), L.LSTM(5)])(i)))

    def each():
        i = L.Input((5, 4))
        return M(i, L.Dense(2)(L.TimeDistributed(L.Dense(3))(i)))

    return {"Functional": lambda: on_top(convs()), "Functional, Sequential": lambda: on_top(convs(), denses()),
            "models in Sequential": lambda: S([L.Input((6, 6, 2)), convs(), L.GlobalAveragePooling2D(), denses(), L.Dense(3)]),
            "three deep": deep, "used twice": lambda: twice(denses()), "between layers": lambda: on_vector(L.Dense(4), denses(), L.Dense(4)),
            "two alike": lambda: on_vector(denses(), L.Dense(4), denses()), "LSTM": recurrent,
            "own name": lambda: on_top(convs(name="encoder")), "TimeDistributed": each}


def inside(build, temp, k, export, version):
    rng = np.random.RandomState(3)
    for name, make in models_inside(k).items():
        k.backend.clear_session()
        model, onnx, like = make(), os.path.join(temp, "model.onnx"), {e: os.path.join(temp, "like" + e) for e in (".weights.h5", ".h5")}
        model.set_weights([rng.uniform(-.5, .5, w.shape) for w in model.get_weights()])
        x = [rng.rand(3, *t.shape[1:]).astype("f") for t in model.inputs]
        x = x if len(x) > 1 else x[0]
        want = np.asarray(model(x))
        model.save_weights(like[".weights.h5"])
        model.save(like[".h5"])
        export(model, onnx)
        for e in like:
            out = os.path.join(temp, "ours" + e)
            how, r = "", subprocess.run([os.path.join(build, "mgpu-convert"), onnx, out], capture_output=True, text=True)
            told = "names with '/'" in r.stderr
            if r.returncode or told:
                assert told or "--like" in r.stderr, r.stderr
                how = ", like (%s)" % ("told" if told else "asked for")
                run(build, "mgpu-convert", onnx, out, "--like", like[e])
            k.backend.clear_session()
            model = blank(make())
            model.load_weights(out)
            report("inside, %s: ours%s%s" % (name, e, how), version + " load_weights", [np.asarray(model(x))], [want])


def keras3_inside(build, checkpoints, temp):
    import keras as k
    inside(build, temp, k, lambda m, path: m.export(path, format="onnx", verbose=False), "Keras " + k.__version__)


def tf_keras_inside(build, checkpoints, temp):
    import tf2onnx, tf_keras as k
    inside(build, temp, k, lambda m, path: tf2onnx.convert.from_keras(m, opset=17, output_path=path), "tf_keras " + k.__version__)


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
    out, _, _ = trained(build, os.path.join(checkpoints, "plain"), temp)
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
        {"keras3": keras3, "tf_keras": tf_keras, "keras3_inside": keras3_inside, "tf_keras_inside": tf_keras_inside, "torch": torch, "h5py": h5py}[which](build, cases if which == "torch" else checkpoints, temp)
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
