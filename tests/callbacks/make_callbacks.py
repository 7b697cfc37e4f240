"""What Keras 3's callbacks do with rows of made-up numbers, epoch by epoch.

    python3 tests/callbacks/make_callbacks.py > tests/callbacks/golden_callbacks.h
"""

import os
import random
import tempfile

import keras

EPOCHS = 12
random.seed(7)


class Optimizer:
    def __init__(self):
        self.learning_rate = keras.Variable(0.01, dtype="float64")


class Model:
    def __init__(self):
        self.stop_training = False
        self.optimizer = Optimizer()
        self.saved = []

    def save(self, path, overwrite=True):
        self.saved.append(os.path.basename(str(path)))


def values(nan=True):
    """Falls, then wavers; every third row holds one that is not a number."""
    v = [round(1 / (i + 1) + random.uniform(-0.15, 0.25), 2) for i in range(EPOCHS)]
    if nan and random.random() < 0.33:
        v[random.randrange(EPOCHS)] = float("nan")
    return v


def numbers(v):
    return ", ".join("NAN" if x != x else repr(x) for x in v)


def start(callback):
    model = Model()
    callback.set_params({"epochs": EPOCHS})
    callback.set_model(model)
    callback.on_train_begin()
    return model


def early(text, **options):
    v = values()
    callback = keras.callbacks.EarlyStopping(**options)
    model = start(callback)
    stop = -1
    for epoch, x in enumerate(v):
        callback.on_epoch_end(epoch, {"loss": x, "val_loss": x, "val_accuracy": x})
        if model.stop_training:
            stop = epoch
            break
    print(f'    {{"{text}", {{{numbers(v)}}}, .stop = {stop}, .best = {callback.best_epoch}}},')


def reduce(text, **options):
    v = values()
    callback = keras.callbacks.ReduceLROnPlateau(**options)
    model = start(callback)
    lr = []
    for epoch, x in enumerate(v):
        callback.on_epoch_end(epoch, {"loss": x, "val_loss": x, "val_accuracy": x})
        lr.append(float(model.optimizer.learning_rate))
    print(f'    {{"{text}", {{{numbers(v)}}}, .lr = {{{numbers(lr)}}}}},')


def save(path, best, monitor, mode):
    v = values("08" not in path)  # Python fills up nan with zeros, C does not
    folder = tempfile.mkdtemp()
    callback = keras.callbacks.ModelCheckpoint(os.path.join(folder, path + ".keras"),
                                               save_best_only=best, monitor=monitor, mode=mode)
    model = start(callback)
    names = []
    for epoch, x in enumerate(v):
        before = len(model.saved)
        callback.on_epoch_end(epoch, {"loss": x, "val_loss": x, "val_accuracy": x})
        names.append(model.saved[-1].removesuffix(".keras") if len(model.saved) > before else "")
    texts = ", ".join(f'"{n}"' for n in names)
    print(f'    {{"{path}", "{monitor}", "{mode}", {"true" if best else "false"},')
    print(f"     {{{numbers(v)}}}, {{{texts}}}}},")


print("/* What Keras's callbacks do. Made by tests/callbacks/make_callbacks.py. */")
print("static const struct golden_early early[] = {")
for _ in range(3):
    early("monitor=val_loss", monitor="val_loss")
    early("monitor=loss,patience=2", monitor="loss", patience=2)
    early("monitor=val_loss,patience=3,min_delta=0.05", monitor="val_loss", patience=3,
          min_delta=0.05)
    early("monitor=val_accuracy,patience=2,mode=max", monitor="val_accuracy", patience=2,
          mode="max")
    early("monitor=val_loss,patience=2,start_from_epoch=4", monitor="val_loss", patience=2,
          start_from_epoch=4)
    early("monitor=val_loss,patience=4,baseline=0.3", monitor="val_loss", patience=4,
          baseline=0.3)
print("};\n\nstatic const struct golden_reduce reduce[] = {")
for _ in range(3):
    reduce("monitor=val_loss,patience=2", monitor="val_loss", patience=2)
    reduce("monitor=loss,patience=1,factor=0.5", monitor="loss", patience=1, factor=0.5)
    reduce("monitor=val_loss,patience=2,cooldown=2,min_delta=0.05", monitor="val_loss", patience=2,
           cooldown=2, min_delta=0.05)
    reduce("monitor=val_accuracy,mode=max,patience=1,min_lr=0.0005", monitor="val_accuracy",
           mode="max", patience=1, min_lr=0.0005)
print("};\n\nstatic const struct golden_save saves[] = {")
for best in (False, True):
    save("w-{epoch:02d}-{val_loss:.2f}", best, "val_loss", "auto")
    save("{epoch}_{loss}", best, "loss", "min")
    save("a{{b}}{epoch:3d}{val_accuracy:08.3f}{loss:e}", best, "val_accuracy", "max")
print("};")
