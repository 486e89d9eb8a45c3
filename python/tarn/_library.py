"""Finding and loading libtarn; errors as exceptions; ownership of handles.

ctypes releases the global interpreter lock during every call, so other threads run while tarn computes. The library
stores errors per thread; raising the exception clears the error."""
import ctypes
import ctypes.util
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Tuple, Type, Union

from . import _c

PathLike = Union[str, "os.PathLike[str]"]
BUNDLED = Path(__file__).with_name("lib") / f"libtarn.so.{_c.TARN_VERSION_MAJOR}"


class Error(Exception):
    """An error of the library; `code` is its kind ("shape", "dtype" ...)."""

    code = "internal"


class ArgumentError(Error, ValueError):
    """A value out of range."""

    code = "argument"


class ShapeError(Error, ValueError):
    """Shapes that do not match."""

    code = "shape"


class DtypeError(Error, TypeError):
    """A dtype that is not supported or does not match."""

    code = "dtype"


class DeviceError(Error, RuntimeError):
    """A device that was not found, or operands on different devices."""

    code = "device"


class OutOfMemoryError(Error, MemoryError):
    """Out of memory, on the host or a device."""

    code = "memory"


class FileError(Error, OSError):
    """A file operation that the operating system failed."""

    code = "io"


class FormatError(Error, ValueError):
    """A malformed file or string."""

    code = "format"


class UnsupportedError(Error, NotImplementedError):
    """Valid, but not built in or not available here."""

    code = "unsupported"


KINDS: Dict[int, Type[Error]] = {
    _c.TARN_ERROR_ARGUMENT: ArgumentError,
    _c.TARN_ERROR_SHAPE: ShapeError,
    _c.TARN_ERROR_DTYPE: DtypeError,
    _c.TARN_ERROR_DEVICE: DeviceError,
    _c.TARN_ERROR_MEMORY: OutOfMemoryError,
    _c.TARN_ERROR_IO: FileError,
    _c.TARN_ERROR_FORMAT: FormatError,
    _c.TARN_ERROR_UNSUPPORTED: UnsupportedError,
}


def find() -> str:
    """The path of libtarn: TARN_LIBRARY, else the wheel's own, else the system's."""
    named = os.environ.get("TARN_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise ImportError(f"TARN_LIBRARY is '{named}', which is not a file; it names libtarn.so")
        return named
    if BUNDLED.is_file():
        return str(BUNDLED)
    system = ctypes.util.find_library("tarn")
    if not system:
        raise ImportError("libtarn.so was not found: install a wheel that has it, install tarn on the system, or set "
                          "TARN_LIBRARY to its path")
    return system


def load() -> Any:
    """The library with the prototypes of the headers."""
    path = find()
    library = ctypes.CDLL(path)
    for name, (result, parameters) in _c.PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"'{path}' has no {name}(): it is not of the version of this package, "
                              f"{_c.TARN_VERSION_MAJOR}.{_c.TARN_VERSION_MINOR}") from None
        function.restype, function.argtypes = result, parameters
    return library


lib: Any = load()

# An exception in a callback ends the library's work with an error; the caller of the library gets the exception.
_raised = threading.local()


def fail(error: BaseException) -> None:
    """Keeps the exception of a callback and raises an error in the library."""
    _raised.error = error
    lib.tarn_set_error(_c.TARN_ERROR_INTERNAL, b"%s", f"callback: {type(error).__name__}: {error}".encode())


