"""Small pictures of all forms, and what Pillow makes of them.

    python3 tests/data/make_pictures.py       # in the source folder
"""

import os

import numpy as np
from PIL import Image

FOLDER = "tests/data/golden/pictures"
SIZES = [(8, 6), (31, 23), (3, 40)]  # smaller, larger, both

y, x = np.mgrid[0:19, 0:26]
base = np.stack([x * 9, y * 13, (x * y) % 256], 2).astype(np.uint8)
base[4:9, 5:12] = (250, 20, 30)
rgb = Image.fromarray(base)


def save(image, name, **options):
    path = os.path.join(FOLDER, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    image.save(path, **options)
    loaded = Image.open(path).convert("RGB")
    for w, h in SIZES:
        out.append(np.asarray(loaded.resize((w, h), Image.BILINEAR)).reshape(-1))
    out.append(np.asarray(loaded).reshape(-1))


out = []
alpha = np.dstack([base, (x * 9).astype(np.uint8)])
save(rgb, "bee/a.jpg", quality=90)
save(rgb.convert("L"), "bee/b.jpeg", quality=90)
save(rgb.convert("CMYK"), "bee/c.JPG", quality=90)
save(rgb, "bee/d.jpg", quality=85, progressive=True)
save(rgb, "ant/a.png")
save(rgb.convert("P", palette=Image.ADAPTIVE, colors=16), "ant/b.png")
save(Image.fromarray(alpha), "ant/c.png")
save(rgb.convert("L"), "ant/deep/d.png")
save(rgb.convert("1"), "ant/e.png")
np.save("tests/data/golden/pictures.npy", np.concatenate(out))
