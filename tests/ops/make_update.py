"""Five steps of every optimizer in float64: PyTorch's own, Keras's and LAMB by their formulas
(runtime/ref/update.c)."""

import math

import torch

from golden import begin, numbers, truth

torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
STEPS, SIZE = 5, 4
FIELDS = {"sgd": "SGD", "adam": "ADAM", "adamw": "ADAMW", "rmsprop": "RMSPROP",
          "adagrad": "ADAGRAD", "lamb": "LAMB"}


def torch_steps(kind, w, gradients, o):
    """PyTorch itself; the rate of step t is set before it, for `decay` and `lr_factor`."""
    p = torch.nn.Parameter(w.clone())
    lr, wd = o["lr"], o["weight_decay"]
    if kind == "sgd":
        opt = torch.optim.SGD([p], lr, o["momentum"], o["dampening"], wd, o["nesterov"])
    elif kind in ("adam", "adamw"):
        make = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
        opt = make([p], lr, (o["beta1"], o["beta2"]), o["eps"], wd, o["amsgrad"])
    elif kind == "rmsprop":
        opt = torch.optim.RMSprop([p], lr, o["rho"], o["eps"], wd, o["momentum"], o["centered"])
    else:
        opt = torch.optim.Adagrad([p], lr, o["lr_decay"], wd, o["initial_accumulator_value"],
                                  o["eps"])
    result = []
    for t, g in enumerate(gradients):
        opt.param_groups[0]["lr"] = lr * o["lr_factor"] / (1 + o["decay"] * t)
        p.grad = g.clone()
        opt.step()
        result.append(p.detach().clone())
    return result


def keras_steps(kind, style, w, gradients, o):
    """Keras 2 and 3, by formula; also lamb in the style of PyTorch."""
    w, result, b1, b2, eps = w.clone(), [], o["beta1"], o["beta2"], o["eps"]
    start = o["initial_accumulator_value"] if kind == "adagrad" else 0.0
    m, v, a = torch.zeros(SIZE), torch.full((SIZE,), start), torch.zeros(SIZE)
    for t, g in enumerate(gradients):
        lr = o["lr"] * o["lr_factor"] / (1 + o["decay"] * t)
        c1, c2 = 1 - b1 ** (t + 1), 1 - b2 ** (t + 1)
        if style != "torch":
            w = w - lr * o["weight_decay"] * w
        if kind == "sgd":
            m = o["momentum"] * m - lr * g
            w = w + (o["momentum"] * m - lr * g if o["nesterov"] else m)
        elif kind in ("adam", "adamw"):
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            a = torch.maximum(a, v)
            w = w - lr * math.sqrt(c2) / c1 * m / ((a if o["amsgrad"] else v).sqrt() + eps)
        elif kind == "rmsprop":
            v = o["rho"] * v + (1 - o["rho"]) * g * g
            a = o["rho"] * a + (1 - o["rho"]) * g
            square = v - a * a if o["centered"] else v
            inside = style == "keras3" or o["momentum"] > 0
            m = o["momentum"] * m + lr * g / ((square + eps).sqrt() if inside
                                              else square.sqrt() + eps)
            w = w - m
        elif kind == "adagrad":
            v = v + g * g
            w = w - lr * g / ((v + eps).sqrt() if style == "keras3" else v.sqrt() + eps)
        elif kind == "lamb":
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            u = m / c1 / ((v / c2).sqrt() + eps)
            if style == "torch":
                u = u + o["weight_decay"] * w
            ratio = w.norm() / u.norm() if w.norm() > 0 and u.norm() > 0 else 1.0
            w = w - lr * ratio * u
        result.append(w.clone())
    return result


def case(kind, style="torch", zero=False, **options):
    o = {"lr": 0.1, "weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "beta1": 0.9,
         "beta2": 0.99, "eps": 1e-3, "rho": 0.9, "decay": 0.0, "lr_decay": 0.0,
         "initial_accumulator_value": 0.0, "clip_value": 0.0, "nesterov": False, "amsgrad": False,
         "centered": False}
    more = {"lr_factor": 1.0, "coefficient": 1.0}
    for name, value in options.items():
        (more if name in more else o)[name] = value
    w = torch.zeros(SIZE) if zero else torch.randn(SIZE)
    raw = [torch.randn(SIZE) * (0.2 if t == 2 else 1) for t in range(STEPS)]
    gradients = [g * more["coefficient"] for g in raw]
    if o["clip_value"]:
        gradients = [g.clamp(-o["clip_value"], o["clip_value"]) for g in gradients]
    by_formula = style != "torch" or kind == "lamb"
    steps = (keras_steps(kind, style, w, gradients, {**o, **more}) if by_formula
             else torch_steps(kind, w, gradients, {**o, **more}))
    text = ", ".join([style] + [kind] + [f"{n}={v}" for n, v in options.items()])
    fields = [f".kind = MGPU_{FIELDS[kind]}", f".style = MGPU_STYLE_{style.upper()}"]
    fields += [f".{n} = {truth(v) if isinstance(v, bool) else v}" for n, v in o.items() if v]
    print(f"    {{.name = \"{text}\",\n     .attrs = {{{', '.join(fields)}}},")
    print(f"     .lr_factor = {more['lr_factor']}, .coefficient = {more['coefficient']},")
    print(f"     .w = {numbers(w)},")
    print(f"     .gradients = {numbers(torch.cat(raw))},")
    print(f"     .after = {numbers(torch.cat(steps))}}},")


begin("make_update.py", "Weights after each of five steps, for tests/ops/test_update.c.")
print(f"enum {{ STEPS = {STEPS}, SIZE = {SIZE} }};\n\nstatic const struct golden golden[] = {{")
case("sgd")
case("sgd", weight_decay=0.1)
case("sgd", momentum=0.9, dampening=0.3)
case("sgd", momentum=0.9, nesterov=True, weight_decay=0.01)
case("sgd", momentum=0.9, decay=0.5, lr_factor=0.25, coefficient=0.5, clip_value=0.3)
case("adam")
case("adam", weight_decay=0.1, beta1=0.5)
case("adam", amsgrad=True)
case("adam", decay=0.1, lr_factor=0.5, coefficient=0.1, clip_value=0.05)
case("adamw", weight_decay=0.1)
case("adamw", weight_decay=0.1, amsgrad=True, decay=0.5)
case("rmsprop")
case("rmsprop", weight_decay=0.1, momentum=0.5)
case("rmsprop", centered=True)
case("rmsprop", centered=True, momentum=0.9)
case("adagrad")
case("adagrad", lr_decay=0.5, initial_accumulator_value=0.1, weight_decay=0.1)
case("lamb")
case("lamb", weight_decay=0.1)
case("lamb", weight_decay=0.1, zero=True)
for style in ("keras2", "keras3"):
    case("sgd", style, decay=0.5)
    case("sgd", style, momentum=0.9, decay=0.1)
    case("sgd", style, momentum=0.9, nesterov=True)
    case("adam", style, decay=0.5)
    case("adam", style, amsgrad=True)
    case("adamw", style, weight_decay=0.1, lr_factor=0.5)
    case("rmsprop", style, decay=0.5)
    case("rmsprop", style, momentum=0.9, decay=0.1)
    case("rmsprop", style, centered=True)
    case("rmsprop", style, momentum=0.9, centered=True, decay=0.1)
    case("adagrad", style, initial_accumulator_value=0.1)
    case("lamb", style, weight_decay=0.1)
print("    {.name = NULL},\n};")
