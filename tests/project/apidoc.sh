#!/usr/bin/env bash
# docs/reference/api.md is what scripts/apidoc makes of the headers now, and every public function has a comment.
set -euo pipefail

source=${TARN_SOURCE_DIR:?set by the build}
command -v python3 > /dev/null || exit 77

fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
"$source/scripts/apidoc" "$source/include/tarn" > "$fresh"
diff -u "$source/docs/reference/api.md" "$fresh" || {
    echo "docs/reference/api.md is behind the headers: run make docs"
    exit 1
}
