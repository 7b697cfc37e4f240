#!/bin/sh
# pack and run without a GPU: what is packed is whole, what is not so is named; without one run says
# so; its parts on the one that there is not (tests/cuda/double.h), one that fails and one that takes
# too long among them.
set -eu
cd "$(dirname "$0")/../.."
build=$1 run=$PWD/tests/device/run
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PACK="$build/device/mgpu.tar.gz"

fail() {
    echo "device/test.sh: $*" >&2
    cat "$scratch"/log "$scratch"/out/* >&2
    exit 1
}

status_of() { # [folder]: what run ends with
    status=0
    "$run" "${1:-$scratch/out}" >"$scratch/log" 2>&1 || status=$?
}

refused() { # text command...: with status 2 before anything begins, a line naming what is wrong
    text=$1 status=0
    shift
    "$@" >"$scratch/log" 2>&1 || status=$?
    [ "$status $(wc -l <"$scratch/log")" = "2 1" ] || fail "status $status: $*"
    grep -q "^run: .*$text" "$scratch/log" || fail "nothing of '$text': $*"
    [ ! -e "$scratch/out" ] || fail "something began: $*"
}

command -v cc >/dev/null || {
    echo "skipped: no C compiler" >&2
    exit 77
}
tests/device/pack "$build"

"$run" --help >"$scratch/log" || fail "--help"
grep -q '^usage: tests/device/run \[FOLDER\]' "$scratch/log" || fail "--help"
refused "what is --hlep" "$run" --hlep
refused "one folder for results, not 2" "$run" "$scratch/out" more
refused "MINUTES is 'soon'" env MINUTES=soon "$run" "$scratch/out"
refused "what is the part 'cases:f8:1'" env PARTS="launches cases:f8:1" "$run" "$scratch/out"
refused "no file $scratch/none" env PACK="$scratch/none" "$run" "$scratch/out"
: >"$scratch/empty.tar.gz"
refused "empty.tar.gz cannot be unpacked" env PACK="$scratch/empty.tar.gz" "$run" "$scratch/out"
head -c 100000 "$PACK" >"$scratch/cut.tar.gz"
refused "cut.tar.gz cannot be unpacked" env PACK="$scratch/cut.tar.gz" "$run" "$scratch/out"
mkdir "$scratch/part"
tar -C "$scratch/part" -xzf "$PACK"
printf 'no program' >"$scratch/part/bin/bench_gpu"
cd "$scratch" # paths are those of who calls
tar -C part -czf part.tar.gz .
refused "the programs of $scratch/part.tar.gz do not run here" env PACK=part.tar.gz "$run" out
rm part/bin/case-run
tar -C part -czf part.tar.gz .
refused "part.tar.gz is not whole, it has no bin/case-run" env PACK=part.tar.gz "$run" out
cd - >/dev/null

if ! "$build/bench_gpu" check 2>/dev/null; then
    status_of
    [ $status = 77 ] && grep -q '^run: .*no NVIDIA driver' "$scratch/log" || fail "no GPU: status $status"
fi

export MGPU_CHECK=double NETWORKS="mlp bert" SECONDS_EACH=0 ONLY=torch-mlp-ts OVERLAP=mlp
PARTS="properties launches cases:f32:1 cases:bf16:2 networks:bf16:first overlap sanitizer" status_of
[ $status = 1 ] || fail "status $status, though some parts fail"
cd "$scratch/out"
grep -q '^properties: not all is well' summary.txt && grep -q '^    .*no cuDNN' summary.txt || fail "properties"
grep -q '^networks:bf16:first: not all is well' summary.txt || fail "a network that is too large"
grep -q '^    ENDED bert in bf16: status 1: .* MiB' summary.txt || fail "what it said"
[ "$(grep -c ': done,' summary.txt)" = 5 ] || fail "the others are not done"
grep -q 'what=graph kernels=1000 us_a_kernel=' machine.txt || fail "launches"
[ "$(grep -c '^PASS torch-mlp-ts cuda:0' cases.txt)" = 2 ] || fail "cases"
grep -q '^model=mlp who=first .* precision=bf16 .* tflops=' networks.txt || fail "a network"
grep -q '"inputs go up"' overlap.json && grep -q '"step"' overlap.json || fail "overlap"
[ "$(find . -type f | wc -l)" -le 8 ] || fail "too many files"
cd - >/dev/null
cd "$scratch"
SECONDS_OF_PART=1 PARTS="networks:f32:first launches" status_of out
[ $status = 1 ] && grep -q '^networks:f32:first: not done in time' "$scratch/out/summary.txt" ||
    fail "limits of time"
