#!/usr/bin/env bash
# Every public header compiles alone, as C11 and as C++11, 17 and 20, without a warning; so does macros.cpp, which uses
# every public macro, with g++ and clang++, where installed, and runs.
set -uo pipefail

source=${TARN_SOURCE_DIR:?set by the build}
build=${TARN_BUILD_DIR:?set by the build}
warnings=(-Wall -Wextra -Wpedantic -Werror -I "$source/include")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
status=0

fail() {
    echo "$*"
    status=1
}

for header in "$source"/include/tarn/*.h; do
    name=tarn/$(basename "$header")
    echo "#include <$name>" | "${TARN_CC:-cc}" -x c -std=c11 "${warnings[@]}" -fsyntax-only - ||
        fail "$name does not compile alone as C11"
done

# A function-like macro, or a list of one, that C++ has not been tried with.
defined=$(sed -nE 's/^#define ((tarn|TARN)_[A-Za-z0-9_]+)(\(.*| .*)$/\1/p' "$source"/include/tarn/*.h | sort -u)
for macro in $defined; do
    [ "$macro" = TARN_API ] || grep -qw "$macro" "$source/tests/project/macros.cpp" ||
        fail "$macro is not used in macros.cpp"
done

try() { # COMPILER STANDARD
    local header name
    for header in "$source"/include/tarn/*.h; do
        name=tarn/$(basename "$header")
        echo "#include <$name>" | "$1" -x c++ -std="$2" "${warnings[@]}" -fsyntax-only - ||
            fail "$name does not compile alone with $1 as $2"
    done
    "$1" -std="$2" "${warnings[@]}" "$source/tests/project/macros.cpp" -o "$folder/macros" -L "$build" -ltarn \
        -Wl,-rpath,"$build" && (cd "$folder" && ./macros) || fail "macros.cpp fails with $1 as $2"
}

tried=0
for compiler in g++ clang++; do
    command -v $compiler > /dev/null || {
        echo "there is no $compiler"
        continue
    }
    # A clang++ without a C++ library cannot compile anything.
    echo '#include <initializer_list>' | $compiler -x c++ -fsyntax-only - 2> /dev/null || {
        echo "$compiler finds no C++ library"
        continue
    }
    tried=$((tried + 1))
    for standard in c++11 c++17 c++20; do
        try $compiler $standard
    done
done
[ $status -eq 0 ] || exit 1
[ $tried -gt 0 ] || {
    echo "C11 is fine; there is no C++ compiler to try C++ with"
    exit 77
}
