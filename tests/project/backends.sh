#!/usr/bin/env bash
# Backends that `make test` and `make demo` build: those with a driver, while `make` builds all that can be built.
# Configures with headers and a loader of OpenCL that are empty files, and asks Ninja for its commands: nothing is
# compiled. CUDA's too with TARN_TEST_LONG=1, where nvcc is: configuring for it takes long.
set -euo pipefail

source=${TARN_SOURCE_DIR:?set by the build}
for tool in cmake ninja; do
    command -v $tool > /dev/null || {
        echo "$tool not found"
        exit 77
    }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/CL" "$scratch/none" "$scratch/some"
touch "$scratch/CL/cl.h" "$scratch/libOpenCL.so" "$scratch/some/driver.icd"
cuda=OFF
if [ -n "${TARN_TEST_LONG:-}" ] && [ ! -e /dev/nvidiactl ]; then
    cuda=AUTO
fi

configure() { # configure VENDORS: with drivers of OpenCL in that folder
    OCL_ICD_VENDORS=$1 cmake -S "$source" -B "$scratch/build" -G Ninja -DCMAKE_C_COMPILER="${TARN_CC:-cc}" \
        -DCMAKE_BUILD_TYPE=Release -DTARN_CUDA=$cuda -DTARN_OPENCL=ON \
        -DTARN_OPENCL_LIBRARY="$scratch/libOpenCL.so" -DTARN_OPENCL_INCLUDE_DIR="$scratch" > "$scratch/log" || {
        cat "$scratch/log"
        exit 1
    }
}

expect() { # expect yes|no PATTERN TARGET...: are files that match the pattern among what the targets need?
    local answer=no wanted=$1 pattern=$2
    shift 2
    ninja -C "$scratch/build" -t commands "$@" > "$scratch/steps"
    ! grep -Eq "$pattern" "$scratch/steps" || answer=yes
    [ $answer = "$wanted" ] || {
        echo "does building $* make $pattern: $answer, expected $wanted"
        exit 1
    }
}

test=$(sed -n '/^test:/,/^$/s/.*scripts\/build release \(.*\)/\1/p' "$source/Makefile")
demo=$(sed -n '/^demo:/,/^$/s/.*scripts\/build release \(.*\)/\1/p' "$source/Makefile")
[ -n "$test" ] && [ -n "$demo" ] || {
    echo "make test and make demo name no targets"
    exit 1
}

# shellcheck disable=SC2086 # targets are meant to be split
{
    configure "$scratch/none"
    expect no 'libtarn-(opencl|cuda)|backends/(opencl|cuda)/' $test
    expect no 'libtarn-(opencl|cuda)|backends/(opencl|cuda)/' $demo
    expect yes 'libtarn-opencl' all
    expect yes 'test_opencl_' $test
    configure "$scratch/some"
    expect yes 'libtarn-opencl' $test
    expect yes 'libtarn-opencl' $demo
}