def check() -> None:
    """Raises the pending error, if any, and clears it."""
    if not lib.tarn_failed():
        return
    kind = KINDS.get(lib.tarn_error_code(), Error)
    text = lib.tarn_error().decode(errors="replace")
    lib.tarn_clear_error()
    original: Optional[BaseException] = getattr(_raised, "error", None)
    _raised.error = None
    if original is not None:
        raise original
    raise kind(text)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of the library; an error is raised as an exception."""
    try:
        result = function(*arguments)
    except ctypes.ArgumentError as error:  # which is no TypeError
        raise TypeError(f"{getattr(function, '__name__', 'tarn')}: {error}") from None
    check()
    return result


class Scope:
    """A scope for temporaries, which are freed at its end."""

    __slots__ = ("_scope", )

    def __enter__(self) -> "Scope":
        self._scope = lib.tarn_scope_open()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        lib.tarn_scope_close(self._scope)


def keep(tensor: Optional[int]) -> int:
    """A handle of our own on a tensor of the open scope."""
    kept = lib.tarn_keep(tensor)
    if not kept:
        check()
    return int(kept)


def kept(function: Callable[..., Any], *arguments: Any) -> int:
    """A handle on the result of a function that returns a tensor."""
    with Scope():
        return keep(call(function, *arguments))


_owners = threading.RLock()


class Owner:
    """A handle of the library and what it borrows, which is freed after it, in whatever order Python drops them."""

    __slots__ = ("handle", "_free", "_borrowed", "_users")

    def __init__(self, handle: int, free: Optional[Callable[[int], None]], *borrowed: "Owner") -> None:
        self.handle, self._free, self._borrowed, self._users = handle, free, borrowed, 1
        for other in borrowed:
            other.retain()

    def retain(self) -> None:
        """One more user."""
        with _owners:
            self._users += 1

    def release(self) -> None:
        """One user less; the last one frees."""
        with _owners:
            self._users -= 1
            if self._users > 0:
                return
            free, self._free = self._free, None
            borrowed, self._borrowed = self._borrowed, ()
        if free:
            free(self.handle)
        for other in borrowed:
            other.release()

    def give_to(self, parent: "Owner") -> None:
        """The parent's handle now owns this one."""
        parent.retain()
        with _owners:
            self._free = None
            self._borrowed += (parent, )

    def lose(self) -> None:
        """The library has freed the handle."""
        with _owners:
            self._free, self.handle = None, 0

    @property
    def is_given(self) -> bool:
        """True if another handle owns this one, or it was freed."""
        return self._free is None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Not supported: two objects would free one handle."""
        raise TypeError("objects of tarn cannot be copied or pickled: create another one, and load its weights by "
                        "load_state_dict() or from a file")

    @property
    def root(self) -> "Owner":
        """The outermost handle that owns this one."""
        return self._borrowed[-1].root if self.is_given and self._borrowed else self

    def __del__(self) -> None:
        self.release()


class Changes:
    """Counts changes of weights, to invalidate results computed before a change."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        """One more change."""
        self.count += 1


changes = Changes()


def options(kind: Any, **values: Any) -> Tuple[Any, int]:
    """A pointer to an options struct, zero but for the given fields, and its size."""
    struct = kind()
    for name, value in values.items():
        if value is not None:
            setattr(struct, name, value)
    return ctypes.byref(struct), ctypes.sizeof(struct)


def text_of(address: Optional[int], length: int) -> bytes:
    """Bytes at an address."""
    return ctypes.string_at(address, length) if address else b""


def address_of(name: str) -> Any:
    """A function of the library whose string may contain zero bytes: the result is an address."""
    return ctypes.CFUNCTYPE(ctypes.c_void_p, *_c.PROTOTYPES[name][1])((name, lib))


def path_of(path: PathLike) -> bytes:
    """A path as bytes, as the library expects it."""
    return os.fsencode(path)


def version() -> str:
    """Version of the library."""
    return str(lib.tarn_version().decode())


def set_threads(count: int) -> None:
    """Sets the number of threads of CPU kernels; 0: one per core."""
    call(lib.tarn_set_threads, count)


def get_threads() -> int:
    """Number of threads of CPU kernels."""
    return int(call(lib.tarn_threads))


def seed(value: int) -> None:
    """Seeds the random generators of all devices for this thread."""
    lib.tarn_seed(value)
