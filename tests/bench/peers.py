"""Times training steps of the networks of models.c in PyTorch and ONNX Runtime Training.

    python peers.py NETWORK MODE FOLDER [SECONDS] [THREADS] [DEVICE] [PRECISION]

MODE: eager | channels_last | compile | compile_channels_last | onnxruntime. FOLDER holds what
`bench_train write NETWORK FOLDER` wrote: the batch, and the model that ONNX Runtime trains.
PyTorch's networks are built here, with its own layers, attention and fused optimizers. DEVICE: cpu | cuda, PyTorch's;
the batch stays on a GPU. PRECISION: f32 | tf32 | bf16 (autocast).
Prints one line of NAME=VALUE words, as bench_train does.
"""
import os
import sys
import time

import numpy as np

network, mode, folder = sys.argv[1:4]
seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 20
threads = int(sys.argv[5]) if len(sys.argv) > 5 else 2
device = sys.argv[6] if len(sys.argv) > 6 else "cpu"
precision = sys.argv[7] if len(sys.argv) > 7 else "f32"
SGD = ("resnet20", "resnet50", "vgg16")  # the others: Adam
MOST_STEPS = 1000


def load(name):
    return np.load(os.path.join(folder, network + "." + name + ".npy"))


def inputs():
    return [load("x%d" % i) for i in range(2) if os.path.exists(os.path.join(folder, "%s.x%d.npy" % (network, i)))]


def memory_mib(field):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(field)) / 1024


