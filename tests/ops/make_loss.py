"""Cross entropies as PyTorch computes them in float64, and Keras's on probabilities by its formula."""

import torch
import torch.nn.functional as F

from golden import begin, ints, numbers, truth

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
EPSILON = 1e-7


def keras(p, labels, dense, axis):
    """-log of the probability of the label, clipped; divided by the sum first when dense."""
    if dense:
        p = p / p.sum(axis, keepdim=True)
    logs = p.clamp(EPSILON, 1 - EPSILON).log()
    if dense:
        return -(labels * logs).sum(axis)
    return -logs.gather(axis, labels.unsqueeze(axis)).squeeze(axis)


def case(name, shape, axis, form="LOGITS", dense=False, ignore=None, smoothing=0.0, weights=False,
         samples=False, x=None, labels=None):
    classes = shape[axis]
    positions = [n for k, n in enumerate(shape) if k != axis]
    if x is None:
        x = torch.randn(shape) * 2
        if form == "LOG_PROBABILITIES":
            x = x.log_softmax(axis)
        if form == "PROBABILITIES":
            x = x.softmax(axis) * 1.25
    if labels is None:
        labels = (torch.rand(shape) if dense else torch.randint(0, classes, positions))
        if dense:
            labels = labels / labels.sum(axis, keepdim=True)
        if ignore is not None:
            labels.view(-1)[1::3] = ignore
    cw = torch.rand(classes) + 0.5 if weights else None
    sw = torch.rand(positions) if samples else None
    x = x.clone().requires_grad_()
    first = x.movedim(axis, 1) if len(shape) > 1 else x
    given = labels.movedim(axis, 1) if dense and len(shape) > 1 else labels
    index = -100 if ignore is None else ignore
    if form == "PROBABILITIES":
        each = keras(x, labels, dense, axis)
    elif form == "LOG_PROBABILITIES":
        each = F.nll_loss(first, given, weight=cw, ignore_index=index, reduction="none")
    else:
        each = F.cross_entropy(first, given, weight=cw, ignore_index=index,
                               label_smoothing=smoothing, reduction="none")
    counted = torch.ones(positions)
    if not dense:
        safe = labels.clamp(0, classes - 1)
        counted = torch.where(labels == index, 0.0, cw[safe] if cw is not None else 1.0)
    if sw is not None:
        each, counted = each * sw, counted * sw
    loss = each.sum() / counted.sum()
    if form != "PROBABILITIES" and sw is None:  # the mean is PyTorch's own
        kind = F.nll_loss if form == "LOG_PROBABILITIES" else F.cross_entropy
        more = {} if form == "LOG_PROBABILITIES" else {"label_smoothing": smoothing}
        theirs = kind(first, given, weight=cw, ignore_index=index, **more)
        assert abs(theirs - loss) < 1e-12, name
    loss.backward()
    print(f"    {{.name = \"{name}\",")
    print(f"     .attrs = {{.axis = {axis}, .form = MGPU_FORM_{form}, .dense = {truth(dense)},"
          f" .ignore = {truth(ignore is not None)}, .ignore_index = {ignore or 0},"
          f" .label_smoothing = {smoothing}}},")
    print(f"     .rank = {len(shape)}, .dims = {ints(shape)},")
    print(f"     .x = {numbers(x.detach().flatten())},")
    print(f"     .labels = {numbers(labels.flatten())},")
    print(f"     .class_weights = {numbers(cw)},")
    print(f"     .sample_weights = {numbers(sw.flatten() if sw is not None else None)},")
    print(f"     .normaliser = {(1 / counted.sum()).item()!r}, .loss = {loss.item()!r},")
    print(f"     .dx = {numbers(x.grad.flatten())}}},")


begin("make_loss.py", "Losses and gradients of tests/ops/test_loss.c.")
print("static const struct golden golden[] = {")
case("class numbers", [5, 4], 1)
case("class weights", [5, 4], 1, weights=True)
case("an ignored label", [7, 3], 1, ignore=-100)
case("an ignored class", [7, 3], 1, ignore=2)
case("smoothing", [4, 3], 1, smoothing=0.1)
case("smoothing, weights, ignored", [7, 3], 1, ignore=-1, smoothing=0.2, weights=True)
case("distributions", [3, 5], 1, dense=True)
case("distributions, weights, smoothing", [3, 5], 1, dense=True, smoothing=0.1, weights=True)
case("images", [2, 3, 2, 3], 1, ignore=255, weights=True)
case("classes last", [2, 3, 4], 2, ignore=0)
case("classes first", [3, 4], 0)
case("sample weights", [2, 3, 4], 1, samples=True, weights=True, ignore=1)
case("log-probabilities", [4, 3], 1, form="LOG_PROBABILITIES", weights=True, ignore=-100)
case("far logits", [3, 3], 1, x=torch.tensor([[40.0, 30, -20], [-700, 0, 700], [1e3, 1e3, 0]]),
     labels=torch.tensor([1, 1, 0]))
case("probabilities", [4, 3], 1, form="PROBABILITIES")
case("probabilities of distributions", [4, 3], 1, form="PROBABILITIES", dense=True)
case("clipped probabilities", [3, 3], 1, form="PROBABILITIES",
     x=torch.tensor([[1 - 1e-9, 1e-9, 0.0], [0.5, 0.25, 0.25], [1.0, 0, 0]]),
     labels=torch.tensor([1, 2, 0]))
print("    {.name = NULL},\n};")
