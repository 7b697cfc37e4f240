#!/bin/sh
# bench.sh and its tables, with programs that print what they were told to: without peers, beside
# them, against a commit.
set -eu
cd "$(dirname "$0")/../.."
command -v git >/dev/null || {
    echo "skipped: no git" >&2
    exit 77
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/tree
mkdir -p "$tree/tests/bench" "$tree/build" "$scratch/bin" "$scratch/peers/pt/bin"
cp tests/bench/bench.sh tests/bench/table.awk "$tree/tests/bench"
printf 'A method.\n\n<!-- what follows is written by ./dev bench -->\n\nold\n' >"$tree/tests/bench/README.md"

# Three runs of 12, 10 and 11 ms, in turns; two ranks take 10.
cat >"$tree/build/bench_train" <<'EOF'
#!/bin/sh
case $1 in
machine) echo "model=machine who=mgpu threads=2 sgemm=200.0 triad=20.00" ;;
write) : >"$3/$2.onnx" ;;
*)
    case $* in *who=ranks) who=ranks ms=10.000 ;; *)
        who=mgpu runs=$(($(cat "$0.runs" 2>/dev/null || echo 0) + 1))
        echo $runs >"$0.runs"
        case $((runs % 3)) in 1) ms=12.000 ;; 2) ms=10.000 ;; *) ms=11.000 ;; esac
        ;;
    esac
    echo "model=$1 who=$who ms=$ms load=0.25 resident=8.0 gflop=1.000 gb=0.100 reorders=2" \
        "arena=1.5 bound=1.2 slowest=matmul_backward:50%,conv:9%"
    ;;
esac
EOF
# Compiled code is faster; other layouts fail.
cat >"$scratch/peers/pt/bin/python" <<'EOF'
#!/bin/sh
case $3 in eager) ms=30.000 ;; compile) ms=20.000 ;; *) echo "no such layout" >&2 && exit 1 ;; esac
echo "model=$2 who=$3 ms=$ms resident=16.0"
EOF
# Makes a program that is twice as slow, and counts.
cat >"$scratch/bin/cmake" <<'EOF'
#!/bin/sh
[ "$1" = --build ] || exit 0
mkdir -p build
echo built >>build/times
printf '#!/bin/sh\necho "model=$1 who=mgpu ms=20.000 resident=4.0"\n' >build/bench_train
chmod +x build/bench_train
EOF
chmod +x "$tree/build/bench_train" "$scratch/peers/pt/bin/python" "$scratch/bin/cmake"

cd "$tree"
printf 'build\n' >.gitignore
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null PATH="$scratch/bin:$PATH"
git init --quiet .
git add .
git -c user.name=test -c user.email=test@test commit --quiet --message first

bench() { # what is expected of its status, its arguments
    expected=$1 status=0
    shift
    tests/bench/bench.sh "$@" >"$scratch/out" 2>"$scratch/log" || status=$?
    [ $status = "$expected" ] || fail "status $status of '$*'"
}

fail() {
    echo "bench/test.sh: $*" >&2
    cat "$scratch/out" "$scratch/log" >&2
    exit 1
}

has() { # file, lines that it must have
    file=$1
    shift
    for line in "$@"; do
        grep -qxF -- "$line" "$file" || fail "not in ${file##*/}: $line"
    done
}

# Alone: the least of three runs, what is not there as "-"; the page waits for all networks.
bench 0 mlp
has "$scratch/out" "| mlp | 10.00 | - | - | - | - | - | - |" "| mlp | 8 | - | - | - | - | - | - |" \
    "| mlp | 100.0 | 200 | 50 % | 10.00 | 20.0 | 50 % | 1.5 | 1.2 | 2 | matmul_backward 50%, conv 9% |" \
    "| mlp | 10.00 | 10.00 | 1.00x | 0.25 |"
git diff --quiet || fail "README.md was written after one network"
bench 0
has tests/bench/README.md "A method." "- $(date +%F), commit $(git describe --always), 3 x 10 s: mlp fmnist resnet20\
 mobilenetv2 resnet50 vgg16 unet lstm2 bert gpt2" "| gpt2 | 10.00 | - | - | - | - | - | - |"
grep -qx old tests/bench/README.md && fail "the old table is still there"

# Beside peers: the fastest one counts for both ratios; one that fails is said.
PEERS=$scratch/peers bench 0 --rounds 3 fmnist mlp
has "$scratch/out" "| fmnist | 10.00 | 30.00 | - | 20.00 | - | - | 2.00x |" \
    "| mlp | 8 | 16 | - | 16 | - | - | 0.50x |"
grep -q 'did not run: .*channels_last' "$scratch/log" || fail "a peer that fails is not said"
grep -q dirty build/bench/mlp.when && fail "the new table counts as a change of the program"
echo >>.gitignore
bench 0 mlp
grep -q dirty build/bench/mlp.when || fail "a change is not said"
git checkout --quiet .gitignore

# Against a commit, which stays built where it is said.
commit=$(git rev-parse --short HEAD)
for i in 1 2; do
    bench 0 --rounds 2 --against HEAD mlp
    has "$scratch/out" "| network | ms, HEAD | ms, now | faster | MiB, HEAD | MiB, now | memory |"
    grep -q '^| mlp | 20.00 | 1[012].00 | [12].[0-9]*x | 4 | 8 | 2.00x |$' "$scratch/out" || fail "--against"
    has "$scratch/log" "bench: building $commit in build/against/$commit, to time it beside this tree"
    [ "$(wc -l <"build/against/$commit/build/times")" = $i ] || fail "the tree was made anew"
done

bench 2 lenet
bench 2 --against none mlp
bench 2 --rounds
