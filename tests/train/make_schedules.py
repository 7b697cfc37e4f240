"""Learning rate factors of torch.optim.lr_scheduler, update by update.

    python3 tests/train/make_schedules.py > tests/train/golden_schedules.h
"""

import torch
from torch.optim import lr_scheduler as s

TOTAL = 10


def row(text, make, total=TOTAL):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer)
    factors = []
    for _ in range(total):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step() if len(factors) < total else None
    print(f"    {{.text = \"{text}\", .total = {total},")
    print("     .factor = {" + ", ".join(repr(float(f)) for f in factors) + "}},")


print("/* Learning rates of PyTorch's schedules. Made by tests/train/make_schedules.py. */")
print("static const struct golden_schedule schedules[] = {")
row("step,step_size=3", lambda o: s.StepLR(o, 3))
row("step,step_size=4,gamma=0.5", lambda o: s.StepLR(o, 4, 0.5))
row("exponential,gamma=0.9", lambda o: s.ExponentialLR(o, 0.9))
row("linear", lambda o: s.LinearLR(o, 1.0, 0.0, TOTAL))
row("linear,end=0.25", lambda o: s.LinearLR(o, 1.0, 0.25, TOTAL))
row("cosine", lambda o: s.CosineAnnealingLR(o, TOTAL))
row("cosine,end=0.1", lambda o: s.CosineAnnealingLR(o, TOTAL, 0.1))
row("one_cycle", lambda o: s.OneCycleLR(o, 1.0, TOTAL, cycle_momentum=False))
row("one_cycle,pct_start=0.5,div_factor=10,final_div_factor=100",
    lambda o: s.OneCycleLR(o, 1.0, 7, pct_start=0.5, div_factor=10, final_div_factor=100,
                           cycle_momentum=False), 7)
print("    {.text = NULL},\n};")
