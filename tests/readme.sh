#!/bin/sh
# readme.sh BUILD DATA: every command of README.md, in order, in a folder that holds what they name.
set -eu
build=$1 data=$2
[ -e "$data" ] || {
    echo "skipped: no $data (Debian's dataset-fashion-mnist)"
    exit 77
}
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk '/^```sh/ {on = 1; next} /^```/ {on = 0} on' README.md >"$work/commands"
[ "$(grep -c '^build/mgpu-train' "$work/commands")" -ge 10 ]
cd "$work"
ln -s "$build" build
ln -s "$source/tests" tests
# The demo's result, in short.
build/mgpu-train tests/demo/fmnist.onnx --data "input=$data/train-images-idx3-ubyte.gz" \
    --data "label=$data/train-labels-idx1-ubyte.gz" --scale input=1/255 --loss cross_entropy \
    --steps 1 --save trained.onnx --quiet
sh -eux ./commands
