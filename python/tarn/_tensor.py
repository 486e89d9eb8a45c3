"""Tensors: values on a device, their gradients, and the ways to and from Python, NumPy and DLPack."""
import array
import contextlib
import ctypes
import math
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple, Union

from . import _c, _dlpack
from ._library import Scope, call, changes, check, keep, kept, lib
from ._operators import Number, Operators
from ._types import Device, DeviceLike, DType, DTypeLike, device_of, dtype_of, listed, shape_struct

TYPECODES = {DType.F32: "f", DType.F64: "d", DType.I32: "i", DType.I64: "q", DType.U8: "B", DType.BOOL: "B"}
CPU, CUDA = 1, 2  # DLPack's device types
LEGACY_DEFAULT_STREAM = 1

Real = float
Index = Union[None, int, slice, "Tensor", Any]


class Tensor(Operators):
    """A view of memory on one device; created by `tarn.tensor()`, `tarn.zeros()` and others.

    A tensor may be read by several threads and written by one; any thread may drop it."""

    __slots__ = ("_handle", "__weakref__")
    __array_ufunc__ = None  # array + tensor is a tensor

    def __del__(self, free: Callable[[int], None] = lib.tarn_free) -> None:
        handle = getattr(self, "_handle", 0)
        if handle:
            free(handle)

    def _of_array(self, array: Any) -> "Tensor":
        return tensor(array, device=self.device)

    def __copy__(self) -> "Tensor":
        return self._wrap(keep(self._handle))

    def __deepcopy__(self, memo: Any) -> "Tensor":
        if self.requires_grad:
            raise TypeError("a tensor that requires a gradient cannot be copied: clone() it, or detach() it first")
        memo[id(self)] = made = self.clone()
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a tensor cannot be pickled: use tarn.save_file(), or pickle x.numpy()")

    # ---- properties

    @property
    def shape(self) -> Tuple[int, ...]:
        """Size per axis."""
        found = call(lib.tarn_shape_of, self._handle)
        return tuple(found.size[:found.rank])

    @property
    def strides(self) -> Tuple[int, ...]:
        """Elements from one index to the next, per axis."""
        return tuple(int(call(lib.tarn_stride_of, self._handle, axis)) for axis in range(self.ndim))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(call(lib.tarn_rank, self._handle))

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(call(lib.tarn_count, self._handle))

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(call(lib.tarn_bytes, self._handle))

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return DType(call(lib.tarn_dtype_of, self._handle))

    @property
    def device(self) -> Device:
        """Where the memory is."""
        return Device._from(call(lib.tarn_device_of, self._handle))

    @property
    def is_contiguous(self) -> bool:
        """True if the layout is row-major without gaps."""
        return bool(call(lib.tarn_is_contiguous, self._handle))

    @property
    def data_ptr(self) -> int:
        """Address of the first element on the device."""
        return int(call(lib.tarn_data, self._handle) or 0)

    @property
    def name(self) -> str:
        """Name, which errors and memory tables show."""
        return str(call(lib.tarn_name, self._handle).decode(errors="replace"))

    @name.setter
    def name(self, value: str) -> None:
        call(lib.tarn_set_name, self._handle, value.encode())

    @property
    def T(self) -> "Tensor":
        """All axes in reverse order."""
        return self.permute(*reversed(range(self.ndim))) if self.ndim else self

    # ---- gradients

    @property
    def requires_grad(self) -> bool:
        """True if gradients flow into or through this tensor."""
        return bool(call(lib.tarn_needs_grad, self._handle))

    @requires_grad.setter
    def requires_grad(self, required: bool) -> None:
        call(lib.tarn_requires_grad, self._handle, required)

    def requires_grad_(self, required: bool = True) -> "Tensor":
        """Sets whether a gradient is accumulated for this tensor, and returns it."""
        self.requires_grad = required
        return self

    @property
    def grad(self) -> Optional["Tensor"]:
        """The accumulated gradient, or None. The next step overwrites it: clone it to keep it."""
        gradient = call(lib.tarn_grad, self._handle)
        return Tensor._wrap(keep(gradient)) if gradient else None

    def zero_grad(self) -> None:
        """Drops the gradient."""
        lib.tarn_zero_grad(self._handle)

    def backward(self, gradient: Optional["Tensor"] = None, retain_graph: bool = False) -> None:
        """Accumulates the gradients of every tensor that this one depends on and that requires one."""
        given = gradient._handle if gradient is not None else None
        chosen = _c.tarn_backward_options(retain=retain_graph)
        with Scope():
            lib.tarn_backward_from_sized(self._handle, given, ctypes.byref(chosen), ctypes.sizeof(chosen))
        check()

    # ---- devices and dtypes

    def to(self, target: Union[DeviceLike, DType], dtype: Optional[DTypeLike] = None) -> "Tensor":
        """The tensor on another device, with another dtype, or both: x.to("cuda"), x.to("cpu", "f32")."""
        result = self
        if isinstance(target, DType):
            result = result.to_dtype(target)
        else:
            result = result._apply(lib.tarn_to, device_of(target))
        return result if dtype is None else result.to_dtype(dtype)

    def cpu(self) -> "Tensor":
        """The tensor on the CPU."""
        return self.to("cpu")

    def float(self) -> "Tensor":
        """The tensor as f32."""
        return self.to_dtype(DType.F32)

    def copy_(self, source: Any) -> "Tensor":
        """Copies the elements of a tensor or an array of the same shape, in place, converting dtype and device."""
        if not isinstance(source, Tensor):
            source = tensor(source)
        call(lib.tarn_copy, self._handle, source._handle)
        changes.note()
        return self

    # ---- Python values

    def _flat(self) -> "array.array[Any]":
        source, dtype = self, self.dtype
        if dtype not in TYPECODES:
            source, dtype = self.float(), DType.F32
        values = array.array(TYPECODES[dtype], bytes(source.size * dtype.itemsize))
        address, _ = values.buffer_info()
        call(lib.tarn_read, source._handle, address if source.size else None, source.size * dtype.itemsize)
        return values

    def tolist(self) -> Any:
        """The elements as nested lists; a number for a tensor without axes."""
        flat: List[Any] = self._flat().tolist()
        if self.dtype == DType.BOOL:
            flat = [bool(value) for value in flat]
        shape = self.shape
        for axis in range(len(shape) - 1, 0, -1):
            size, rows = shape[axis], math.prod(shape[:axis])
            flat = [flat[row * size:(row + 1) * size] for row in range(rows)]
        return flat if shape else flat[0]

    def item(self) -> Any:
        """The value of a tensor of one element."""
        if self.size != 1:
            raise ValueError(f"item: the tensor has {self.size} elements; it must have 1")
        value = self._flat()[0]
        return bool(value) if self.dtype == DType.BOOL else value

    def __float__(self) -> Real:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"the truth of a tensor of {self.size} elements is ambiguous; use .item() of one")
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        length = lib.tarn_format(self._handle, None, 0)
        buffer = ctypes.create_string_buffer(length + 1)
        lib.tarn_format(self._handle, buffer, len(buffer))
        device = "" if self.device.type == "cpu" else f", device='{self.device}'"
        gradient = ", requires_grad=True" if self.requires_grad else ""
        return f"tensor({buffer.value.decode()}, dtype={self.dtype}{device}{gradient})"

    # ---- indexing

    def _select(self, key: Index) -> "Tensor":
        """Integers, slices, None, Ellipsis, and lists, arrays or tensors of integers, each for one axis."""
        keys = [self._key(part) for part in (key if isinstance(key, tuple) else (key, ))]
        used = sum(1 for part in keys if part is not None and part is not Ellipsis)
        if used > self.ndim:
            raise IndexError(f"{used} indices for a tensor of {self.ndim} axes")
        at = next((place for place, part in enumerate(keys) if part is Ellipsis), len(keys))
        keys[at:at + 1] = [slice(None)] * (self.ndim - used)
        result, axis = self, 0
        for part in keys:
            if part is None:
                result = result.unsqueeze(axis)
                axis += 1
            elif isinstance(part, slice):
                result = result._sliced(axis, part)
                axis += 1
            elif isinstance(part, Tensor):
                result = result._listed(axis, part)
                axis += part.ndim
            else:
                result = result._one(axis, part)
        return result

    def _key(self, part: Any) -> Any:
        """A part of an index; a list or an array as a tensor."""
        if isinstance(part, (Tensor, slice)) or part is None or part is Ellipsis:
            return part
        is_array = hasattr(part, "__dlpack__") and getattr(part, "shape", ()) != ()
        return tensor(part, device=self.device) if is_array or isinstance(part, list) else part

    def _one(self, axis: int, part: Any) -> "Tensor":
        try:
            index = int(part.__index__())
        except (AttributeError, TypeError):
            raise TypeError(f"index of type {type(part).__name__}; an integer, a slice, None, ... or an integer tensor "
                            "is expected") from None
        size = self.shape[axis]
        if not -size <= index < size:
            raise IndexError(f"index {index} is outside axis {axis}, which has {size} elements")
        index += size if index < 0 else 0
        return self.slice(axis, index, index + 1).squeeze(axis)

    def _sliced(self, axis: int, part: slice) -> "Tensor":
        begin, end, step = part.indices(self.shape[axis])
        if (begin, end, step) == (0, self.shape[axis], 1):
            return self
        count = len(range(begin, end, step))
        if step < 0:
            begin, end = begin + (count - 1) * step, begin + 1
        result = self.slice(axis, begin, end) if count else self.slice(axis, 0, 0)
        if step < 0:
            result = result.flip(axis)
        if abs(step) > 1:
            steps = [abs(step) if place == axis else 1 for place in range(self.ndim)]
            result = result._apply(lib.tarn_stride, shape_struct(steps))
        return result

    def _listed(self, axis: int, index: "Tensor") -> "Tensor":
        if index.dtype not in (DType.I32, DType.I64):
            raise TypeError(f"index tensor of {index.dtype}; i64 or i32 is expected")
        rows = self.index_select(axis, index.reshape(-1))
        return rows.reshape(*self.shape[:axis], *index.shape, *self.shape[axis + 1:])

    def __getitem__(self, key: Index) -> "Tensor":
        return self._select(key)

    def __setitem__(self, key: Index, value: Any) -> None:
        parts = key if isinstance(key, tuple) else (key, )
        if any(isinstance(self._key(part), Tensor) for part in parts):
            raise TypeError("assignment through an index tensor is not supported; use tarn.functional.scatter_add()")
        with no_grad():
            target = self._select(key)
            if not isinstance(value, (Tensor, int, float)):
                value = tensor(value)
            if isinstance(value, Tensor):
                target.copy_(value.expand(*target.shape) if value.shape != target.shape else value)
            else:
                target.fill_(value)

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[row] for row in range(len(self)))

    # ---- NumPy and DLPack

    def numpy(self) -> Any:
        """A NumPy array on the same memory, without a copy; the tensor must be on the CPU and require no gradient."""
        import numpy
        if self.dtype == DType.BF16:
            raise TypeError("numpy() of bf16, which NumPy does not have: use x.float().numpy()")
        if self.device.type != "cpu":
            raise TypeError(f"numpy() of a tensor on {self.device}: use x.cpu().numpy()")
        return numpy.from_dlpack(self)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        values = self.numpy()
        if dtype is not None and dtype != values.dtype:
            if copy is False:
                raise ValueError(f"a copy is needed to convert {values.dtype} to {dtype}")
            return values.astype(dtype)
        return values.copy() if copy else values

    def __dlpack_device__(self) -> Tuple[int, int]:
        device = self.device
        if device.type == "cpu":
            return CPU, 0
        if device.type == "cuda":
            return CUDA, device.index
        raise BufferError(f"the tensor is on {device}; DLPack shares tensors on the CPU and CUDA")

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        own, source = self.__dlpack_device__(), self
        if dl_device is not None and tuple(dl_device) != own:
            if tuple(dl_device) != (CPU, 0) or copy is False:
                raise BufferError(f"the tensor is on {self.device}; it can be shared there, or copied to the CPU")
            source = self.detach().cpu()
        elif copy:
            source = self.clone()
        if source.__dlpack_device__()[0] == CUDA and stream != -1:
            source.device.synchronize()
        try:
            return _dlpack.capsule_of(source._handle, max_version is not None and max_version[0] >= 1)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise BufferError(str(error)) from error


