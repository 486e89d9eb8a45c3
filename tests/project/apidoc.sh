#!/usr/bin/env bash
# docs/reference/api.md is the output of scripts/apidoc for the headers, command.md that of scripts/clidoc for --help.
# Every public function has a comment.
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
[ -n "${TARN_COMMAND:-}" ] || exit 0
"$source/scripts/clidoc" "$TARN_COMMAND" > "$fresh"
diff -u "$source/docs/reference/command.md" "$fresh" || stale command.md
