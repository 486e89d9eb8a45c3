#!/usr/bin/env bash
# Every public header compiles alone, as C11 and as C++17, without a warning.
set -uo pipefail

source=${TARN_SOURCE_DIR:?set by the build}
warnings=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$source/include")
cxx=$(command -v "${CXX:-c++}" || command -v g++ || command -v clang++ || true)
status=0

for header in "$source"/include/tarn/*.h; do
    name=tarn/$(basename "$header")
    echo "#include <$name>" | "${TARN_CC:-cc}" -x c -std=c11 "${warnings[@]}" - || {
        echo "$name does not compile alone as C11"
        status=1
    }
    [ -z "$cxx" ] || echo "#include <$name>" | "$cxx" -x c++ -std=c++17 "${warnings[@]}" - || {
        echo "$name does not compile alone as C++17"
        status=1
    }
done
[ $status -eq 0 ] || exit 1
[ -n "$cxx" ] || {
    echo "C11 is fine; there is no C++ compiler to try C++17 with"
    exit 77
}
