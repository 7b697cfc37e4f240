#!/bin/sh
# operators.sh BUILD [--write]: README.md's list of operators is that of mgpu-partition --list-ops.
# With --write it is put there.
set -eu
begin='<!-- operators: tests/operators.sh BUILD --write -->' end='<!-- end of operators -->'

names() { # what the gradient column says: names, with the first opset where it is not 1
    "$1/mgpu-partition" --list-ops | awk -v gradient="$2" '
        /^ONNX operator/ {on = 1; next}
        /^$/ {on = 0}
        on && $4 == gradient {
            since = $2
            sub(/-.*/, "", since)
            printf "%s%s%s", n++ ? ", " : "", $1, since == 1 ? "" : " " since
        }
        END {print "."}'
}

block() {
    echo "$begin"
    echo "With a gradient: $(names "$1" yes)" | fold -s -w 100 | sed 's/ *$//'
    echo
    echo "Without, since it is zero or there is none: $(names "$1" -)" | fold -s -w 100 | sed 's/ *$//'
    echo "$end"
}

work=$(mktemp)
trap 'rm -f "$work"' EXIT
block "$1" >"$work"
if [ "${2:-}" = --write ]; then
    sed -i -e "/^<!-- operators:/,/^<!-- end of operators/{/^<!-- end of operators/r $work
d}" README.md
    exit
fi
sed -n '/^<!-- operators:/,/^<!-- end of operators/p' README.md | diff - "$work" || {
    echo "README.md's operators are not those of --list-ops: tests/operators.sh $1 --write" >&2
    exit 1
}
