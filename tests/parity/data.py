"""Files written by NumPy, the csv module and gzip, read by tarn: every element must be bitwise identical."""
import csv
import ctypes as c
import gzip
import os
import struct
import tempfile

import numpy as np
from numpy.lib import format as npy

import compare
import support
import tarn
from tarn import _c

NUMPY = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "i32": np.int32, "i64": np.int64, "u8": np.uint8,
    "bool": np.bool_}
REFUSED = [
    np.int8, np.int16, np.uint16, np.uint32, np.uint64, np.complex64,
    np.dtype("U3"),
    np.dtype([("a", "f4"), ("b", "i4")])]


def load_npy(path):
    array = _c.tarn_array()
    support.call("npy_load", path, c.byref(array))
    dtype = NUMPY[support.DTYPES[array.dtype]]
    shape = tuple(array.shape.size[:array.shape.rank])
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    values = np.frombuffer(c.string_at(array.data, count), dtype).reshape(shape)
    support.call("array_free", c.byref(array))
    return values


def read_all(dataset):
    """The fields of a dataset as arrays [N, ...]; frees it."""
    fields = []
    for k in range(support.call("dataset_field_count", dataset)):
        field = _c.tarn_field()
        support.call("dataset_field", dataset, k, c.byref(field))
        fields.append((NUMPY[support.DTYPES[field.dtype]], tuple(field.shape.size[:field.shape.rank])))
    count = support.call("dataset_count", dataset)
    arrays = [np.empty((count,) + shape, dtype) for dtype, shape in fields]
    for i in range(count):
        rows = [np.empty(shape, dtype) for dtype, shape in fields]
        support.call("dataset_read", dataset, i, support.array(c.c_void_p, [row.ctypes.data for row in rows]))
        for array, row in zip(arrays, rows):
            array[i] = row
    support.call("dataset_free", dataset)
    return arrays


def same(ours, theirs):
    """Equal in dtype, shape and bits."""
    theirs = np.asarray(theirs, order="C")
    good = ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    return compare.Verdict(good, text=f"{ours.dtype} {ours.shape} differs from {theirs.dtype} {theirs.shape}")


def draw(rng, dtype, shape):
    bits = rng.integers(0, 256, size=int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize, dtype=np.uint8)
    if dtype == np.bool_:
        bits &= 1
    return bits.view(dtype).reshape(shape)  # any bits, NaNs among them


def check_npy(rng, folder, number):
    path = os.path.join(folder, "a.npy")
    name = list(NUMPY)[number % len(NUMPY)]
    shape = tuple(int(n) for n in rng.integers(0 if number % 9 == 0 else 1, 6, size=int(rng.integers(0, 7))))
    values = draw(rng, NUMPY[name], shape)
    swapped = values.astype(values.dtype.newbyteorder(">")) if rng.integers(3) == 0 else values
    stored = np.asarray(swapped, order="F") if rng.integers(2) else swapped
    version = [(1, 0), (2, 0), (3, 0)][int(rng.integers(3))]
    with (gzip.open if rng.integers(4) == 0 else open)(path, "wb") as file:
        npy.write_array(file, stored, version=version, allow_pickle=False)
    return same(load_npy(path), values)


def check_refused(folder, dtype):
    path = os.path.join(folder, "a.npy")
    np.save(path, np.zeros(3, dtype))
    try:
        load_npy(path)
    except tarn.Error as error:
        return compare.Verdict(error.code == "format" and path in str(error), text=str(error))
    return compare.Verdict(False, text=f"{dtype} was accepted")


def text_of(rng, value):
    forms = [repr(value), f"{value:.3e}", f"{value:+.6f}", f" {value!r} ", f"{value:.17g}"]
    return forms[int(rng.integers(len(forms)))]


def check_csv(rng, folder):
    path = os.path.join(folder, "a.csv")
    columns, rows = int(rng.integers(2, 7)), int(rng.integers(1, 30))
    label, delimiter = int(rng.integers(columns)), ",;\t|"[int(rng.integers(4))]
    name = ["f32", "f64"][int(rng.integers(2))]
    table = [[text_of(rng, float(v)) for v in rng.normal(0, 10.0 ** rng.integers(-6, 7), columns)] for _ in range(rows)]
    for row in table:
        row[label] = str(int(rng.integers(-5, 1000)))
    header = [f'column "{k}", {k}' for k in range(columns)]
    has_header = bool(rng.integers(2))
    with (gzip.open(path, "wt", newline="") if rng.integers(3) == 0 else open(path, "w", newline="")) as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=[csv.QUOTE_MINIMAL, csv.QUOTE_ALL][int(rng.integers(2))],
                            lineterminator=["\n", "\r\n"][int(rng.integers(2))])
        writer.writerows(([header] if has_header else []) + table)
    wanted = header[label] if has_header else str(label - columns * int(rng.integers(2)))
    x, y = read_all(support.call("dataset_csv_sized", path, *support.options(
        "csv", delimiter=delimiter.encode(), label=wanted.encode(), dtype=support.DTYPES.index(name))))
    expected = np.array([[NUMPY[name](t) for k, t in enumerate(row) if k != label] for row in table], NUMPY[name])
    verdict = same(x, expected.reshape(rows, columns - 1))
    return verdict if not verdict.good else same(y, np.array([int(row[label]) for row in table], np.int64))


def check_idx(rng, folder):
    images, labels = os.path.join(folder, "images"), os.path.join(folder, "labels")
    code, dtype, wide = [(8, np.uint8, np.uint8), (9, np.int8, np.int32), (11, np.int16, np.int32),
                         (12, np.int32, np.int32), (13, np.float32, np.float32),
                         (14, np.float64, np.float64)][int(rng.integers(6))]
    shape = tuple(int(n) for n in rng.integers(1, 6, size=int(rng.integers(1, 5))))
    values, classes = draw(rng, dtype, shape), rng.integers(0, 256, shape[0], dtype=np.uint8)
    for path, kind, array in ((images, code, values), (labels, 8, classes)):
        with (gzip.open if rng.integers(2) else open)(path, "wb") as file:
            file.write(struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape))
            file.write(array.astype(array.dtype.newbyteorder(">")).tobytes())
    x, y = read_all(support.call("dataset_idx", images, labels))
    expected = values.astype(wide) if wide != dtype else values
    verdict = same(x, expected.reshape(shape[0], 1, *shape[1:]) if len(shape) == 3 else expected)
    return verdict if not verdict.good else same(y, classes.astype(np.int64))


def verdicts(seed, rounds):
    """(title, verdict) for each file."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            yield f"npy {number}", check_npy(rng, folder, number)
            yield f"csv {number}", check_csv(rng, folder)
            yield f"idx {number}", check_idx(rng, folder)
        for dtype in REFUSED:
            yield f"npy of {np.dtype(dtype)}", check_refused(folder, dtype)
