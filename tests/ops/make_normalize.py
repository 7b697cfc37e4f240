"""Batch, layer, instance, group and RMS normalisations as PyTorch computes them in float64."""

import torch
import torch.nn.functional as F

from golden import begin, ints, numbers, truth

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)


def case(name, shape, function, axis, scale_shape, epsilon, batch=False, rms=False):
    x = (torch.randn(shape) * 2 + 1).requires_grad_()
    scale = bias = None
    if scale_shape is not None:
        scale = (torch.rand(scale_shape) + 0.5).requires_grad_()
        bias = torch.randn(scale_shape).requires_grad_()
    y = function(x, scale, None if rms else bias)
    dy = torch.randn(y.shape)
    y.backward(dy)
    with torch.no_grad():
        if batch:
            rows = x.movedim(1, 0).reshape(shape[1], -1)
            mean, spread = rows.mean(1), rows.var(1, correction=0)
        else:
            count = 1
            for n in shape[:axis]:
                count *= n
            rows = x.reshape(count, -1)
            mean = torch.zeros(count) if rms else rows.mean(1)
            spread = 1 / (((rows - mean[:, None]) ** 2).mean(1) + epsilon).sqrt()

    def flat(t):
        return numbers(t.detach().flatten() if t is not None else None)

    print(f"    {{.name = \"{name}\", .batch = {truth(batch)},")
    print(f"     .axis = {axis}, .epsilon = {epsilon}, .rms = {truth(rms)},")
    print(f"     .rank = {len(shape)}, .dims = {ints(shape)},")
    print(f"     .x = {flat(x)}, .scale = {flat(scale)},")
    print(f"     .bias = {flat(None if rms else bias)}, .dy = {flat(dy)},")
    print(f"     .y = {flat(y)}, .mean = {flat(mean)}, .spread = {flat(spread)},")
    print(f"     .dx = {flat(x.grad)}, .dscale = {flat(scale.grad if scale is not None else None)},")
    print(f"     .dbias = {flat(bias.grad if bias is not None and not rms else None)}}},")


def batch_norm(epsilon):
    return lambda x, scale, bias: F.batch_norm(x, None, None, scale, bias, True, 0.1, epsilon)


def layer_norm(axis, epsilon):
    return lambda x, scale, bias: F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


begin("make_normalize.py", "Outputs and gradients for tests/ops/test_normalize.c.")
print("static const struct golden golden[] = {")
case("batch norm of images", [3, 2, 2, 3], batch_norm(1e-5), 0, [2], 1e-5, batch=True)
case("batch norm of vectors", [5, 3], batch_norm(1e-3), 0, [3], 1e-3, batch=True)
case("layer norm, last axis", [2, 3, 5], layer_norm(2, 1e-5), 2, [5], 1e-5)
case("layer norm, two axes", [3, 2, 3], layer_norm(1, 1e-5), 1, [2, 3], 1e-5)
case("layer norm without scale", [2, 4], layer_norm(1, 0.1), 1, None, 0.1)
case("instance norm", [2, 2, 5], lambda x, s, b: F.instance_norm(x, eps=1e-5), 2, None, 1e-5)
case("rms norm", [3, 4], lambda x, s, b: F.rms_norm(x, [4], s, 1e-5), 1, [4], 1e-5, rms=True)
print("    {.name = NULL},\n};")
