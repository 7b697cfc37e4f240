#!/bin/sh
# Predicts and measures all models (build/bench_predictions, about nine minutes, on a quiet
# machine) and writes the table into predictions.md beside this file, once it is whole.
set -eu
cd "$(dirname "$0")/../.."
page=tests/bench/predictions.md
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM
when="$(date +%F), commit $(git describe --always --dirty)"
build/bench_predictions >"$scratch/table"
sed '/^<!-- what .* -->$/q' "$page" >"$scratch/page"
{
    printf '\n%s; %s, %s cores.\n\n' "$when" \
        "$(sed -n 's/^model name[^:]*: //p;T;q' /proc/cpuinfo)" "$(nproc)"
    sed 's/^./    &/' "$scratch/table"
} >>"$scratch/page"
cp "$scratch/page" "$page"
cat "$page"
