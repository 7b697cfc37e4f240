#!/bin/sh
# House rules that the compiler does not know.
set -eu
cd "$(dirname "$0")/.."
bad=0
complain() {
    echo "$1" >&2
    bad=1
}
# Only mains and the command line layer print or exit; unsafe string functions are banned.
found=$(git grep -nE '\b(sprintf|strcpy|strcat|gets)\(' -- '*.c' '*.h' || true)
[ -z "$found" ] || complain "unsafe string function:
$found"
found=$(git grep -nE '(^|[^a-z_])(printf|puts|exit|_exit)\(' -- importer runtime exporter partitioner \
    ':!*mgpu_train.c' ':!*mgpu_partition.c' ':!*mgpu_convert.c' ':!runtime/cli/*' || true)
[ -z "$found" ] || complain "printing or exiting outside the programs:
$found"
# Arrows: graph and ops know nothing of the rest; foreign libraries stay in their folders.
found=$(git grep -nE '#include "(importer|exporter|partitioner|runtime/(cpu|ref|comm|compile|executor|data|train|facade))/' \
    -- runtime/graph runtime/ops runtime/base || true)
[ -z "$found" ] || complain "an arrow points the wrong way:
$found"
found=$(git grep -nE '#include <dnnl|dnnl\.h' -- '*.c' '*.h' ':!runtime/cpu/*' || true)
[ -z "$found" ] || complain "oneDNN outside runtime/cpu:
$found"
found=$(git grep -nE '#include <hdf5' -- importer exporter runtime ':!exporter/*' ':!runtime/data/*' || true)
[ -z "$found" ] || complain "HDF5 outside exporter and runtime/data:
$found"
long=$(git ls-files 'importer/*.[ch]' 'runtime/*.[ch]' 'exporter/*.[ch]' 'partitioner/*.[ch]' | xargs wc -l |
    awk '$2 != "total" && $1 > 700 {print $1, $2}')
[ -z "$long" ] || complain "files over 700 lines:
$long"
exit $bad
