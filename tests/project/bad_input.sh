#!/usr/bin/env bash
# Every public function is called with bad input in one of tests/*/test_bad_input*.c: its name must occur there.
set -euo pipefail
cd "$(dirname "$0")/../.."

# A declaration begins with TARN_API; its name precedes the first parenthesis. Functions behind macros end in _sized.
names() {
    cat include/tarn/*.h | tr '\n' ' ' | grep -oE 'TARN_API [^;(]*\(' | grep -oE 'tarn_[a-z0-9_]+ *\(' |
        tr -d ' (' | sort -u
}

count=0 missing=0
for name in $(names); do
    count=$((count + 1))
    if ! grep -qE "\b${name}\b" tests/*/test_bad_input*.c; then
        echo "no tests/*/test_bad_input*.c calls ${name}()" >&2
        missing=$((missing + 1))
    fi
done
[ "$count" -gt 200 ] || { echo "only ${count} functions were found in include/tarn" >&2; exit 1; }
[ "$missing" -eq 0 ] || exit 1
echo "${count} functions"