def report(step, before):
    times = []
    for _ in range(3):  # memory is touched, code is compiled
        step()
    start = time.perf_counter()
    while len(times) < MOST_STEPS and (len(times) < 3 or time.perf_counter() - start < seconds):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    times.sort()
    print("model=%s who=%s threads=%d devices=%s precision=%s ms=%.3f median=%.3f steps=%d resident=%.1f" % (
        network, mode, threads, device, precision, 1e3 * times[0], 1e3 * times[len(times) // 2], len(times),
        memory_mib("VmHWM") - before), flush=True)


# ---- PyTorch ----------------------------------------------------------------------------------


def build(torch):
    nn, F = torch.nn, torch.nn.functional

    class Call(nn.Module):
        """A function with the layers that it uses."""

        def __init__(self, function, **layers):
            super().__init__()
            self.function = function
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, *x):
            return self.function(self, *x)

    def conv(i, o, k, s=1, g=1, bias=False):
        return nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=bias)

    def norm(i, o, k, s=1, g=1):
        return nn.Sequential(conv(i, o, k, s, g), nn.BatchNorm2d(o))

    def classify(c, n):
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, n))

    def residual(body, short):
        return Call(lambda m, x: F.relu(m.short(x) + m.body(x)), body=body, short=short)

    def resnet20():
        layers, c = [norm(3, 16, 3), nn.ReLU()], 16
        for k in range(9):
            o, s = 16 << k // 3, 2 if k in (3, 6) else 1
            body = nn.Sequential(norm(c, o, 3, s), nn.ReLU(), norm(o, o, 3))
            layers.append(residual(body, norm(c, o, 1, s) if s > 1 else nn.Identity()))
            c = o
        return nn.Sequential(*layers, classify(64, 10))

    def resnet50():
        layers, c = [norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            for k in range(depth):
                w, s = 64 << stage, 2 if stage and not k else 1
                body = nn.Sequential(norm(c, w, 1), nn.ReLU(), norm(w, w, 3, s), nn.ReLU(), norm(w, 4 * w, 1))
                layers.append(residual(body, norm(c, 4 * w, 1, s) if c != 4 * w else nn.Identity()))
                c = 4 * w
        return nn.Sequential(*layers, classify(2048, 1000))

    def inverted(i, o, s, e):
        w = i * e
        body = [norm(i, w, 1), nn.ReLU6()] if e > 1 else []
        body = nn.Sequential(*body, norm(w, w, 3, s, w), nn.ReLU6(), norm(w, o, 1))
        return Call(lambda m, x: x + m.body(x), body=body) if s == 1 and i == o else body

    def mobilenetv2():
        layers, c = [norm(3, 32, 3, 2), nn.ReLU6()], 32
        for e, o, n, s in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
                           (6, 320, 1, 1)):
            for k in range(n):
                layers.append(inverted(c, o, 1 if k else s, e))
                c = o
        return nn.Sequential(*layers, norm(320, 1280, 1), nn.ReLU6(), classify(1280, 1000))

    def vgg16():
        layers, c = [], 3
        for o in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
            layers += [conv(c, o, 3, bias=True), nn.ReLU()] if o else [nn.MaxPool2d(2)]
            c = o or c
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
                             nn.Linear(4096, 1000))

    def two(i, o):
        return nn.Sequential(conv(i, o, 3, bias=True), nn.ReLU(), conv(o, o, 3, bias=True), nn.ReLU())

    def unet():
        def forward(m, x):
            kept = []
            for block in m.down:
                kept.append(block(x))
                x = F.max_pool2d(kept[-1], 2)
            x = m.middle(x)
            for up, block, side in zip(m.ups, m.blocks, reversed(kept)):
                x = block(torch.cat([up(x), side], 1))
            return m.last(x)

        wide = (512, 256, 128, 64)
        return Call(forward, down=nn.ModuleList([two(3, 64), two(64, 128), two(128, 256), two(256, 512)]),
                    middle=two(512, 1024), ups=nn.ModuleList([nn.ConvTranspose2d(2 * c, c, 2, 2) for c in wide]),
                    blocks=nn.ModuleList([two(2 * c, c) for c in wide]), last=conv(64, 2, 1, bias=True))

    def fmnist():
        return nn.Sequential(conv(1, 32, 3, bias=True), nn.ReLU(), nn.MaxPool2d(2), conv(32, 64, 3, bias=True), nn.ReLU(),
                             nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))

    def mlp():
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def lstm2():
        def forward(m, a, b):
            return m.last(torch.cat([m.lstm(a)[0][:, -1], m.lstm(b)[0][:, -1]], 1))

        return Call(forward, lstm=nn.LSTM(256, 64, batch_first=True), last=nn.Linear(128, 50))

    def heads(x):
        return x.unflatten(-1, (12, 64)).transpose(1, 2)

    def attend(q, k, v, **how):
        return F.scaled_dot_product_attention(heads(q), heads(k), heads(v), **how).transpose(1, 2).flatten(2)

    def encoder():
        def forward(m, x, mask):
            a = attend(m.q(x), m.k(x), m.v(x), attn_mask=mask)
            x = m.norm1(m.out(a) + x)
            return m.norm2(m.narrow(F.gelu(m.wide(x))) + x)

        return Call(forward, q=nn.Linear(768, 768), k=nn.Linear(768, 768), v=nn.Linear(768, 768), out=nn.Linear(768, 768),
                    wide=nn.Linear(768, 3072), narrow=nn.Linear(3072, 768), norm1=nn.LayerNorm(768, 1e-12),
                    norm2=nn.LayerNorm(768, 1e-12))

    def bert():
        def forward(m, words, mask):
            mask = ((1 - mask.float()) * torch.finfo(torch.float).min)[:, None, None, :]
            x = m.norm(m.words(words) + m.kind.weight[0] + m.places.weight)
            for layer in m.layers:
                x = layer(x, mask)
            return m.last(torch.tanh(m.pool(x[:, 0])))

        return Call(forward, words=nn.Embedding(30522, 768), kind=nn.Embedding(1, 768), places=nn.Embedding(128, 768),
                    norm=nn.LayerNorm(768, 1e-12), layers=nn.ModuleList([encoder() for _ in range(12)]),
                    pool=nn.Linear(768, 768), last=nn.Linear(768, 2))

    def decoder():
        def forward(m, x):
            x = x + m.out(attend(*m.all(m.norm1(x)).split(768, -1), is_causal=True))
            return x + m.narrow(F.gelu(m.wide(m.norm2(x)), approximate="tanh"))

        return Call(forward, all=nn.Linear(768, 2304), out=nn.Linear(768, 768), wide=nn.Linear(768, 3072),
                    narrow=nn.Linear(3072, 768), norm1=nn.LayerNorm(768), norm2=nn.LayerNorm(768))

    def gpt2():
        def forward(m, words):
            x = m.words(words) + m.places.weight
            for layer in m.layers:
                x = layer(x)
            return F.linear(m.norm(x), m.words.weight).transpose(1, 2)

        return Call(forward, words=nn.Embedding(50257, 768), places=nn.Embedding(256, 768), norm=nn.LayerNorm(768),
                    layers=nn.ModuleList([decoder() for _ in range(12)]))

    return locals()[network]()


