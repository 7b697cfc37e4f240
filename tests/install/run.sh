#!/bin/sh
# run.sh BUILD CC: installs the build into an empty folder, compiles train.c against that, by
# mgpu.pc alone, and trains.
set -eu
build=$1 cc=$2
to=$(mktemp -d)
trap 'rm -rf "$to"' EXIT
cmake --install "$build" --prefix "$to" >/dev/null
export PKG_CONFIG_PATH="$(dirname "$(find "$to" -name mgpu.pc)")"
flags=$(pkg-config --define-variable=prefix="$to" --cflags --libs mgpu)
# shellcheck disable=SC2086
"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror tests/install/train.c -o "$to/train" $flags
"$to/train" tests/cases/torch-mlp-ts/model.onnx tests/cases/torch-mlp-ts/golden.h5 "$to/out.onnx"
"$to/bin/mgpu-train" "$to/out.onnx" --report >/dev/null
