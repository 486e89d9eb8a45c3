"""The package as a whole: declarations that are those of the headers and of the compiler, types, docstrings, the
wheel, other versions of Python."""
import contextlib
import ctypes
import ctypes.util
import importlib.util
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import tarn
from tarn import _c

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["TARN_LIBRARY"]).parent


def run(*command, **given):
    given.setdefault("env", os.environ)
    return subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120, check=False, **given)


class Declarations(unittest.TestCase):
    """python/tarn/_c.py."""

    def test_they_are_those_of_the_headers(self):
        written = run(ROOT / "scripts/pyapi", ROOT / "include/tarn").stdout
        self.assertEqual(written, (ROOT / "python/tarn/_c.py").read_text(encoding="utf-8"),
                         "python/tarn/_c.py is out of date: run make docs")
        names = run(ROOT / "scripts/apidoc", "--names", ROOT / "include/tarn").stdout.split()
        self.assertEqual(sorted(names), sorted(_c.PROTOTYPES))

    def test_sizes_and_values_are_the_compilers(self):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "layout.c"
            source.write_text(run(ROOT / "scripts/pyapi", "--layout", ROOT / "include/tarn").stdout, encoding="utf-8")
            built = run(os.environ.get("CC", "cc"), "-I", ROOT / "include", source, "-o", source.with_suffix(""))
            self.assertEqual(built.returncode, 0, built.stdout)
            lines = run(source.with_suffix("")).stdout.splitlines()
        self.assertGreater(len(lines), 1000)
        for line in lines:
            name, *wanted = line.split()
            struct, _, field = name.partition(".")
            if field:
                place = getattr(_c.STRUCTS[struct], field)
                got = [place.offset, place.size]
            else:
                got = [ctypes.sizeof(_c.STRUCTS[name]) if name in _c.STRUCTS else getattr(_c, name)]
            self.assertEqual(got, [int(number) for number in wanted], name)

    def test_a_wrong_declaration_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for given, wanted in (("typedef struct x { union { int a; } b; } x;", "not understood"),
                                  ("TARN_API tarn_unknown *tarn_f(void);", "not understood"),
                                  ("int x = 3;", "not understood")):
                Path(folder, "a.h").write_text(given + "\n", encoding="utf-8")
                done = run(ROOT / "scripts/pyapi", folder)
                self.assertEqual(done.returncode, 1, given)
                self.assertIn(wanted, done.stdout)

    def test_every_dtype_has_a_name(self):
        for dtype in tarn.DType:
            self.assertEqual(dtype.name.lower(), str(dtype))
        self.assertEqual(len(tarn.DType), _c.TARN_DTYPE_COUNT)


