#!/usr/bin/env bash
# The program in README.md has at most 25 lines, compiles without a warning, trains, and prints the output in README.md.
set -euo pipefail

source=${TARN_SOURCE_DIR:?set by the build}
library=${TARN_LIBRARY:?set by the build}
folder=$(dirname "$library")

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

block() { # block LANGUAGE: the first block of code in that language
    awk -v fence="\`\`\`$1" '$0 == fence { inside = 1; next } inside && /^```/ { exit } inside' "$source/README.md"
}

block c > "$scratch/sine.c"
block text > "$scratch/expected"
lines=$(wc -l < "$scratch/sine.c")
[ "$lines" -ge 10 ] && [ "$lines" -le 25 ] || {
    echo "the program in README.md has $lines lines; it should have at most 25"
    exit 1
}

"${TARN_CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror "$scratch/sine.c" -o "$scratch/sine" \
    -I "$source/include" -L "$folder" -ltarn -Wl,-rpath,"$folder"
"$scratch/sine" > "$scratch/printed"
cat "$scratch/printed"

# Same words and steps; losses within a factor of two, since instruction levels round differently.
paste "$scratch/expected" "$scratch/printed" | awk '
    NF != 8 || $1 != $5 || $2 != $6 || $3 != $7 || $8 > 2 * $4 || $8 < $4 / 2 {
        print "README.md differs: " $0
        bad = 1
    }
    { last = $8 }
    END { if (NR < 3 || last > 0.001) { print "no convergence: the last loss is " last; bad = 1 } exit bad }'
