"""TensorBoard's event files: what tarn writes, the tensorboard package reads: the same tags, steps and values, a run
that was stopped and resumed without the points that did not last."""
import logging
import os
import random
import struct
import subprocess
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of every restart that it was told of

WRITER = os.path.join(os.environ.get("TARN_BACKEND_PATH", ""), "train",
                      "test_tensorboard")  # writes points that it is given
TAGS = [
    "loss", "loss/train", "loss/validation", "accuracy", "learning rate", "images/s", "é漢😀", 'a "quoted" <tag> & more',
    "x" * 1024]
VALUES = [0.0, -0.0, 1.0, 0.1, -2.5e-30, 1e-45, 3.4e38, 1e39, -1e300, float("inf"), float("-inf"), float("nan")]


def single(value):
    """A number as f32 holds it, by its bits; every NaN alike."""
    try:
        bits = struct.pack("<f", value)
    except OverflowError:
        bits = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return "nan" if value != value else bits


def write(folder, lines):
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run([WRITER, folder], input=text.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def read(folder):
    """{tag: [(step, value), ...]} as TensorBoard sees the folder."""
    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, single(e.value)) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def points(rng, first, count):
    """Steps from `first` on, with values for some of the tags."""
    steps, step = [], first
    for _ in range(count):
        for tag in rng.sample(TAGS, rng.randrange(1, len(TAGS) + 1)):
            steps.append((tag, step, rng.choice([rng.choice(VALUES), rng.uniform(-10, 10), rng.expovariate(1)])))
        step += rng.choice([1, 1, 100, rng.randrange(1, 1 << 40)])
    return steps


def line(tag, step, value):
    return f"{step} {value!r} {tag}"


def expected(made):
    curves = {}
    for tag, step, value in made:
        curves.setdefault(tag, []).append((step, single(value)))
    return curves


def check_points(folder, rng):
    made = points(rng, 0, 200)
    write(folder, [line(*point) for point in made])
    return "" if read(folder) == expected(made) else "TensorBoard reads other points"


def check_resume(folder, rng):
    """Three runs: the second begins before the first one's end, the third before the second one's."""
    made = []
    for run in range(3):
        start = made[rng.randrange(len(made) // 2, len(made))][1] if run else 0
        fresh = points(rng, start, 30)
        write(folder, ([f"resume {start}"] if run else []) + [line(*point) for point in fresh])
        made = [point for point in made if point[1] < start] + fresh
    if len(os.listdir(folder)) != 3:
        return f"{len(os.listdir(folder))} files after three runs"
    return "" if read(folder) == expected(made) else "TensorBoard reads other points"


CHECKS = {"points": check_points, "three runs": check_resume}


def run(seed):
    """Yields (check, what is wrong or "", None when it cannot run)."""
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as folder:
            yield name, check(folder, random.Random(f"{seed}/{name}")) if os.path.exists(WRITER) else None
