#!/usr/bin/env bash
# Installs into a scratch prefix, moves that elsewhere, builds a program against it in four ways (pkg-config and CMake,
# each with the shared and the static library), runs them, and uninstalls.
set -euo pipefail

source=${TARN_SOURCE_DIR:?set by the build}
build=${TARN_BUILD_DIR:?set by the build}
cc=${TARN_CC:-cc}
for tool in pkg-config cmake ninja; do
    command -v $tool > /dev/null || {
        echo "$tool not found"
        exit 77
    }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset DESTDIR
cmake --install "$build" --prefix "$scratch/first" > "$scratch/install.log"
mv "$scratch/first" "$scratch/moved" # nothing installed may depend on its place
prefix=$scratch/moved

library=$(dirname "$(find "$prefix" -name libtarn.a)")
export PKG_CONFIG_PATH=$library/pkgconfig

mkdir "$scratch/program"
cat > "$scratch/program/main.c" << 'END'
#include <stdio.h>
#include <tarn/tarn.h>

int main(void)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *ones = tarn_ones(TARN_SHAPE(2, 3), TARN_F32, tarn_device_cpu());
    double sum = tarn_item(tarn_sum(tarn_add(ones, ones), TARN_ALL_AXES, false));
    tarn_scope_close(scope);
    printf("%s %g%s\n", tarn_version(), sum, tarn_error());
    return sum != 12;
}
END
cat > "$scratch/program/CMakeLists.txt" << 'END'
cmake_minimum_required(VERSION 3.22)
project(program LANGUAGES C)
find_package(tarn 0.1 REQUIRED CONFIG)
add_executable(shared main.c)
target_link_libraries(shared PRIVATE tarn::tarn)
add_executable(static main.c)
target_link_libraries(static PRIVATE tarn::tarn_static)
END

expect() { # expect LINKAGE PROGRAM: it runs, and needs libtarn.so only when shared
    local needs
    needs=$(readelf -d "$2" | grep -c 'NEEDED.*libtarn\.so' || true)
    echo "$2: $(LD_LIBRARY_PATH=$library "$2")"
    case $1 in
    shared) [ "$needs" = 1 ] || { echo "$2 does not use libtarn.so" && exit 1; } ;;
    static) [ "$needs" = 0 ] || { echo "$2 still needs libtarn.so" && exit 1; } ;;
    esac
}

cd "$scratch/program"
# shellcheck disable=SC2046 # flags are meant to be split
"$cc" main.c -o pc_shared $(pkg-config --cflags --libs tarn)
expect shared ./pc_shared
# shellcheck disable=SC2046
"$cc" main.c -o pc_static $(pkg-config --cflags tarn) \
    $(pkg-config --static --libs tarn | sed 's/-ltarn\b/-l:libtarn.a/')
expect static ./pc_static

cmake -S . -B out -G Ninja -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" > cmake.log 2>&1 || {
    cat cmake.log
    exit 1
}
cmake --build out >> cmake.log 2>&1 || {
    cat cmake.log
    exit 1
}
expect shared out/shared
expect static out/static

if [ -n "${TARN_COMMAND:-}" ]; then
    echo "command: $(env -u LD_LIBRARY_PATH "$prefix/bin/tarn" version)"
fi
cd "$source"
files=(share/man/man1/tarn.1 share/bash-completion/completions/tarn share/zsh/site-functions/_tarn
    share/doc/tarn/README.md)
for file in configs/*.json; do
    files+=("share/tarn/$file")
done
for file in docs/*.md docs/*/*.md examples/*.c contrib/*; do
    files+=("share/doc/tarn/$file")
done
[ ${#files[@]} -gt 20 ] || { echo "configs, guides and examples are not in $source" && exit 1; }
for file in "${files[@]}"; do
    [ -s "$prefix/$file" ] || { echo "$file was not installed" && exit 1; }
done

"$source/scripts/uninstall" "$build" "$prefix"
left=$(find "$prefix" -mindepth 1 ! -path "$prefix/bin" ! -path "$prefix/include" ! -path "$prefix/lib" \
    ! -path "$prefix/share")
[ -z "$left" ] || {
    echo "left behind: $left"
    exit 1
}
