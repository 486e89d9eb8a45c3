"""Tables: features by tarn's encoder and by NumPy; RMSE, MAE and R² by tarn and from its predictions; a regression on
data that a linear model explains, next to least squares."""
import csv
import json
import math
import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import compare
import data
import support

COMMAND = str(Path(os.environ["TARN_LIBRARY"]).parent / "tarn")
MISSING = ["", "NA", "nan", "null", "?"]


def command(*arguments):
    done = subprocess.run([COMMAND, *arguments], capture_output=True, check=False, text=True)
    if done.returncode:
        raise RuntimeError(f"tarn {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def numbers(column):
    """Features of a column of numbers, None where missing."""
    known = np.array([value for value in column if value is not None])
    mean, std = known.mean(), known.std()
    features = [[0.0 if value is None else (value - mean) / std for value in column]]
    if None in column:
        features.append([float(value is None) for value in column])
    return features


def words(column):
    """One-hot, most frequent first, then by bytes; the words that occur once share a place."""
    counts = Counter(value for value in column if value is not None)
    kept = sorted((word for word in counts if counts[word] > 1), key=lambda word: (-counts[word], word.encode()))
    filled = [kept[0] if value is None else value for value in column]
    features = [[float(value == word) for value in filled] for word in kept]
    features.append([float(value not in kept) for value in filled])
    if None in column:
        features.append([float(value is None) for value in column])
    return features


def check_features(rng, folder):
    """A random table of two columns of numbers and two of words, with quotes, delimiters and missing values."""
    count, delimiter = int(rng.integers(20, 60)), rng.choice([",", ";", "\t"])
    choices = ['a "b"', "x, y", "p;q", "é", "two words"]
    column = lambda draw: [None if rng.random() < .15 else draw() for _ in range(count)]
    scale = 10.0**rng.integers(-3, 9)
    columns = [[float(rng.normal(5, 2) * scale) for _ in range(count)], column(lambda: float(rng.integers(-9, 9))),
               column(lambda: str(rng.choice(choices))), [f"w{rng.integers(0, count)}" for _ in range(count)]]
    labels = [float(v) for v in rng.normal(size=count)]
    path = os.path.join(folder, "features.csv")
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=str(delimiter), lineterminator=str(rng.choice(["\n", "\r\n"])))
        writer.writerow(["n", "m", "u", "v", "y"])
        for row in zip(*columns, labels):
            writer.writerow([str(rng.choice(MISSING)) if value is None else value for value in row])
    table = support.call("table_open_sized", path, None, 0)
    encoder = support.call("table_encoder_new_sized", table, *support.options("table_encoder", val_fraction=-1))
    ours, _ = data.read_all(support.call("dataset_table", table, encoder, 0))
    support.call("table_encoder_free", encoder)
    support.call("table_free", table)
    theirs = np.array(numbers(columns[0]) + numbers(columns[1]) + words(columns[2]) + words(columns[3]), np.float32).T
    good = ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return compare.Verdict(bool(good), text=f"features {ours.shape} differ from {theirs.shape}")


def write_linear(path, rows=800):
    """y = 3 a - 2 b + 40 (side is south) + noise; the matrix for least squares, and y."""
    rng = np.random.default_rng(5)
    a, b, south = rng.normal(10, 4, rows), rng.uniform(-5, 5, rows), rng.integers(0, 2, rows)
    y = 3 * a - 2 * b + 40 * south + rng.normal(0, 2, rows)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "side", "y"])
        writer.writerows([x, z, "south" if s else "north", t] for x, z, s, t in zip(a, b, south, y))
    return np.stack([a, b, south, np.ones(rows)], 1), y


def check_regression(folder):
    """The seeds are fixed: the verdict is the same in every run."""
    path, run, out = (os.path.join(folder, name) for name in ("linear.csv", "run", "predicted.csv"))
    x, y = write_linear(path)
    command("train", "--data", path, "--out", run, "--epochs", "40", "--lr", "0.01", "--device", "cpu", "--quiet")
    found = json.loads(command("eval", run, "--data", path, "--json", "--device", "cpu"))
    command("predict", run, path, "--output", out, "--device", "cpu")
    with open(out, newline="", encoding="utf-8") as file:
        error = np.array([float(row["prediction"]) for row in csv.DictReader(file)]) - y
    wanted = {"rmse": math.sqrt((error**2).mean()), "mae": np.abs(error).mean(),
              "r2": 1 - (error**2).sum() / ((y - y.mean())**2).sum()}
    same = all(math.isclose(found[key], wanted[key], rel_tol=1e-4) for key in wanted)
    best = math.sqrt(((x @ np.linalg.lstsq(x, y, rcond=None)[0] - y)**2).mean())
    yield "metrics", compare.Verdict(bool(same), text=f"{found} differs from {wanted}")
    yield "least squares", compare.Verdict(found["rmse"] < 1.05 * best, text=f"RMSE {found['rmse']}, optimum {best}")


def verdicts(seed, rounds):
    """(title, verdict) for each table."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            yield f"features {number}", check_features(rng, folder)
        yield from check_regression(folder)
