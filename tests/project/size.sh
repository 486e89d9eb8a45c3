#!/usr/bin/env bash
# Stripped, the release build's library and command stay under 10 MB together, and the backends, where they were built,
# under 30 MB (CUDA) and 2 MB (OpenCL):  size.sh [cuda|opencl]   (that backend alone, which must be there)
set -euo pipefail

build=${TARN_BUILD_DIR:?set by the build}
limit=10000000
grep -q '^CMAKE_BUILD_TYPE:[A-Z]*=Release$' "$build/CMakeCache.txt" || {
    echo "only a release build is weighed"
    exit 77
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

weigh() { # weigh FILE: leaves its stripped size in $bytes
    strip -o "$scratch/stripped" "$1"
    bytes=$(stat -c %s "$scratch/stripped")
}

if [ $# -eq 0 ]; then
    total=0
    for file in "$TARN_LIBRARY" "${TARN_COMMAND:?set by the build}"; do
        weigh "$file"
        echo "$(basename "$file"): $bytes bytes"
        total=$((total + bytes))
    done
    echo "together: $total of $limit bytes"
    [ $total -lt $limit ]
fi
for entry in cuda:30000000 opencl:2000000; do
    name=${entry%%:*} max=${entry##*:}
    [ "${1:-$name}" = "$name" ] || continue
    [ $# -gt 0 ] || [ -e "$build/libtarn-$name.so" ] || continue
    weigh "$build/libtarn-$name.so"
    echo "libtarn-$name.so: $bytes of $max bytes"
    [ "$bytes" -lt "$max" ]
done