def run_torch():
    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if mode.startswith("compile"):
        import torch._inductor.compile_fx  # not part of what training takes
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "f32"
    torch.backends.cudnn.benchmark = True
    before = memory_mib("VmRSS")
    model = build(torch).train().to(device)
    x, y = [torch.from_numpy(v).to(device) for v in inputs()], torch.from_numpy(load("label")).to(device)
    if mode.endswith("channels_last"):
        model = model.to(memory_format=torch.channels_last)
        x = [v.to(memory_format=torch.channels_last) if v.dim() == 4 else v for v in x]
    if network in SGD:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def loss(*x):
        with torch.autocast(device, torch.bfloat16, precision == "bf16"):
            return torch.nn.functional.cross_entropy(model(*x), y)

    forward = torch.compile(loss) if mode.startswith("compile") else loss

    def step():
        optimizer.zero_grad(set_to_none=True)
        value = forward(*x)
        value.backward()
        optimizer.step()
        return value.item()

    report(step, before)


# ---- ONNX Runtime Training --------------------------------------------------------------------


def name_states(onnx, model):
    """The gradient of LSTM there wants the initial states by name."""
    nodes = [n for n in model.graph.node if n.op_type == "LSTM"]
    for node in nodes:
        node.input.extend(["", "zeros", "zeros"])
    if nodes:
        zeros = np.zeros((1, len(load("label")), nodes[0].attribute[0].i), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(zeros, "zeros"))


def run_onnxruntime():
    import tempfile

    import onnx
    import onnxruntime
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, Module, Optimizer
    with tempfile.TemporaryDirectory() as made:
        if os.fork() == 0:  # what making the files takes is not training
            model = onnx.load(os.path.join(folder, network + ".onnx"))
            name_states(onnx, model)
            names = [i.name for i in model.graph.initializer]
            still = {name for n in model.graph.node if n.op_type == "BatchNormalization" for name in n.input[3:5]}
            trained = [i.name for i in model.graph.initializer if i.data_type == 1 and i.dims and i.name not in still | {"zeros"}]
            artifacts.generate_artifacts(
                model, requires_grad=trained, frozen_params=[n for n in names if n not in trained],
                loss=artifacts.LossType.CrossEntropyLoss, artifact_directory=made,
                optimizer=artifacts.OptimType.SGD if network in SGD else artifacts.OptimType.AdamW)
            os._exit(0)
        if os.wait()[1]:
            sys.exit(1)
        feeds = inputs() + [load("label")]
        before = memory_mib("VmRSS")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        state = CheckpointState.load_checkpoint(os.path.join(made, "checkpoint"))
        module = Module(os.path.join(made, "training_model.onnx"), state, None, device="cpu", session_options=options)
        optimizer = Optimizer(os.path.join(made, "optimizer_model.onnx"), module)
        module.train()

        def step():
            module(*feeds)
            optimizer.step()
            module.lazy_reset_grad()

        report(step, before)


run_onnxruntime() if mode == "onnxruntime" else run_torch()
