#!/usr/bin/env python3
"""Fails on a word that the project coined where the field has one, in code, strings and docs.

Only coinages are listed, no everyday words: a word that is right in another sense is matched together with what made it
ours. Names are looked at piece by piece, so `likeliest` also finds `tarn__likeliest_of` and `Likeliest`. CHANGELOG.md,
which tells old names from new ones, is not read, nor are files of a run from before a name changed (legacy/). A line
with the comment `old name` may have one: names that stay readable for old files and scripts.
"""
import os
import re
import sys
from pathlib import Path

from support.tracked import tracked_files

ROOT = Path(os.environ.get("TARN_SOURCE_DIR", Path(__file__).resolve().parents[2]))

# pattern of a whole piece of a name or of prose, lower case: what to write instead
COINED = {
    r"likeliest": "argmax, greedy, top_logprobs",
    r"thrift\w*": "recompute",
    r"crews?": "prefetch workers",
    r"poke[ds]?|poking": "inline write",
    r"yardsticks?": "roofline, peak FLOP/s",
    r"slopes": "derivatives, gradients",
    r"mend(s|ed|ing)?": "fix up",
    r"strands?": "accumulators",
    r"extremum": "argmax, max gradient",
    r"remake[sd]?|remade|remaking": "recompute",
    r"deal(s|ing)?": "partition, distribute",
    r"dealt": "packed",
    r"learnt": "trained; counted in the loss",
    r"whoever": "the caller",
    r"somebody": "a user, a thread",
    r"gone on with": "resumed",
    r"go(es)? on with": "resume",
    r"numbers for each": "values per",
    r"(is|are) there already": "already exists",
    r"passes? by all": "residual stream",
    r"(in|into) the hope": "speculating",
    r"passed over": "skipped",
    r"made again": "recomputed",
    r"shadow devices?": "meta device",
    r"lies? side by side": "adjacent, contiguous",
    r"in one piece": "contiguous",
    r"the same bits": "bitwise identical",
    r"loses? (its |their )?digits": "loses precision",
}
READ = re.compile(
    r"\.(c|h|cu|cuh|cl|inc|def|cpp|py|sh|md|cmake|txt|1|json|in|awk)$|(^|/)(Makefile|CMakeLists\.txt|run)$|^scripts/"
)
SKIPPED = re.compile(r"^(CHANGELOG\.md|tests/project/words\.py|tests/fuzz/.*corpus|.*/legacy/)")
PATTERN = re.compile(r"(?<![a-z])(?:" + "|".join(COINED) + r")(?![a-z])")


def plain(line):
    """The line with names taken apart: `TARN__MOST_Poke(x)` becomes `tarn  most poke(x)`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", line).lower().replace("_", " ")


def problems_of(path):
    try:
        text = (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.split("\n"), 1):
        if "old name" in line:
            continue
        for match in PATTERN.finditer(plain(line)):
            word = match[0]
            instead = next(say for coined, say in COINED.items() if re.fullmatch(coined, word))
            yield f"{path}:{number}: '{word}': write {instead}"


def main():
    files = tracked_files(ROOT)
    if files is None:
        print("not a git checkout: there is no list of files")
        return 77
    paths = [path for path in files if READ.search(path) and not SKIPPED.search(path)]
    problems = [problem for path in paths for problem in problems_of(path)]
    print("\n".join(problems), end="\n" if problems else "")
    print(f"{len(paths)} files read, {len(problems)} coined words")
    return 1 if problems or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
