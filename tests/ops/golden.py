"""What the make_*.py scripts share: C tables from numbers. Run any of them with PyTorch at hand:

    python3 tests/ops/make_loss.py > tests/ops/golden_loss.h
"""


def begin(script, what):
    print(f"/* {what} Made by tests/ops/{script}. */")


def numbers(values):
    """A compound literal of doubles, or NULL."""
    if values is None:
        return "NULL"
    flat = [float(v) for v in values]
    return "(const double[]){" + ", ".join(repr(v) for v in flat) + "}"


def ints(values):
    return "{" + ", ".join(str(int(v)) for v in values) + "}"


def truth(value):
    return "true" if value else "false"
