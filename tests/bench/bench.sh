#!/bin/sh
# Times training steps; README.md beside this file says how. ./dev bench --help
set -eu
cd "$(dirname "$0")/../.."
all="mlp fmnist resnet20 mobilenetv2 resnet50 vgg16 unet lstm2 bert gpt2"
images="fmnist resnet20 mobilenetv2 resnet50 vgg16 unet"
lines=build/bench networks='' against='' rounds=3 seconds=10 threads=2
export OMP_WAIT_POLICY=passive

usage() {
    cat <<TEXT
usage: [PEERS=DIR] ./dev bench [--rounds N] [--seconds S] [--against COMMIT] [NETWORK...]
  NETWORK     of: $all (default: all)
  PEERS=DIR   a folder with pt/bin/python (PyTorch) or ort/bin/python (ONNX Runtime Training 1.19.2);
              without it only mgpu is timed
  --rounds    runs of each program, which take turns (default $rounds); --seconds each (default $seconds)
  --against   times mgpu as of COMMIT, which is built once in build/against, in place of the peers
The table is written to tests/bench/README.md once all networks were timed since build/bench was made.
TEXT
}

bad() {
    echo "bench: $*" >&2
    exit 2
}

python() { # mode: its Python, or nothing
    folder=pt
    [ "$1" = onnxruntime ] && folder=ort
    [ -x "${PEERS:-}/$folder/bin/python" ] && echo "$PEERS/$folder/bin/python"
}

# One line of a run goes to a file of that name. A peer that cannot train a network is left out.
run() { # file command...
    file=$1
    shift
    if "$@" >"$scratch/line" 2>"$scratch/log"; then
        tee -a "$lines/$file" <"$scratch/line"
    else
        echo "bench: did not run: $*" >&2
        tail -n 1 "$scratch/log" >&2
    fi
}

time_peers() { # network
    modes="eager compile onnxruntime"
    case " $images " in *" $1 "*) modes="eager channels_last compile compile_channels_last onnxruntime" ;; esac
    for mode in $modes; do
        python=$(python "$mode") || continue
        run "$1" "$python" tests/bench/peers.py "$1" "$mode" "$scratch" "$seconds" $threads
    done
}

built() { # of which commit; the table that stands in it makes no other
    git diff --quiet HEAD -- . ':!tests/bench/README.md' && changed='' || changed=-dirty
    echo "$(git describe --always)$changed"
}

time_network() { # network
    rm -f "$lines/$1"
    echo "$(date +%F), commit $(built), $rounds x $seconds s" >"$lines/$1.when"
    build/bench_train write "$1" "$scratch"
    for round in $(seq "$rounds"); do
        run "$1" build/bench_train machine threads=$threads
        run "$1" build/bench_train "$1" seconds="$seconds" threads=$threads
        run "$1" build/bench_train "$1" seconds="$seconds" threads=1 devices=cpu:0,cpu:1 who=ranks
        [ -z "${PEERS:-}" ] || time_peers "$1"
    done
    rm -f "$scratch/$1".*
}

files_of() { # network...: their lines
    for name in "$@"; do
        echo "$lines/$name"
    done
}

when_timed() { # a line for each day and commit: which networks
    sort -u "$lines"/*.when | while read -r when; do
        echo "- $when:$(for name in $all; do
            grep -qxF "$when" "$lines/$name.when" && printf ' %s' "$name"
        done)"
    done
}

write_table() {
    for name in $all; do
        [ -s "$lines/$name" ] && [ -s "$lines/$name.when" ] || return 0
    done
    # shellcheck disable=SC2046
    awk -f tests/bench/table.awk $(files_of $all) >"$scratch/table"
    sed '/^<!-- what .* -->$/q' tests/bench/README.md >"$scratch/readme"
    {
        printf '\n%s, %s threads.\n\n' "$(sed -n 's/^model name[^:]*: //p;T;q' /proc/cpuinfo)" $threads
        when_timed
        echo
        cat "$scratch/table"
    } >>"$scratch/readme"
    cp "$scratch/readme" tests/bench/README.md
}

compare() {
    commit=$(git rev-parse --short --verify --quiet "$against^{commit}") || bad "no commit $against"
    tree=build/against/$commit # it stays, and what is built of it
    git worktree prune
    [ -d "$tree" ] || git worktree add --quiet --detach "$tree" "$commit"
    echo "bench: building $commit in $tree, to time it beside this tree" >&2
    (cd "$tree" && cmake --preset default >/dev/null && cmake --build build --target bench_train >&2)
    for name in $networks; do
        rm -f "$lines/$name.against"
        for round in $(seq "$rounds"); do
            run "$name.against" build/bench_train "$name" seconds="$seconds" threads=$threads
            "$tree"/build/bench_train "$name" seconds="$seconds" threads=$threads >"$scratch/before"
            sed 's/ who=[a-z]*/ who=before/' "$scratch/before" | tee -a "$lines/$name.against"
        done
    done
    # shellcheck disable=SC2046
    awk -v against="$against" -f tests/bench/table.awk $(files_of $networks | sed 's/$/.against/')
}

while [ $# -gt 0 ]; do
    case $1 in
    --rounds | --seconds | --against)
        [ $# -gt 1 ] || bad "$1 wants a value"
        eval "${1#--}=\$2"
        shift
        ;;
    --help) usage && exit 0 ;;
    *)
        case " $all " in *" $1 "*) networks="$networks $1" ;; *) bad "what is '$1'? (--help)" ;; esac
        ;;
    esac
    shift
done
networks=${networks:-$all}
mkdir -p "$lines"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM
if [ -n "$against" ]; then
    compare
    exit
fi
for name in $networks; do
    time_network "$name"
done
# shellcheck disable=SC2046,SC2086
awk -f tests/bench/table.awk $(files_of $networks)
write_table
