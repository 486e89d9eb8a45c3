"""Dtypes and devices."""
import ctypes
import enum
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _c
from ._library import call, lib


class DType(enum.IntEnum):
    """Element type of a tensor; also as `tarn.float32` and so on."""

    F32 = _c.TARN_F32
    F64 = _c.TARN_F64
    BF16 = _c.TARN_BF16
    F16 = _c.TARN_F16
    I32 = _c.TARN_I32
    I64 = _c.TARN_I64
    U8 = _c.TARN_U8
    BOOL = _c.TARN_BOOL
    Q8_0 = _c.TARN_Q8_0
    Q4_0 = _c.TARN_Q4_0
    Q4_K = _c.TARN_Q4_K
    Q6_K = _c.TARN_Q6_K
    Q4_1 = _c.TARN_Q4_1
    Q5_0 = _c.TARN_Q5_0
    Q5_1 = _c.TARN_Q5_1
    Q2_K = _c.TARN_Q2_K
    Q3_K = _c.TARN_Q3_K
    Q5_K = _c.TARN_Q5_K
    IQ4_NL = _c.TARN_IQ4_NL
    IQ4_XS = _c.TARN_IQ4_XS

    @property
    def itemsize(self) -> int:
        """Bytes of one element, or of one quant block."""
        return int(lib.tarn_dtype_size(int(self)))

    @property
    def is_float(self) -> bool:
        """True for f32, f64, bf16 and f16."""
        return self <= DType.F16

    @property
    def is_quantized(self) -> bool:
        """True for the quantized types of GGUF."""
        return self >= DType.Q8_0

    def __str__(self) -> str:
        return str(lib.tarn_dtype_name(int(self)).decode())


LONG_NAMES: Dict[str, DType] = {
    "float32": DType.F32,
    "float64": DType.F64,
    "bfloat16": DType.BF16,
    "float16": DType.F16,
    "int32": DType.I32,
    "int64": DType.I64,
    "uint8": DType.U8,
}

DTypeLike = Union[DType, str]


def dtype_of(value: DTypeLike) -> DType:
    """A dtype from itself or its name: "f32", "float32"."""
    if isinstance(value, DType):
        return value
    if not isinstance(value, str):
        raise TypeError(f"dtype is {value!r}: it must be tarn.float32 or another of tarn's, or a name such as 'f32'")
    if value in LONG_NAMES:
        return LONG_NAMES[value]
    return DType(call(lib.tarn_dtype_parse, value.encode()))


class Device:
    """A device: "cpu", "cuda:0", "opencl:1"; "auto" is the preferred one."""

    __slots__ = ("_value", )
    _value: Any

    def __init__(self, name: str = "cpu") -> None:
        self._value = call(lib.tarn_device_parse, name.encode())

    @classmethod
    def _from(cls, value: Any) -> "Device":
        device = cls.__new__(cls)
        device._value = value
        return device

    @property
    def type(self) -> str:
        """Name of the backend: "cpu", "cuda", "opencl"."""
        return str(self).partition(":")[0]

    @property
    def index(self) -> int:
        """Number of the device in its backend."""
        return int(self._value.index)

    @property
    def description(self) -> str:
        """The vendor's name of the device."""
        info = _c.tarn_device_info()
        call(lib.tarn_device_query, self._value, ctypes.byref(info))
        return str(info.description.decode(errors="replace"))

    def synchronize(self) -> None:
        """Waits until all work queued on the device has finished."""
        call(lib.tarn_synchronize, self._value)

    def empty_cache(self) -> None:
        """Returns unused memory of the pool to the system."""
        call(lib.tarn_empty_cache, self._value)

    def __str__(self) -> str:
        buffer = ctypes.create_string_buffer(32)
        lib.tarn_device_name(self._value, buffer, len(buffer))
        return str(buffer.value.decode())

    def __repr__(self) -> str:
        return f"tarn.Device('{self}')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and bool(lib.tarn_device_equal(self._value, other._value))

    def __hash__(self) -> int:
        return hash((self._value.backend, self._value.index))


DeviceLike = Union[Device, str]


def device_of(value: Optional[DeviceLike]) -> Any:
    """The library's struct for a device; None is the CPU."""
    if value is None:
        return lib.tarn_device_cpu()
    return (value if isinstance(value, Device) else Device(value))._value


def devices() -> List[Device]:
    """All devices, the CPU first."""
    found: List[Device] = []
    number = 0
    while True:
        name = lib.tarn_backend_name(number)
        if name is None:
            return found
        found += [Device(f"{name.decode()}:{index}") for index in range(lib.tarn_device_count(name))]
        number += 1


def listed(sizes: Sequence[Any]) -> Sequence[int]:
    """Sizes or axes, given as separate arguments or as one tuple or list."""
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


def shape_struct(sizes: Sequence[int]) -> Any:
    """tarn_shape of some sizes."""
    if len(sizes) > _c.TARN_MAX_RANK:
        raise ValueError(f"shape: {len(sizes)} axes; tensors have at most {_c.TARN_MAX_RANK}")
    struct = _c.tarn_shape()
    struct.rank = len(sizes)
    for axis, size in enumerate(sizes):
        struct.size[axis] = size
    return struct


def axes_struct(axes: Union[None, int, Sequence[int]]) -> Any:
    """tarn_axes of some axes; None: all."""
    listed = [] if axes is None else [axes] if isinstance(axes, int) else list(axes)
    if len(listed) > _c.TARN_MAX_RANK:
        raise ValueError(f"axes: {len(listed)} of them; tensors have at most {_c.TARN_MAX_RANK}")
    struct = _c.tarn_axes()
    struct.count = len(listed)
    for place, axis in enumerate(listed):
        struct.axis[place] = axis
    return struct
