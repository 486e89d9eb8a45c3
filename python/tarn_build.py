"""The build backend of the wheel (PEP 517), with the standard library alone: cmake builds and installs libtarn and the
command, which go into the package next to its Python files.

Settings (`pip install ./python -C NAME=VALUE`):
    build-dir=FOLDER    a configured build of tarn to take them from; by default build/python of the source tree
    cuda=ON             builds the CUDA backend too, which needs nvcc
    opencl=ON           builds the OpenCL backend too
"""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The C sources: the tree that this folder is in, or the copy that a source distribution has.
SOURCE = HERE / "library" if (HERE / "library").is_dir() else HERE.parent
SETTINGS = {"build-dir", "cuda", "opencl"}
TARGETS = ["tarn", "tarn_static", "tarn_command"]
LEFT_OUT = ("tests/", "python/", ".ci/", "debian/")


class BuildError(Exception):
    """An error of the build."""


def version():
    """That of the C project."""
    text = (SOURCE / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"^project\(tarn VERSION ([0-9.]+)", text, re.M)[1]


def switches(settings):
    """The settings, checked."""
    given = dict(settings or {})
    unknown = set(given) - SETTINGS
    if unknown:
        raise BuildError(f"-C {sorted(unknown)[0]}: settings are {', '.join(sorted(SETTINGS))}")
    for name in ("cuda", "opencl"):
        value = given.setdefault(name, "OFF").upper()
        if value not in ("ON", "OFF"):
            raise BuildError(f"-C {name}={given[name]}: it must be ON or OFF")
        given[name] = value
    return given


def run(*command):
    """Runs a command, with its output on that of the builder."""
    print("tarn:", *command, flush=True)
    try:
        subprocess.run([str(part) for part in command], check=True)
    except FileNotFoundError:
        raise BuildError(f"{command[0]} was not found: install it, as the guide docs/guide/install.md says") from None
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{command[0]} failed with status {error.returncode}; its output is above") from None


def build(given, stage):
    """Builds the library and the command, and installs them below `stage`."""
    folder = Path(given["build-dir"]).resolve() if "build-dir" in given else SOURCE / "build" / "python"
    targets = TARGETS + [f"tarn_{name}" for name in ("cuda", "opencl") if given[name] == "ON"]
    if "build-dir" not in given:
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        run("cmake", "-S", SOURCE, "-B", folder, *generator, "-DCMAKE_BUILD_TYPE=Release", "-DTARN_TESTS=OFF",
            "-DTARN_EXAMPLES=OFF", "-DTARN_INSTALL=ON", "-DTARN_MPI=OFF", f"-DTARN_CUDA={given['cuda']}",
            f"-DTARN_OPENCL={given['opencl']}", "-DCMAKE_INSTALL_LIBDIR=lib", "-DCMAKE_INSTALL_BINDIR=bin",
            "-DTARN_PLUGIN_DIR=lib")
    elif not (folder / "CMakeCache.txt").is_file():
        raise BuildError(f"-C build-dir={given['build-dir']}: there is no CMakeCache.txt: it is not a build of cmake")
    run("cmake", "--build", folder, "--parallel", os.cpu_count() or 1, "--target", *targets)
    run("cmake", "--install", folder, "--prefix", stage, "--strip")


def package_files(stage, wants_backends):
    """(path in the wheel, path here) of everything in the package. The command finds the library at ../lib."""
    for path in sorted((HERE / "tarn").rglob("*")):
        if path.suffix == ".py" or path.name == "py.typed":
            yield path.relative_to(HERE).as_posix(), path
    major = version().split(".", 1)[0]
    yield f"tarn/lib/libtarn.so.{major}", next(stage.rglob(f"libtarn.so.{major}"))
    yield "tarn/bin/tarn", stage / "bin" / "tarn"
    for name in wants_backends:
        yield f"tarn/lib/libtarn-{name}.so", next(stage.rglob(f"libtarn-{name}.so"))


def metadata():
    """METADATA from pyproject.toml; the version is that of the C project."""
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    return (f"Metadata-Version: 2.1\nName: tarn\nVersion: {version()}\n"
            "Summary: Train and run neural networks: tensors, autograd, modules, language models\n"
            "License: MIT\nRequires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n" + readme)


def tag():
    """Any Python 3; this system and processor."""
    return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())


class Wheel:
    """A wheel whose bytes depend on its files alone."""

    def __init__(self, path, info):
        self.archive, self.records, self.info = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED), [], info
        stamp = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
        self.date = time.gmtime(max(stamp, 315532800))[:6]

    def add(self, name, data, mode=0o644):
        """Adds a file."""
        entry = zipfile.ZipInfo(name, self.date)
        entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
        self.archive.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.records.append(f"{name},sha256={digest},{len(data)}")

    def close(self):
        """Writes RECORD."""
        self.records.append(f"{self.info}/RECORD,,")
        self.archive.writestr(zipfile.ZipInfo(f"{self.info}/RECORD", self.date), "\n".join(self.records) + "\n")
        self.archive.close()


def info_files():
    """(name, text) of the files in dist-info."""
    yield "METADATA", metadata()
    yield "WHEEL", f"Wheel-Version: 1.0\nGenerator: tarn_build\nRoot-Is-Purelib: false\nTag: {tag()}\n"
    yield "entry_points.txt", "[console_scripts]\ntarn = tarn.__main__:main\n"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Called by pip, which would otherwise build the wheel for its metadata."""
    switches(config_settings)
    info = f"tarn-{version()}.dist-info"
    Path(metadata_directory, info).mkdir()
    for name, text in info_files():
        Path(metadata_directory, info, name).write_text(text, encoding="utf-8")
    return info


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Called by pip."""
    del metadata_directory
    given = switches(config_settings)
    name, info = f"tarn-{version()}-{tag()}.whl", f"tarn-{version()}.dist-info"
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        build(given, stage)
        wheel = Wheel(Path(wheel_directory) / name, info)
        for inside, path in package_files(stage, [key for key in ("cuda", "opencl") if given[key] == "ON"]):
            is_binary = inside.startswith(("tarn/lib/", "tarn/bin/"))
            wheel.add(inside, path.read_bytes(), 0o755 if is_binary else 0o644)
    for name_of_info, text in info_files():
        wheel.add(f"{info}/{name_of_info}", text.encode())
    wheel.add(f"{info}/LICENSE", (SOURCE / "LICENSE").read_bytes())
    wheel.close()
    return name


def source_files():
    """Files of the C project that a source distribution needs, relative to SOURCE."""
    listed = subprocess.run(["git", "-C", str(SOURCE), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        names = listed.stdout.split("\0")
    else:
        names = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if path.is_file()]
    return sorted(name for name in names
                  if name and not name.startswith(LEFT_OUT + ("build/", )) and (SOURCE / name).is_file())


def build_sdist(sdist_directory, config_settings=None):
    """Called by pip and others: this folder, with the C project in library/."""
    switches(config_settings)
    root, name = f"tarn-{version()}", f"tarn-{version()}.tar.gz"
    with tarfile.open(Path(sdist_directory) / name, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(HERE.glob("*")) + sorted((HERE / "tarn").glob("*")):
            if path.is_file():
                archive.add(path, f"{root}/{path.relative_to(HERE).as_posix()}")
        for inside in source_files():
            archive.add(SOURCE / inside, f"{root}/library/{inside}", recursive=False)
        with tempfile.NamedTemporaryFile() as file:
            file.write(metadata().encode())
            file.flush()
            archive.add(file.name, f"{root}/PKG-INFO")
    return name
