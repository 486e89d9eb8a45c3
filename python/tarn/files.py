"""Files of named tensors: safetensors and GGUF. Files are memory-mapped: opening one reads its header only."""
import ctypes
from typing import Any, Dict, Iterator, List, Mapping, Optional, Union

from . import _c
from ._library import Owner, PathLike, address_of, call, kept, lib, path_of, text_of
from ._tensor import Tensor
from ._types import DeviceLike, device_of
from .functional import handle_of

INTEGERS = {_c.TARN_GGUF_U8, _c.TARN_GGUF_I8, _c.TARN_GGUF_U16, _c.TARN_GGUF_I16, _c.TARN_GGUF_U32, _c.TARN_GGUF_I32,
            _c.TARN_GGUF_U64, _c.TARN_GGUF_I64}
REALS = {_c.TARN_GGUF_F32, _c.TARN_GGUF_F64}
INT64 = (-2**63, 2**63 - 1)

_string, _string_at = address_of("tarn_gguf_string"), address_of("tarn_gguf_string_at")

Value = Union[int, float, bool, str, List[Any]]


class _File(Mapping[str, Tensor]):
    """Tensors by name; the file is closed with the object or at the end of `with`. Its tensors stay valid."""

    _kind: str

    def __init__(self, path: PathLike, device: Optional[DeviceLike] = None) -> None:
        opened = call(getattr(lib, f"tarn_{self._kind}_open"), path_of(path))
        self._owner = Owner(opened, getattr(lib, f"tarn_{self._kind}_close"))
        self._device = device_of(device)

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._owner.is_given:
            raise ValueError("the file is closed")
        return call(getattr(lib, f"tarn_{self._kind}_{name}"), self._owner.handle, *arguments)

    def _number(self, name: str) -> int:
        number = int(self._call("find", name.encode()))
        if number < 0:
            raise KeyError(name)
        return number

    def close(self) -> None:
        """Closes the file."""
        if not self._owner.is_given:
            self._owner.release()

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self._call("count"))

    def __iter__(self) -> Iterator[str]:
        return (self._call("name", number).decode() for number in range(len(self)))


class Safetensors(_File):
    """A safetensors file, or the index of a sharded model, as a mapping: Safetensors("model.safetensors")["wte"]."""

    _kind = "safetensors"

    def __getitem__(self, name: str) -> Tensor:
        self._number(name)
        made = kept(lib.tarn_safetensors_read, self._owner.handle, name.encode(), self._device)
        return Tensor._wrap(made)

    @property
    def metadata(self) -> Dict[str, str]:
        """The metadata strings of the header."""
        key, value, found = ctypes.c_char_p(), ctypes.c_char_p(), {}
        for number in range(self._call("metadata_count")):
            self._call("metadata_at", number, ctypes.byref(key), ctypes.byref(value))
            found[(key.value or b"").decode()] = (value.value or b"").decode()
        return found


class GGUF(_File):
    """A GGUF file, or all shards of one by the path of any, as a mapping of tensors, which may be quantized. On the CPU
    they are views of the mapped file."""

    _kind = "gguf"

    def __getitem__(self, name: str) -> Tensor:
        return Tensor._wrap(kept(lib.tarn_gguf_tensor, self._owner.handle, self._number(name), self._device))

    def dtype_name(self, name: str) -> str:
        """Name of a tensor's type in the format: "Q4_K"."""
        entry = _c.tarn_gguf_entry()
        self._call("info", self._number(name), ctypes.byref(entry))
        return (entry.dtype_name or b"").decode()

    @property
    def metadata(self) -> Dict[str, Value]:
        """All keys with their values, without arrays of arrays."""
        value, found = _c.tarn_gguf_value(), {}
        for number in range(self._call("metadata_count")):
            self._call("metadata_at", number, ctypes.byref(value))
            key = value.key or b""
            one = self._array(key, value) if value.type == _c.TARN_GGUF_ARRAY else self._scalar(key, value.type)
            if one is not None:
                found[key.decode()] = one
        return found

    def _scalar(self, key: bytes, kind: int) -> Value:
        if kind == _c.TARN_GGUF_STRING:
            length = ctypes.c_size_t()
            address = call(_string, self._owner.handle, key, ctypes.byref(length))
            return text_of(address, length.value).decode(errors="replace")
        if kind == _c.TARN_GGUF_BOOL:
            truth = ctypes.c_bool()
            self._call("bool", key, ctypes.byref(truth))
            return truth.value
        if kind in REALS:
            real = ctypes.c_double()
            self._call("real", key, ctypes.byref(real))
            return real.value
        whole = ctypes.c_int64()
        self._call("int", key, *INT64, ctypes.byref(whole))
        return whole.value

    def _array(self, key: bytes, value: Any) -> Optional[Value]:
        count, element = value.count, value.element
        if element == _c.TARN_GGUF_STRING:
            return [self._string_at(key, index) for index in range(count)]
        if element == _c.TARN_GGUF_ARRAY:
            return None
        is_real = element in REALS
        numbers = ((ctypes.c_double if is_real else ctypes.c_int64) * count)()
        self._call("reals" if is_real else "ints", key, numbers, count)
        return [bool(number) for number in numbers] if element == _c.TARN_GGUF_BOOL else list(numbers)

    def _string_at(self, key: bytes, index: int) -> str:
        length = ctypes.c_size_t()
        address = call(_string_at, self._owner.handle, key, index, ctypes.byref(length))
        return text_of(address, length.value).decode(errors="replace")


def load_file(path: PathLike, device: Optional[DeviceLike] = None) -> Dict[str, Tensor]:
    """All tensors of a safetensors file."""
    with Safetensors(path, device) as file:
        return dict(file)


def save_file(tensors: Mapping[str, Tensor], path: PathLike, metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes tensors to a safetensors file; an existing file stays until the new one is complete."""
    writer = call(lib.tarn_safetensors_create, path_of(path))
    try:
        for name, tensor in tensors.items():
            call(lib.tarn_safetensors_add, writer, name.encode(), handle_of(tensor))
        for key, value in (metadata or {}).items():
            call(lib.tarn_safetensors_add_metadata, writer, key.encode(), value.encode())
    except BaseException:
        lib.tarn_safetensors_cancel(writer)
        raise
    call(lib.tarn_safetensors_finish, writer)
