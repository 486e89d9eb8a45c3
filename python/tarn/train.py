"""Training runs as those of `tarn train`: options by name, reports to a callback, and a run folder."""
import ctypes
import math
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import _c
from ._library import Owner, PathLike, call, check, lib, path_of, text_of
from .nn import Module

KINDS = {_c.TARN_REPORT_TRAINING: "training", _c.TARN_REPORT_EVALUATION: "evaluation", _c.TARN_REPORT_SAMPLE: "sample"}
ENDS = {_c.TARN_TRAIN_FINISHED: "finished", _c.TARN_TRAIN_STOPPED: "stopped", _c.TARN_TRAIN_PATIENCE: "patience"}

Value = Union[bool, int, float, str, "os.PathLike[str]", Sequence[int]]


@dataclass
class Report:
    """Progress of a run."""

    kind: str  # "training": mean since the last report; "evaluation": on the validation set; "sample": generated text
    step: int
    steps: int
    epoch: int
    epochs: int
    lr: float
    seconds: float
    metrics: Dict[str, float]  # "loss", "accuracy", "tokens_per_second" ...
    is_best: bool  # of an evaluation: the best so far
    text: str  # of a sample


@dataclass
class Result:
    """How a run ended."""

    end: str  # "finished", "stopped" or "patience"
    step: int
    best_step: int  # 0 without an evaluation
    best: Dict[str, float]  # metrics of the best evaluation
    seconds: float


Callback = Callable[[Report], Optional[bool]]


def options() -> Dict[str, str]:
    """Names of all options, with their help; `tarn train --help` has their values and defaults."""
    row, found = _c.tarn_option(), {}
    for number in range(lib.tarn_train_option_count()):
        call(lib.tarn_train_option, number, ctypes.byref(row))
        found[(row.name or b"").decode()] = (row.help or b"").decode()
    return found


def _text(value: Value) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, (int, float, str)):
        return str(value).encode()
    if isinstance(value, os.PathLike):
        return os.fsencode(value)
    return ",".join(str(item) for item in value).encode()


def _options(given: Dict[str, Value]) -> Any:
    struct = _c.tarn_train_options()
    for name, value in given.items():
        call(lib.tarn_train_options_set_sized, ctypes.byref(struct), ctypes.sizeof(struct), name.encode(), _text(value))
    return struct


def _metrics(rows: Any, count: int) -> Dict[str, float]:
    return {rows[i].name.decode(): rows[i].value for i in range(count) if not math.isnan(rows[i].value)}


def _report(row: Any) -> Report:
    text = text_of(ctypes.cast(row.text, ctypes.c_void_p).value, row.text_length).decode(errors="replace")
    return Report(KINDS.get(row.kind, "training"), row.step, row.steps, row.epoch, row.epochs, row.lr, row.seconds,
                  _metrics(row.metrics, row.metric_count), row.is_best, text)


class Trainer:
    """A training run, by the options of `tarn train`:

        trainer = tarn.train.Trainer(model="lenet", data="digits", epochs=2, out="runs/digits")
        result = trainer.run(lambda report: print(report.step, report.metrics))
    """

    def __init__(self, **given: Value) -> None:
        struct = _options(given)
        handle = call(lib.tarn_trainer_new_sized, ctypes.byref(struct), ctypes.sizeof(struct))
        self._owner = Owner(handle, lib.tarn_trainer_free)

    @classmethod
    def resume(cls, folder: PathLike, **changes: Value) -> "Trainer":
        """Resumes the run in a folder from its last checkpoint; options that may change can be given."""
        struct, trainer = _options(changes), cls.__new__(cls)
        handle = call(lib.tarn_trainer_resume_sized, path_of(folder), ctypes.byref(struct), ctypes.sizeof(struct))
        trainer._owner = Owner(handle, lib.tarn_trainer_free)
        return trainer

    @property
    def folder(self) -> str:
        """The run's folder."""
        plan = _c.tarn_train_plan()
        call(lib.tarn_trainer_plan, self._owner.handle, ctypes.byref(plan))
        return str(plan.folder.decode())

    @property
    def model(self) -> Module:
        """The model in training."""
        return Module._borrow(call(lib.tarn_trainer_model, self._owner.handle), self._owner)

    def run(self, callback: Optional[Callback] = None) -> Result:
        """Trains to the end, or until the callback returns False; an exception in it stops the run and is raised."""
        raised: List[BaseException] = []

        def report(row: Any, _: Optional[int]) -> None:
            try:
                if callback is not None and not raised and callback(_report(row.contents)) is False:
                    self.stop()
            except BaseException as error:  # pylint: disable=broad-except; run() raises it
                raised.append(error)
                self.stop()

        made = _c.tarn_train_result()
        lib.tarn_trainer_run(self._owner.handle, _c.tarn_report_fn(report), None, ctypes.byref(made))
        if raised:
            lib.tarn_clear_error()
            raise raised[0]
        check()
        return Result(ENDS.get(made.end, "stopped"), made.step, made.best_step, _metrics(made.best, made.best_count),
                      made.seconds)

    def stop(self) -> None:
        """Stops the run after the current step, from any thread; it can be resumed."""
        lib.tarn_trainer_stop(self._owner.handle)