def from_dlpack(source: Any, *, copy: Optional[bool] = None) -> Tensor:
    """A tensor on the memory of a NumPy array, a PyTorch tensor or another object of DLPack's protocol.

    Only read-only memory is copied; with `copy=False` that is an error, `copy=True` always copies."""
    if _dlpack.is_capsule(source):
        result = Tensor._wrap(_dlpack.take(source, copy))
    else:
        kind, index = source.__dlpack_device__()
        wanted = {}
        if kind == CUDA:
            native = lib.tarn_native_stream(device_of(f"cuda:{index}"))
            wanted["stream"] = native or LEGACY_DEFAULT_STREAM
        try:
            capsule = source.__dlpack__(max_version=(1, 0), **wanted)
        except TypeError:  # a producer of DLPack before 1.0
            capsule = source.__dlpack__(**wanted)
        result = Tensor._wrap(_dlpack.take(capsule, copy))
    return result.clone() if copy else result


# ---- creating tensors


def _flatten(values: Any, shape: List[int], depth: int, flat: List[Any]) -> None:
    if hasattr(values, "tolist"):  # an array or a tensor
        values = values.tolist()
    if not isinstance(values, (list, tuple, range)):
        if depth != len(shape):
            raise ValueError(f"tensor: nested lists are uneven at depth {depth}")
        flat.append(values)
        return
    if depth == len(shape):
        if flat:
            raise ValueError(f"tensor: nested lists are uneven at depth {depth}")
        shape.append(len(values))
    if shape[depth] != len(values):
        raise ValueError(f"tensor: nested lists are uneven: {shape[depth]} and {len(values)} at depth {depth}")
    for value in values:
        _flatten(value, shape, depth + 1, flat)


