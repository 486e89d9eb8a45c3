#!/usr/bin/env bash
# Stripped, the release build's library and command stay under 10 MB together, and the backends, where they were built,
# under 30 MB (CUDA) and 2 MB (OpenCL).
set -euo pipefail

build=${TARN_BUILD_DIR:?set by the build}
limit=10000000
grep -q '^CMAKE_BUILD_TYPE:[A-Z]*=Release$' "$build/CMakeCache.txt" || {
    echo "only a release build is weighed"
    exit 77
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
total=0
for file in "$TARN_LIBRARY" "${TARN_COMMAND:?set by the build}"; do
    strip -o "$scratch/stripped" "$file"
    bytes=$(stat -c %s "$scratch/stripped")
    echo "$(basename "$file"): $bytes bytes"
    total=$((total + bytes))
done
echo "together: $total of $limit bytes"
[ $total -lt $limit ]
for entry in cuda:30000000 opencl:2000000; do
    file=libtarn-${entry%%:*}.so max=${entry##*:}
    [ -e "$build/$file" ] || continue
    strip -o "$scratch/stripped" "$build/$file"
    bytes=$(stat -c %s "$scratch/stripped")
    echo "$file: $bytes of $max bytes"
    [ "$bytes" -lt "$max" ]
done
