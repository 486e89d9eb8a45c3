#!/usr/bin/env bash
# Every public function is called with bad input in one of tests/*/test_bad_input*.c: its name must occur there, or come
# from a table that such a test includes: elementwise.def (test_bad_input_elementwise.c), ops.def
# (test_bad_input_cases.c, by way of the registry).
set -euo pipefail
cd "$(dirname "$0")/../.."

# A declaration begins with TARN_API; its name precedes the first parenthesis. Functions behind macros end in _sized.
names() {
    cat include/tarn/*.h | tr '\n' ' ' | grep -oE 'TARN_API [^;(]*\(' | grep -oE 'tarn_[a-z0-9_]+ *\(' |
        tr -d ' (' | sort -u
}

# Names of the tables' functions, one per line.
by_table() {
    grep -q '#include "base/kernel/elementwise.def"' tests/ops/test_bad_input_elementwise.c
    grep -q 'tarn__op_row_at' tests/ops/test_bad_input_cases.c
    sed -nE 's/^(UNARY|BINARY|COMPARE)\( *(\w+),.*/tarn_\2/p' src/base/kernel/elementwise.def
    sed -nE 's/^(UNARY|BINARY)\( *(\w+),.*/tarn_\2_inplace/p' src/base/kernel/elementwise.def
    sed -nE 's/^OP\( *(\w+),.*/tarn_\1/p' src/ops/ops.def | grep -vx tarn_linear # which makes a layer
}

count=0 missing=0
listed=$(by_table)
for name in $(names); do
    count=$((count + 1))
    if ! grep -qE "\b${name}\b" tests/*/test_bad_input*.c && ! grep -qx "$name" <<< "$listed"; then
        echo "no tests/*/test_bad_input*.c calls ${name}()" >&2
        missing=$((missing + 1))
    fi
done
[ "$count" -gt 200 ] || { echo "only ${count} functions were found in include/tarn" >&2; exit 1; }
[ "$missing" -eq 0 ] || exit 1
echo "${count} functions"
