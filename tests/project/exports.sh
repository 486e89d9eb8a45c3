#!/usr/bin/env bash
# libtarn.so exports the functions of the public headers, all of them and nothing else.
set -euo pipefail

library=${TARN_LIBRARY:?set by the build}
source=${TARN_SOURCE_DIR:?set by the build}
command -v python3 > /dev/null || exit 77

exported=$(nm -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' | LC_ALL=C sort -u)
declared=$("$source/scripts/apidoc" --names "$source/include/tarn" | LC_ALL=C sort -u)
status=0

report() { # report TEXT NAMES: fails when there are any
    [ -z "$2" ] && return
    echo "$1:"
    # shellcheck disable=SC2086 # one name a line
    printf '    %s\n' $2
    status=1
}

report "exported, but not a public name (tarn_...)" "$(grep -vE '^tarn_[^_]' <<< "$exported" || true)"
report "exported, but not declared with TARN_API in include/tarn" \
    "$(LC_ALL=C comm -23 <(echo "$exported") <(echo "$declared"))"
report "declared in include/tarn, but not exported" "$(LC_ALL=C comm -13 <(echo "$exported") <(echo "$declared"))"
echo "$(wc -l <<< "$exported") symbols exported, $(wc -l <<< "$declared") functions declared"
exit $status
