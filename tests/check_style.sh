#!/bin/sh
# House rules that the compiler does not know.
set -eu
cd "$(dirname "$0")/.."
ours="importer partitioner runtime exporter"
bad=0

complain() { # what, where it was found (nothing: all is well)
    [ -z "$2" ] && return
    printf '%s:\n%s\n' "$1" "$2" >&2
    bad=1
}

search() { # pattern folder...: lines of code, comments left out
    pattern=$1
    shift
    grep -rnE --include='*.[ch]' "$pattern" "$@" | grep -vE '^[^:]*:[0-9]+: *(/?\*|//)' || true
}

complain "unsafe string function" "$(search '\b(sprintf|strcpy|strcat|gets)\(' $ours tests)"
complain "printing or exiting outside the programs" "$(
    search '(^|[^a-z_])(printf|puts|exit|_exit)\(' $ours |
        grep -vE '^(runtime/cli/|[a-z]+/mgpu_(train|partition|convert)\.c:)' |
        grep -v '^runtime/data/h5_server\.c:' || true)"
complain "HDF5 outside runtime/data/h5.h" "$(search '#include <hdf5' $ours | grep -v '^runtime/data/h5\.h:' || true)"
complain "oneDNN outside runtime/cpu" "$(search '#include .*dnnl' $ours | grep -v '^runtime/cpu/' || true)"
complain "CUDA outside runtime/cuda" "$(
    search '#include <(cuda|nvrtc|cublas|cudnn|nccl)' $ours | grep -v '^runtime/cuda/' || true)"
complain "protobuf-c outside importer and exporter" "$(
    search '#include .*(protobuf-c|pb-c)' runtime partitioner)"
complain "files over 700 lines" "$(
    find $ours -name '*.[ch]' -exec wc -l {} + | awk '$2 != "total" && $1 > 700')"

# Arrows: what the files of a folder may include. A folder that is not named may include all.
arrows() { # folder, what it may include
    complain "an arrow points the wrong way" "$(
        search '#include "' "$1" | grep -vE "#include \"($2)|^[a-z]+/mgpu_[a-z]+\.c:" || true)"
}
core='runtime/(base|graph|ops)/'
arrows runtime/base 'runtime/base/|runtime/mgpu_status\.h'
arrows runtime/graph "$core"
arrows runtime/ops "$core"
arrows runtime/ref "$core|runtime/ref/|runtime/backend\.h"
arrows runtime/cpu "$core|runtime/cpu/|runtime/ref/|runtime/backend\.h"
arrows runtime/comm 'runtime/(base|comm)/'
arrows runtime/compile "$core|runtime/(comm|compile)/|runtime/backend\.h"
arrows runtime/executor "$core|runtime/(comm|compile|executor)/|runtime/(engine|cuda/cuda)\.h"
arrows runtime/emit "$core|runtime/emit/"
arrows runtime/cuda "$core|runtime/(comm|compile|emit|cuda)/|runtime/(backend|engine)\.h"
arrows runtime/data 'runtime/(base|data)/'
arrows runtime/train "$core|runtime/(data|train)/"
arrows runtime/callbacks 'runtime/(base|callbacks)/'
arrows runtime/cli 'runtime/(base|cli)/|runtime/mgpu\.h'
arrows importer "$core|importer/"
arrows exporter "runtime/base/|importer/|exporter/|runtime/data/"
exit $bad
