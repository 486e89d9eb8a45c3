"""Training runs: reports, early ends, resumed runs, the numbers of the command."""
import json
import os
import subprocess
import tempfile
from pathlib import Path

from support import Case, tarn, torch

OPTIONS = {"model": "mlp", "data": "digits", "mlp_sizes": [16], "steps": 30, "batch_size": 16, "device": "cpu",
           "seed": 5, "eval_every": 10}


class Runs(Case):
    """A small network on generated digits."""

    def setUp(self):
        super().setUp()
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def trainer(self, name="run", **more):
        return tarn.train.Trainer(**{**OPTIONS, "out": self.folder / name, **more})

    def test_reports_and_result(self):
        reports = []
        trainer = self.trainer()
        self.assertEqual(trainer.folder, str(self.folder / "run"))
        result = trainer.run(reports.append)
        self.assertEqual((result.end, result.step), ("finished", 30))
        evaluations = [report for report in reports if report.kind == "evaluation"]
        self.assertEqual(evaluations[-1].step, 30)
        best = next(report for report in evaluations if report.step == result.best_step)
        self.assertEqual(result.best["loss"], best.metrics["loss"])
        self.assertTrue(0 <= best.metrics["accuracy"] <= 1)
        self.assertEqual([name for name, _ in trainer.model.named_parameters()],
                         ["1.weight", "1.bias", "3.weight", "3.bias"])

    def test_weights_are_those_of_the_command(self):
        self.trainer("ours").run()
        flags = [part for name, value in OPTIONS.items()
                 for part in (f"--{name.replace('_', '-')}", "16" if isinstance(value, list) else str(value))]
        done = subprocess.run([os.environ["TARN_COMMAND"], "train", *flags, "--out", str(self.folder / "theirs")],
                              capture_output=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        ours, theirs = (tarn.load_file(next((self.folder / name).rglob("model.safetensors")))
                        for name in ("ours", "theirs"))
        self.assertEqual(set(ours), set(theirs))
        for name, tensor in ours.items():
            self.same(tensor, torch.from_dlpack(theirs[name]), name)

    def test_stopped_and_resumed(self):
        result = self.trainer().run(lambda report: report.step < 10)
        self.assertEqual(result.end, "stopped")
        self.assertLess(result.step, 30)
        resumed = tarn.train.Trainer.resume(self.folder / "run").run()
        self.assertEqual((resumed.end, resumed.step), ("finished", 30))

    def test_an_exception_stops_the_run(self):

        def callback(report):
            raise KeyError("stop here")

        with self.assertRaisesRegex(KeyError, "stop here"):
            self.trainer().run(callback)
        self.assertEqual((tarn.ones(1) + 1).item(), 2)
        self.assertTrue(json.loads((self.folder / "run" / "config.json").read_text(encoding="utf-8")))

    def test_options_are_checked(self):
        self.assertIn("batch_size", tarn.train.options())
        with self.assertRaisesRegex(tarn.ArgumentError, "batch_sise"):
            self.trainer(batch_sise=3)
        with self.assertRaises(tarn.ArgumentError):
            self.trainer(batch_size=-3)
