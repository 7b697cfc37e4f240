"""Numbers of tests/ops/test_grid_sample.c, from PyTorch in float64.

    python3 tests/ops/make_grid_sample.py > tests/ops/golden_grid_sample.h
"""

import torch

import golden


def values(shape, start, reach):
    k = torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float64)
    return torch.round(torch.sin(k * 1.7 + start) * reach, decimals=2).reshape(shape)


def emit(x, grid, dy, mode, padding, align):
    x, grid = x.clone().requires_grad_(), grid.clone().requires_grad_()
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    y = torch.nn.functional.grid_sample(x, grid, mode=name, padding_mode=padding, align_corners=align)
    y.backward(dy)
    print(f"{{.mode = MGPU_GRID_{mode.upper()}, .padding = MGPU_GRID_{padding.upper()}, "
          f".align = {golden.truth(align)}, .axes = {x.ndim - 2},")
    print(f".y = {golden.numbers(y.detach().flatten())},")
    print(f".dx = {golden.numbers(x.grad.flatten())},")
    print(f".dgrid = {golden.numbers(grid.grad.flatten())}}},")


def sets(name, shapes):
    made = [values(s, i + 1, r) for i, (s, r) in enumerate(zip(shapes, (4, 2.3, 1)))]
    for what, v in zip(("x", "grid", "dy"), made):
        print(f"static const double {name}_{what}[] = {{" + ", ".join(repr(float(f)) for f in v.flatten()) + "};")
    return made


golden.begin("make_grid_sample.py", "Sampled tensors and gradients of tests/ops/test_grid_sample.c.")
plane = sets("plane", [(1, 2, 3, 4), (1, 2, 3, 2), (1, 2, 2, 3)])
solid = sets("solid", [(1, 1, 2, 3, 2), (1, 1, 2, 2, 3), (1, 1, 1, 2, 2)])
print("static const struct golden golden[] = {")
for padding in ("zeros", "border", "reflection"):
    for align in (False, True):
        for mode in ("nearest", "linear", "cubic"):
            emit(*plane, mode, padding, align)
        for mode in ("nearest", "linear"):
            emit(*solid, mode, padding, align)
print("};")