class Package(unittest.TestCase):
    """What users and their tools see."""

    def test_every_public_name_has_a_docstring(self):
        without = []
        for module in (tarn, tarn.nn, tarn.optim, tarn.functional, tarn.text, tarn.files, tarn.model, tarn.train):
            for name, value in vars(module).items():
                if name.startswith("_") or not getattr(value, "__module__", "").startswith("tarn"):
                    continue
                if inspect.isfunction(value) or inspect.isclass(value):
                    without += [] if value.__doc__ else [f"{module.__name__}.{name}"]
                if inspect.isclass(value):
                    without += [f"{name}.{key}" for key, method in vars(value).items()
                                if inspect.isfunction(method) and not key.startswith("_") and not method.__doc__]
        self.assertEqual(without, [])
        self.assertEqual([name for name in tarn.__all__ if not hasattr(tarn, name)], [])

    def test_types(self):
        if not importlib.util.find_spec("mypy"):
            self.skipTest("there is no mypy")
        done = run(sys.executable, "-m", "mypy", "--no-incremental", "--cache-dir", os.devnull, cwd=ROOT / "python")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_example_of_the_docstring(self):
        import doctest
        self.assertEqual(doctest.testmod(tarn).failed, 0)
        self.assertGreater(doctest.testmod(tarn).attempted, 3)

    def test_the_guide_is_true(self):
        import test_model
        page = (ROOT / "docs/guide/python.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
        self.assertGreater(len(blocks), 5)
        names, output = {}, io.StringIO()
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(output):
            test_model.make_model(Path(folder) / "model", 1)
            os.chdir(folder)
            try:
                for block in blocks:
                    exec(compile(block, "python.md", "exec"), names)  # pylint: disable=exec-used
            finally:
                os.chdir(before)
                names.clear()
        self.assertIn("tensor(", output.getvalue())

    def test_the_version_is_the_librarys(self):
        self.assertEqual(tarn.__version__, f"{_c.TARN_VERSION_MAJOR}.{_c.TARN_VERSION_MINOR}.{_c.TARN_VERSION_PATCH}")

    def test_a_missing_or_other_library_is_an_error(self):
        for path, text in (("/nonexistent/libtarn.so", "which is not a file"), (ctypes.util.find_library("m"), None)):
            resolved = path if path.startswith("/") else f"/lib/x86_64-linux-gnu/{path}"
            if text is None and not Path(resolved).is_file():
                continue
            done = run(sys.executable, "-c", "import tarn", cwd=ROOT / "python",
                       env={**os.environ, "TARN_LIBRARY": resolved})
            self.assertEqual(done.returncode, 1)
            self.assertIn(text or "not of the version of this package", done.stdout)

    def test_other_versions_of_python(self):
        found = [path for path in (shutil.which(f"python3.{minor}") for minor in range(9, 15)) if path]
        code = ("import tarn; x = tarn.tensor([1.0, 2.0], requires_grad=True); (x * x).sum().backward(); "
                "print(x.grad.tolist(), tarn.nn.Linear(2, 2)(x.reshape(1, 2)).shape)")
        working = [path for path in found if run(path, "--version").returncode == 0]
        self.assertTrue(working)
        for path in working:
            self.assertEqual(run(path, "-B", "-c", code, cwd=ROOT / "python").stdout, "[2.0, 4.0] (1, 2)\n", path)


class Wheels(unittest.TestCase):
    """pip wheel ./python, from the build of the tests."""

    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.addCleanup(self.holder.cleanup)
        self.folder = Path(self.holder.name)

    def pip(self, *arguments):
        return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)

    def test_a_wheel_has_all_it_needs(self):
        done = self.pip("wheel", "--no-index", "--no-deps", "-w", self.folder, "-C", f"build-dir={BUILD}",
                        ROOT / "python")
        self.assertEqual(done.returncode, 0, done.stdout)
        wheel = next(self.folder.glob("tarn-*.whl"))
        self.assertIn("py3-none-linux", wheel.name)
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
        self.assertLessEqual({"tarn/py.typed", "tarn/_c.py", "tarn/lib/libtarn.so.0", "tarn/bin/tarn"}, names)
        installed = self.folder / "installed"
        done = self.pip("install", "--no-index", "--no-deps", "--target", installed, wheel)
        self.assertEqual(done.returncode, 0, done.stdout)
        bare = {key: value for key, value in os.environ.items() if not key.startswith("TARN_")}
        bare["PYTHONPATH"] = str(installed)
        code = "import tarn, tarn._library as l; print(l.find(), (tarn.ones(2) + 1).tolist())"
        done = run(sys.executable, "-c", code, env=bare, cwd=self.folder)
        self.assertEqual(done.stdout, f"{installed}/tarn/lib/libtarn.so.0 [2.0, 2.0]\n")
        done = run(sys.executable, "-m", "tarn", "--version", env=bare, cwd=self.folder)
        self.assertIn(tarn.__version__, done.stdout)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(run(installed / "bin" / "tarn", "--version", env=bare).returncode, 0)

    def test_settings_are_checked(self):
        for setting, text in (("cudda=ON", "settings are build-dir, cuda, opencl"), ("cuda=maybe", "must be ON or OFF"),
                              (f"build-dir={self.folder}", "not a build of cmake")):
            done = self.pip("wheel", "--no-index", "--no-deps", "-w", self.folder, "-C", setting, ROOT / "python")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stdout)

    def test_a_source_distribution_has_the_c_project(self):
        done = run(sys.executable, "-c", f"import tarn_build; print(tarn_build.build_sdist({str(self.folder)!r}))",
                   cwd=ROOT / "python")
        self.assertEqual(done.returncode, 0, done.stdout)
        shutil.unpack_archive(self.folder / done.stdout.split()[-1], self.folder)
        unpacked = self.folder / f"tarn-{tarn.__version__}"
        for name in ("pyproject.toml", "tarn_build.py", "tarn/_c.py", "PKG-INFO", "library/CMakeLists.txt",
                     "library/include/tarn/tarn.h", "library/src/core/tensor/dlpack.c"):
            self.assertTrue((unpacked / name).is_file(), name)
