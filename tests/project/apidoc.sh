#!/usr/bin/env bash
# docs/reference/api.md is the output of scripts/apidoc for the headers, command.md that of scripts/clidoc for --help.
# Every public function has a comment. python/tarn/_c.py is the output of scripts/pyapi. The list of a backend's members
# is that of backend.h, each member marked as required or optional; the script fails on a member without a mark and on a
# stale page, which is tried in a copy.
set -euo pipefail

source=${TARN_SOURCE_DIR:?set by the build}
command -v python3 > /dev/null || exit 77

fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
stale() {
    echo "docs/reference/$1 is out of date: run make docs"
    exit 1
}
"$source/scripts/apidoc" "$source/include/tarn" > "$fresh"
diff -u "$source/docs/reference/api.md" "$fresh" || stale api.md
"$source/scripts/pyapi" "$source/include/tarn" > "$fresh"
diff -u "$source/python/tarn/_c.py" "$fresh" || {
    echo "python/tarn/_c.py is out of date: run make docs"
    exit 1
}
"$source/scripts/backend-doc" --check

copy=$(mktemp -d)
trap 'rm -rf "$fresh" "$copy"' EXIT
header=src/base/kernel/backend.h
mkdir -p "$copy/src/base/kernel" "$copy/docs/internals" "$copy/scripts"
cp "$source/scripts/backend-doc" "$copy/scripts/"
cp "$source/docs/internals/adding-a-backend.md" "$copy/docs/internals/"
planted() { # planted SED WHAT: the check fails after that change of the header
    sed "$1" "$source/$header" > "$copy/$header"
    ! cmp -s "$source/$header" "$copy/$header" && ! "$copy/scripts/backend-doc" --check > "$fresh" || {
        echo "scripts/backend-doc --check accepts $2"
        exit 1
    }
}
planted 's/Required: number of devices/Optional: number of devices/' 'another mark'
planted 's/Required: number of devices/number of devices/' 'a member without a mark'

[ -n "${TARN_COMMAND:-}" ] || exit 0
"$source/scripts/clidoc" "$TARN_COMMAND" > "$fresh"
diff -u "$source/docs/reference/command.md" "$fresh" || stale command.md
