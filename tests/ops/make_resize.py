"""Numbers of tests/ops/test_resize.c, from ONNX's reference implementation and from PyTorch.

    python3 tests/ops/make_resize.py > tests/ops/golden_resize.h
"""

import numpy as np
import torch
from onnx.reference.ops import op_resize

import golden


def values(shape):
    """Numbers that look random and can be written in few digits."""
    k = np.arange(int(np.prod(shape)), dtype=np.float64)
    return np.round(np.sin(k * 1.7 + len(shape)) * 4, 2).reshape(shape)


def field(name, value):
    return f".{name} = {value}"


def emit(name, x, y, scale, **a):
    roi = a.get("roi")
    r = x.ndim
    parts = [
        field("mode", "MGPU_RESIZE_" + a["mode"].upper()),
        field("coordinates", "MGPU_RESIZE_" + a["coordinates"].upper()),
        field("nearest", "MGPU_NEAREST_" + a.get("nearest", "round_prefer_floor").upper()),
        field("exclude_outside", golden.truth(a.get("exclude_outside"))),
        field("antialias", golden.truth(a.get("antialias"))),
        field("cubic_a", a.get("cubic_a", -0.75)),
        field("extrapolation", float(a.get("extrapolation", 0))),
        field("scale", "{" + ", ".join(repr(float(s)) for s in scale) + "}"),
        field("roi_start", "{" + ", ".join(str(float(v)) for v in (roi[:r] if roi else [0] * r)) + "}"),
        field("roi_end", "{" + ", ".join(str(float(v)) for v in (roi[r:] if roi else [1] * r)) + "}"),
        field("rank", r),
    ]
    print(f'{{.name = "{name}", .attrs = {{' + ", ".join(parts) + "},")
    print(f".in = {golden.ints(x.shape)}, .out = {golden.ints(y.shape)},")
    print(f".x = {golden.numbers(x.ravel())},")
    print(f".y = {golden.numbers(y.ravel())}}},")


def coefficients(a):
    """The reference's weights, in double (its evaluator makes cubic ones in float)."""
    if a["mode"] == "nearest":
        return lambda ratio, scale: op_resize._nearest_coeffs(ratio, mode=a.get("nearest", "round_prefer_floor"))
    if a["mode"] == "linear":
        return op_resize._linear_coeffs_antialias if a.get("antialias") else op_resize._linear_coeffs
    make = op_resize._cubic_coeffs_antialias if a.get("antialias") else op_resize._cubic_coeffs
    return lambda ratio, scale: make(ratio, scale, A=a.get("cubic_a", -0.75))


def reference(name, shape, scales=None, sizes=None, **a):
    x = values(shape)
    y = op_resize._interpolate_nd(
        x,
        coefficients(a),
        output_size=sizes,
        scale_factors=None if scales is None else list(scales),
        roi=a.get("roi"),
        exclude_outside=bool(a.get("exclude_outside")),
        coordinate_transformation_mode=a["coordinates"],
        extrapolation_value=float(a.get("extrapolation", 0)),
    )
    emit(name, x, y, scales if scales is not None else np.array(sizes) / np.array(shape), **a)


def torch_2d(name, shape, size, a, **options):
    """What PyTorch computes for the attributes that its exporter writes."""
    x = values(shape)
    t = torch.from_numpy(x)[None, None]
    y = torch.nn.functional.interpolate(t, size=size, **options)[0, 0].numpy()
    emit("PyTorch: " + name, x, y, np.array(size) / np.array(shape), **a)


golden.begin("make_resize.py", "Resized tensors of tests/ops/test_resize.c.")
print("static const struct golden golden[] = {")
for mode in ("linear", "cubic"):
    for coordinates in ("half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric"):
        reference(f"{mode} {coordinates} up", (3, 4), scales=(2, 1.5), mode=mode, coordinates=coordinates)
        reference(f"{mode} {coordinates} down", (4, 5), scales=(0.6, 0.8), mode=mode, coordinates=coordinates)
    reference(f"{mode} pytorch_half_pixel sizes", (4, 3), sizes=(3, 7), mode=mode, coordinates="pytorch_half_pixel")
    reference(f"{mode} antialias down", (7, 8), sizes=(3, 5), mode=mode, coordinates="half_pixel", antialias=1)
    reference(f"{mode} antialias excluding", (6, 5), sizes=(2, 8), mode=mode, coordinates="half_pixel",
              antialias=1, exclude_outside=1)
reference("cubic excluding, a = -0.5", (4, 3), scales=(2, 0.7), mode="cubic", coordinates="half_pixel",
          exclude_outside=1, cubic_a=-0.5)
reference("linear of three axes", (2, 3, 2), scales=(1.5, 0.7, 2), mode="linear", coordinates="half_pixel")
for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    for coordinates in ("half_pixel", "align_corners", "asymmetric"):
        reference(f"nearest {nearest} {coordinates}", (4, 3), sizes=(7, 2), mode="nearest",
                  coordinates=coordinates, nearest=nearest)
for mode in ("nearest", "linear", "cubic"):
    reference(f"{mode} crop", (4, 5), sizes=(3, 4), mode=mode, coordinates="tf_crop_and_resize",
              roi=[0.4, 0.6, 0.6, 0.8])
    reference(f"{mode} crop with extrapolation", (4, 5), sizes=(3, 4), mode=mode, coordinates="tf_crop_and_resize",
              roi=[0.4, 0.6, 1.2, 1.7], extrapolation=10)
torch_2d("bilinear", (4, 5), (7, 3), {"mode": "linear", "coordinates": "pytorch_half_pixel"}, mode="bilinear")
torch_2d("bilinear to one column", (4, 4), (3, 1), {"mode": "linear", "coordinates": "align_corners"},
         mode="bilinear", align_corners=True)
torch_2d("bicubic", (4, 5), (6, 3), {"mode": "cubic", "coordinates": "pytorch_half_pixel"}, mode="bicubic")
torch_2d("bilinear antialias", (7, 6), (3, 4),
         {"mode": "linear", "coordinates": "half_pixel", "antialias": 1, "exclude_outside": 1},
         mode="bilinear", antialias=True)
torch_2d("bicubic antialias", (9, 6), (4, 3),
         {"mode": "cubic", "coordinates": "half_pixel", "antialias": 1, "exclude_outside": 1, "cubic_a": -0.5},
         mode="bicubic", antialias=True)
torch_2d("nearest", (4, 5), (7, 3), {"mode": "nearest", "coordinates": "asymmetric", "nearest": "floor"}, mode="nearest")
torch_2d("nearest-exact", (4, 5), (7, 3), {"mode": "nearest", "coordinates": "half_pixel", "nearest": "round_prefer_ceil"},
         mode="nearest-exact")
print("};")
