#!/bin/sh
# pack and run without a GPU: what is packed is whole; without one run says so; its parts on the one
# that there is not (tests/cuda/double.h), one that fails and one that takes too long among them.
set -eu
cd "$(dirname "$0")/../.."
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PACK="$build/device/mgpu.tar.gz"

fail() {
    echo "device/test.sh: $*" >&2
    cat "$scratch"/log "$scratch"/out/* >&2
    exit 1
}

status_of() { # what run ends with
    status=0
    tests/device/run "$scratch/out" >"$scratch/log" 2>&1 || status=$?
}

command -v cc >/dev/null || {
    echo "skipped: no C compiler" >&2
    exit 77
}
tests/device/pack "$build"
if ! "$build/bench_gpu" check 2>/dev/null; then
    status_of
    [ $status = 77 ] && grep -q '^run: .*no NVIDIA driver' "$scratch/log" || fail "no GPU: status $status"
fi

export MGPU_CHECK=double NETWORKS=fmnist PRECISIONS="f32 f7" SECONDS_EACH=0 ONLY=torch-mlp-ts OVERLAP=mlp
PARTS="properties launches cases overlap" status_of
[ $status = 1 ] || fail "status $status, though one part fails"
cd "$scratch/out"
grep -q '^properties: not all is well' summary.txt || fail "properties"
[ "$(grep -c ': done,' summary.txt)" = 4 ] || fail "the others are not done"
grep -q 'what=graph kernels=1000 us_a_kernel=' launches.txt || fail "launches"
[ "$(grep -c '^PASS torch-mlp-ts cuda:0' cases.txt)" = 2 ] || fail "cases"
grep -q '^SKIPPED f7' cases.txt || fail "a precision that does not exist"
grep -q '"inputs go up"' overlap.json && grep -q '"step"' overlap.json || fail "overlap"
cd - >/dev/null
SECONDS_OF_PART=1 PARTS=networks status_of
[ $status = 1 ] && grep -q '^networks: not done in time' "$scratch/out/summary.txt" || fail "limits of time"
