#!/usr/bin/env bash
# The CUDA kernels of examples/custom_op.cu compile, where nvcc is, and link with the example. Running them takes a GPU.
set -euo pipefail

source=${TARN_SOURCE_DIR:?set by the build}
library=${TARN_LIBRARY:?set by the build}
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null || true)
[ -n "$nvcc" ] || {
    echo "nvcc not found"
    exit 77
}
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$nvcc" -DCUSTOM_OP_CUDA -c "$source/examples/custom_op.cu" -o "$folder/cuda.o"
"${TARN_CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror -DCUSTOM_OP_CUDA -I "$source/include" \
    "$source/examples/custom_op.c" "$folder/cuda.o" -o "$folder/custom_op" \
    -L "$(dirname "$library")" -ltarn -Wl,-rpath,"$(dirname "$library")" \
    -L "$cuda/lib64" -L "$cuda/lib" -lcudart -Wl,-rpath,"$cuda/lib64" -lstdc++ -lm
"$folder/custom_op" cpu