def _inferred(flat: Sequence[Any]) -> DType:
    if flat and all(isinstance(value, bool) for value in flat):
        return DType.BOOL
    return DType.I64 if flat and all(isinstance(value, int) for value in flat) else DType.F32


def _from_values(values: Any, dtype: Optional[DType], device: Any) -> Tensor:
    shape: List[int] = []
    flat: List[Any] = []
    _flatten(values, shape, 0, flat)
    chosen = dtype if dtype is not None else _inferred(flat)
    stored = chosen if chosen in TYPECODES else DType.F32
    if stored == DType.BOOL:
        flat = [bool(value) for value in flat]
    elements = array.array(TYPECODES[stored], flat)
    address, _ = elements.buffer_info()
    made = kept(lib.tarn_from, address if flat else None, shape_struct(shape), int(stored), device)
    result = Tensor._wrap(made)
    return result if stored == chosen else result.to_dtype(chosen)


def tensor(data: Any, dtype: Optional[DTypeLike] = None, device: Optional[DeviceLike] = None,
           requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of `data`: a number, nested lists, or an array (NumPy, PyTorch, another tensor).

    Without a dtype, bools become bool, integers i64, other numbers f32; arrays keep theirs."""
    chosen = None if dtype is None else dtype_of(dtype)
    place = device_of(device)
    if hasattr(data, "__dlpack__"):
        result = from_dlpack(data, copy=True)
        if chosen is not None:
            result = result.to_dtype(chosen)
        result = Tensor._wrap(kept(lib.tarn_to, result._handle, place)) if device is not None else result
    else:
        result = _from_values(data, chosen, place)
    return result.detach().requires_grad_() if requires_grad else result


def _created(function: Callable[..., Any], shape: Sequence[int], *values: Any, dtype: DTypeLike,
             device: Optional[DeviceLike], requires_grad: bool) -> Tensor:
    made = Tensor._wrap(kept(function, shape_struct(listed(shape)), *values, int(dtype_of(dtype)), device_of(device)))
    return made.requires_grad_() if requires_grad else made


def empty(*shape: Any, dtype: DTypeLike = DType.F32, device: Optional[DeviceLike] = None) -> Tensor:
    """An uninitialized tensor."""
    return _created(lib.tarn_empty, shape, dtype=dtype, device=device, requires_grad=False)


def zeros(*shape: Any, dtype: DTypeLike = DType.F32, device: Optional[DeviceLike] = None,
          requires_grad: bool = False) -> Tensor:
    """Zeros: tarn.zeros(2, 3) or tarn.zeros((2, 3))."""
    return _created(lib.tarn_zeros, shape, dtype=dtype, device=device, requires_grad=requires_grad)


def ones(*shape: Any, dtype: DTypeLike = DType.F32, device: Optional[DeviceLike] = None,
         requires_grad: bool = False) -> Tensor:
    """Ones."""
    return _created(lib.tarn_ones, shape, dtype=dtype, device=device, requires_grad=requires_grad)


def full(shape: Sequence[int], value: float, dtype: DTypeLike = DType.F32,
         device: Optional[DeviceLike] = None) -> Tensor:
    """A tensor filled with a value."""
    return _created(lib.tarn_full, tuple(shape), value, dtype=dtype, device=device, requires_grad=False)


def rand(*shape: Any, low: float = 0.0, high: float = 1.0, dtype: DTypeLike = DType.F32,
         device: Optional[DeviceLike] = None, requires_grad: bool = False) -> Tensor:
    """Uniform random values in [low, high)."""
    return _created(lib.tarn_uniform, shape, low, high, dtype=dtype, device=device, requires_grad=requires_grad)


def randn(*shape: Any, mean: float = 0.0, std: float = 1.0, dtype: DTypeLike = DType.F32,
          device: Optional[DeviceLike] = None, requires_grad: bool = False) -> Tensor:
    """Normal random values."""
    return _created(lib.tarn_normal, shape, mean, std, dtype=dtype, device=device, requires_grad=requires_grad)


def arange(begin: float, end: Optional[float] = None, step: float = 1, dtype: Optional[DTypeLike] = None,
           device: Optional[DeviceLike] = None) -> Tensor:
    """The values begin, begin + step ... below end; a single argument is the end. Integers give i64, others f32."""
    first, last = (0, begin) if end is None else (begin, end)
    inferred = DType.I64 if all(isinstance(value, int) for value in (first, last, step)) else DType.F32
    chosen = inferred if dtype is None else dtype_of(dtype)
    return Tensor._wrap(kept(lib.tarn_arange, first, last, step, int(chosen), device_of(device)))


def eye(rows: int, columns: Optional[int] = None, dtype: DTypeLike = DType.F32,
        device: Optional[DeviceLike] = None) -> Tensor:
    """A matrix with ones on its diagonal."""
    wide = rows if columns is None else columns
    return Tensor._wrap(kept(lib.tarn_eye, rows, wide, int(dtype_of(dtype)), device_of(device)))


def zeros_like(like: Tensor) -> Tensor:
    """Zeros with the shape, dtype and device of another tensor."""
    return like._apply(lib.tarn_zeros_like)


def ones_like(like: Tensor) -> Tensor:
    """Ones with the shape, dtype and device of another tensor."""
    return like._apply(lib.tarn_ones_like)


class no_grad(contextlib.ContextDecorator):  # pylint: disable=invalid-name; torch's name
    """Disables recording on this thread: `with tarn.no_grad():`, or `@tarn.no_grad()` over a function."""

    def __enter__(self) -> "no_grad":
        lib.tarn_no_grad_open()
        return self

    def __exit__(self, *_: Any) -> None:
        lib.tarn_no_grad_close()
