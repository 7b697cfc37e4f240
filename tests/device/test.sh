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
mkdir "$scratch/part" "$scratch/whole"
tar -C "$scratch/whole" -xzf "$PACK"
printf 'not to be used' >"$scratch/whole/runtime/libstdc++.so.6" # this machine has its own
tar -C "$scratch/whole" -c . | gzip -1 >"$scratch/whole.tar.gz"
mv "$scratch"/whole/* "$scratch/part/"
rm "$scratch"/part/lib/*
cd "$scratch" # paths are those of who calls
repack() {
    tar -C part -czf part.tar.gz .
}
printf 'no program' >part/bin/bench_gpu
repack
refused "the programs of $scratch/part.tar.gz do not run here" env PACK=part.tar.gz "$run" out
chmod -x part/bin/bench_gpu # as where nothing may run
repack
refused "TMPDIR=FOLDER takes another place" env PACK=part.tar.gz "$run" out
echo 99.5 >part/glibc
repack
refused "need glibc 99.5 or newer" env PACK=part.tar.gz "$run" out
rm part/bin/case-run
repack
refused "part.tar.gz is not whole, it has no bin/case-run" env PACK=part.tar.gz "$run" out
cd - >/dev/null

if ! "$build/bench_gpu" check 2>/dev/null; then
    status_of
    [ $status = 77 ] && grep -q '^run: .*no NVIDIA driver' "$scratch/log" || fail "no GPU: status $status"
fi

mkdir -p "$scratch/a b" "$scratch/out" # a run before has left results
printf '== cases:f32:1, then\nof then\n== cases:f16:1, then\nkept\n' >"$scratch/out/cases.txt"
printf 'cases:f32:1: done, 99 s\npeers: not all is well, 99 s\n    kept\n' >"$scratch/out/summary.txt"
export MGPU_CHECK=double NETWORKS="mlp none" SECONDS_EACH=0 ONLY=torch-mlp-ts
TMPDIR="$scratch/a b" PACK="$scratch/whole.tar.gz" \
    PARTS="properties launches cases:f32:1 cases:bf16:2 networks:bf16:first sanitizer" status_of
[ $status = 1 ] || fail "status $status, though some parts fail"
cd "$scratch/out"
grep -q '^properties: not all is well' summary.txt && grep -q '^    .*no cuDNN' summary.txt || fail "properties"
grep -q '^networks:bf16:first: not all is well' summary.txt || fail "a network that there is not"
grep -q '^    ENDED none in bf16: status 2: usage' summary.txt || fail "what it said"
[ "$(grep -c ': done,' summary.txt)" = 4 ] || fail "the others are not done"
grep -q 'what=graph kernels=1000 us_a_kernel=' machine.txt || fail "launches"
[ "$(grep -c '^PASS torch-mlp-ts cuda:0' cases.txt)" = 2 ] || fail "cases"
grep -q '^model=mlp who=first .* precision=bf16 .* tflops=' networks.txt || fail "a network"
grep -q '^kept' cases.txt && grep -q '^peers: not' summary.txt && grep -q '^    kept' summary.txt ||
    fail "results of parts that did not run"
[ "$(grep -c 'cases:f32:1' summary.txt)" = 1 ] && ! grep -q 'of then' cases.txt || fail "results of before"
[ "$(find . -type f | wc -l)" -le 8 ] || fail "too many files"
cd - >/dev/null

# An older libstdc++ than the programs want: the pack's is taken.
cd "$scratch"
mkdir older
echo 'int one;' >older/one.c
echo 'GLIBCXX_3.4 { global: one; };' >older/versions
cc -shared -fPIC -nostdlib -Wl,-soname,libstdc++.so.6,--version-script,older/versions -o older/libstdc++.so.6 older/one.c
LD_LIBRARY_PATH="$scratch/older" SECONDS_OF_PART=3 SECONDS_EACH=60 PARTS="networks:f32:first launches" status_of out
cd out
[ $status = 1 ] && grep -q '^launches: done' summary.txt || fail "an older libstdc++"
grep -q '^    ENDED mlp in f32: after [123] s' summary.txt || fail "limits of time"
grep -q '^    ENDED none in f32: not begun, the time is over' summary.txt || fail "what was not begun"
grep -q '^PASS torch-mlp-ts' cases.txt || fail "results of parts that did not run"

# A signal ends it at once, and is told of the part that ran.
rm -f networks.txt
SECONDS_EACH=60 PARTS="networks:f32:first launches" PACK="$scratch/whole.tar.gz" TMPDIR="$scratch" \
    "$run" "$scratch/out" >"$scratch/log" 2>&1 &
running=$!
runs() {
    pgrep -f "$scratch/.*/bench_train mlp" >/dev/null
}
while kill -0 $running 2>/dev/null && ! runs; do
    sleep 0.1
done
kill $running
! wait $running || fail "a signal"
grep -q '^networks:f32:first: interrupted' summary.txt && grep -q '^launches: done' summary.txt || fail "a signal"
[ "$(grep -c '^networks:f32:first: ' summary.txt)" = 1 ] || fail "a part is told twice"
! runs || fail "what ran goes on"

# How many programs the GPU takes at a time.
mkdir "$scratch/smi"
printf '#!/bin/sh\necho "$SAYS"\n' >"$scratch/smi/nvidia-smi"
chmod +x "$scratch/smi/nvidia-smi"
while IFS=: read -r says want; do
    got=$(PATH="$scratch/smi:$PATH" SAYS=$says jobs=8 "$run" --part contexts)
    [ "$got" = "$want" ] || fail "nvidia-smi: '$says': '$got', not '$want'"
done <<'END'
Default, 80000:8
Default, 3000:2
Default, 500:1
Exclusive_Process, 80000:1
Default, [N/A]:
END

# A part that fails leaves the JSON of a run before.
export here="$scratch/told" out="$scratch/out" own_libraries=/ no_cache=/dev/null
mkdir -p "$here/bin"
printf '#!/bin/sh\necho "$1 of $2, ${ENDS:-0}"\nexit ${ENDS:-0}\n' >"$here/bin/bench_gpu"
chmod +x "$here/bin/bench_gpu"
"$run" --part overlap && ! ENDS=1 "$run" --part overlap || fail "overlap"
[ "$(cat overlap.json)" = "overlap of resnet50, 0" ] || fail "the JSON of before"
