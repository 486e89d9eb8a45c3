#!/usr/bin/env bash
# scripts/dist: the same commit gives the same bytes, all of its files are in the tarball, and changes that would be
# left out are an error.
set -euo pipefail

source=${TARN_SOURCE_DIR:?set by the build}
[ "$(git -C "$source" rev-parse --show-toplevel 2> /dev/null)" = "$(cd "$source" && pwd -P)" ] || {
    echo "not a git checkout: there is no commit to archive"
    exit 77
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
git clone -q "$source" "$scratch/clone"
cd "$scratch/clone"

scripts/dist "$scratch/first"
sleep 1 # a time of the clock in the tarball would differ
TZ=Asia/Tokyo scripts/dist "$scratch/second" > /dev/null
cmp "$scratch"/first/tarn-*.tar.gz "$scratch"/second/tarn-*.tar.gz
(cd "$scratch/first" && sha256sum --quiet --check SHA256SUMS)

mkdir "$scratch/unpacked"
tar -xzf "$scratch"/first/tarn-*.tar.gz -C "$scratch/unpacked" --strip-components=1
diff <(git ls-files | sort) <(cd "$scratch/unpacked" && find . -type f -printf '%P\n' -o -type l -printf '%P\n' | sort)

if (cd "$scratch/unpacked" && scripts/dist "$scratch/third") 2> "$scratch/errors"; then
    echo "a folder without a commit was archived"
    exit 1
fi
grep -q "no git checkout" "$scratch/errors"
echo >> README.md
if scripts/dist "$scratch/third" 2> "$scratch/errors"; then
    echo "uncommitted changes were left out"
    exit 1
fi
grep -q "uncommitted changes" "$scratch/errors" && grep -q README.md "$scratch/errors"
