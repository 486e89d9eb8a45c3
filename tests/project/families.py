#!/usr/bin/env python3
"""Compares base/kernel/families.def with the source files of the backends.

Every row that says YES or F64 has its file, which defines the unit's registration function; every registration function
belongs to a row; the same unit stands in the same family on all backends. A row without a file would fail to link, a
file without a row would be dead code whose kernels silently fall back to the CPU.
"""
import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ.get("TARN_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BACKENDS = ROOT / "src" / "backends"
COLUMNS = {"cpu": "tarn__cpu_register_", "cuda": "tarn__cuda_register_", "opencl": "tarn__cl_register_"}


def rows():
    text = (ROOT / "src/base/kernel/families.def").read_text()
    for row in re.findall(r"^UNIT\(([^)]*)\)", text, re.M):
        yield [cell.strip() for cell in row.split(",")]


def definitions(backend, prefix):
    """unit: its file, for every registration function that is defined (not declared) in the backend."""
    found = {}
    for path in sorted(BACKENDS.joinpath(backend).rglob("*.c*")):
        for unit in re.findall(prefix + r"(\w+?)\)?\(tarn__kernel_row \*\w+\)\n\{", path.read_text()):
            found[unit] = path.relative_to(BACKENDS).as_posix()
    return found


def main():
    failures, units = [], list(rows())
    if len(units) < 20:
        failures.append("families.def: no rows found")
    for at, (backend, prefix) in enumerate(COLUMNS.items(), start=2):
        found = definitions(backend, prefix)
        for family, unit, *_ in (row for row in units if row[at] != "NO"):
            path = found.pop(unit, None)
            if path is None:
                failures.append(f"families.def: {unit}: {backend} has no {prefix}{unit}()")
            elif not re.fullmatch(rf"{backend}/{family}/{unit}\.(c|cu)", path):
                failures.append(f"{path}: registers {unit}; its row says {backend}/{family}/{unit}")
        failures += [f"{path}: {prefix}{unit}() has no row in families.def" for unit, path in found.items()]
    for line in failures:
        print(line)
    print(f"families: {len(units)} units, {len(failures)} failures")
    return 1 if failures else 0


sys.exit(main())
