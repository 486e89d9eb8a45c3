"""Operations of one and two tensors, as methods of Tensor. Axes may be negative; operands broadcast as in NumPy and
have one dtype, which numbers adapt to."""
import ctypes
from typing import Any, Callable, Optional, Sequence, Type, TypeVar, Union

from . import _c
from ._library import Scope, changes, check, keep, kept, lib
from ._types import DTypeLike, axes_struct, dtype_of, listed, shape_struct

T = TypeVar("T", bound="Operators")
Axes = Union[None, int, Sequence[int]]
Number = Union[int, float]

EXACT = 2**53  # larger integers are not all f64, which constants are


class Operators:
    """Arithmetic, reductions and movement."""

    __slots__ = ()

    _handle: int

    @classmethod
    def _wrap(cls: Type[T], handle: int) -> T:
        tensor = cls.__new__(cls)
        tensor._handle = handle
        return tensor

    def _apply(self: T, function: Callable[..., Any], *arguments: Any) -> T:
        """The result of an operation whose first operand is this tensor."""
        return self._wrap(kept(function, self._handle, *arguments))

    def _operand(self, other: Any) -> Any:
        """The handle of an operand in the open scope; None for what is none. Numbers adapt to the dtype."""
        if isinstance(other, Operators):
            return other._handle
        if getattr(other, "shape", None) == () and hasattr(other, "item"):  # a number of NumPy
            other = other.item()
        if isinstance(other, int) and abs(other) > EXACT and lib.tarn_dtype_of(self._handle) == _c.TARN_I64:
            return lib.tarn_from(ctypes.byref(ctypes.c_int64(other)), shape_struct(()), _c.TARN_I64,
                                 lib.tarn_device_of(self._handle)) if -2**63 <= other < 2**63 else None
        if isinstance(other, (int, float)):
            return lib.tarn_scalar(other)
        return None

    def _of_array(self, array: Any) -> "Operators":
        """A copy of an array on this tensor's device."""
        raise NotImplementedError

    def _pair(self, function: Callable[..., Any], other: Any, is_reversed: bool = False) -> int:
        """The result of an operation of two operands; 0 if the other is no operand."""
        if not isinstance(other, Operators) and hasattr(other, "__dlpack__") and getattr(other, "shape", ()) != ():
            other = self._of_array(other)
        with Scope():
            operand = self._operand(other)
            check()
            if not operand:
                return 0
            return keep(function(operand, self._handle) if is_reversed else function(self._handle, operand))

    def _binary(self: T, function: Callable[..., Any], other: Any, is_reversed: bool = False) -> T:
        made = self._pair(function, other, is_reversed)
        return self._wrap(made) if made else NotImplemented

    def _in_place(self: T, function: Callable[..., Any], other: Any) -> T:
        made = self._pair(function, other)
        if not made:
            return NotImplemented  # type: ignore[no-any-return]
        lib.tarn_free(made)
        changes.note()
        return self

    # ---- two operands

    def __add__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_add, other)

    def __radd__(self: T, other: Number) -> T:
        return self._binary(lib.tarn_add, other, True)

    def __sub__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_sub, other)

    def __rsub__(self: T, other: Number) -> T:
        return self._binary(lib.tarn_sub, other, True)

    def __mul__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_mul, other)

    def __rmul__(self: T, other: Number) -> T:
        return self._binary(lib.tarn_mul, other, True)

    def __truediv__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_div, other)

    def __rtruediv__(self: T, other: Number) -> T:
        return self._binary(lib.tarn_div, other, True)

    def __mod__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_mod, other)

    def __rmod__(self: T, other: Number) -> T:
        return self._binary(lib.tarn_mod, other, True)

    def __pow__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_pow, other)

    def __rpow__(self: T, other: Number) -> T:
        return self._binary(lib.tarn_pow, other, True)

    def __matmul__(self: T, other: Any) -> T:
        return self._binary(lib.tarn_matmul, other)

    def __rmatmul__(self: T, other: Any) -> T:
        return self._binary(lib.tarn_matmul, other, True)

    def __iadd__(self: T, other: Union[T, Number]) -> T:
        return self._in_place(lib.tarn_add_inplace, other)

    def __isub__(self: T, other: Union[T, Number]) -> T:
        return self._in_place(lib.tarn_sub_inplace, other)

    def __imul__(self: T, other: Union[T, Number]) -> T:
        return self._in_place(lib.tarn_mul_inplace, other)

    def __itruediv__(self: T, other: Union[T, Number]) -> T:
        return self._in_place(lib.tarn_div_inplace, other)

    def __eq__(self: T, other: Any) -> T:  # type: ignore[override]
        return self._binary(lib.tarn_eq, other)

    def __ne__(self: T, other: Any) -> T:  # type: ignore[override]
        return self._binary(lib.tarn_ne, other)

    def __lt__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_lt, other)

    def __le__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_le, other)

    def __gt__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_gt, other)

    def __ge__(self: T, other: Union[T, Number]) -> T:
        return self._binary(lib.tarn_ge, other)

    __hash__ = object.__hash__

    def maximum(self: T, other: Union[T, Number]) -> T:
        """The larger operand; NaN propagates."""
        return self._binary(lib.tarn_maximum, other)

    def minimum(self: T, other: Union[T, Number]) -> T:
        """The smaller operand; NaN propagates."""
        return self._binary(lib.tarn_minimum, other)

    def matmul(self: T, other: T) -> T:
        """Matrix product of the last two axes, as in NumPy."""
        return self._binary(lib.tarn_matmul, other)

    # ---- one operand

    def __neg__(self: T) -> T:
        return self._apply(lib.tarn_neg)

    def __abs__(self: T) -> T:
        return self._apply(lib.tarn_abs)

    def abs(self: T) -> T:
        """The absolute value."""
        return self._apply(lib.tarn_abs)

    def sign(self: T) -> T:
        """-1, 0 or 1."""
        return self._apply(lib.tarn_sign)

    def square(self: T) -> T:
        """x²."""
        return self._apply(lib.tarn_square)

    def sqrt(self: T) -> T:
        """The square root; NaN below 0."""
        return self._apply(lib.tarn_sqrt)

    def rsqrt(self: T) -> T:
        """1 / sqrt(x)."""
        return self._apply(lib.tarn_rsqrt)

    def reciprocal(self: T) -> T:
        """1 / x."""
        return self._apply(lib.tarn_recip)

    def exp(self: T) -> T:
        """e to the x."""
        return self._apply(lib.tarn_exp)

    def exp2(self: T) -> T:
        """2 to the x."""
        return self._apply(lib.tarn_exp2)

    def log(self: T) -> T:
        """The natural logarithm."""
        return self._apply(lib.tarn_log)

    def log2(self: T) -> T:
        """The logarithm to base 2."""
        return self._apply(lib.tarn_log2)

    def sin(self: T) -> T:
        """The sine, x in radians."""
        return self._apply(lib.tarn_sin)

    def cos(self: T) -> T:
        """The cosine, x in radians."""
        return self._apply(lib.tarn_cos)

    def tanh(self: T) -> T:
        """The hyperbolic tangent."""
        return self._apply(lib.tarn_tanh)

    def erf(self: T) -> T:
        """The error function."""
        return self._apply(lib.tarn_erf)

    def sigmoid(self: T) -> T:
        """1 / (1 + exp(-x))."""
        return self._apply(lib.tarn_sigmoid)

    def relu(self: T) -> T:
        """max(x, 0)."""
        return self._apply(lib.tarn_relu)

    def clamp(self: T, low: float = float("-inf"), high: float = float("inf")) -> T:
        """x clamped to [low, high]; NaN stays NaN."""
        return self._apply(lib.tarn_clamp, low, high)

    def to_dtype(self: T, dtype: DTypeLike) -> T:
        """Converted to another dtype; the same tensor if it already has it. A quantized dtype quantizes."""
        return self._apply(lib.tarn_cast, int(dtype_of(dtype)))

    # ---- reductions

    def sum(self: T, axes: Axes = None, keepdim: bool = False) -> T:
        """Sum over the given axes; None: all. Integers and bool are summed in i64."""
        return self._apply(lib.tarn_sum, axes_struct(axes), keepdim)

    def mean(self: T, axes: Axes = None, keepdim: bool = False) -> T:
        """Mean over the given axes."""
        return self._apply(lib.tarn_mean, axes_struct(axes), keepdim)

    def prod(self: T, axes: Axes = None, keepdim: bool = False) -> T:
        """Product over the given axes."""
        return self._apply(lib.tarn_prod, axes_struct(axes), keepdim)

    def max(self: T, axes: Axes = None, keepdim: bool = False) -> T:
        """Maximum over the given axes; NaN propagates."""
        return self._apply(lib.tarn_max, axes_struct(axes), keepdim)

    def min(self: T, axes: Axes = None, keepdim: bool = False) -> T:
        """Minimum over the given axes; NaN propagates."""
        return self._apply(lib.tarn_min, axes_struct(axes), keepdim)

    def var(self: T, axes: Axes = None, correction: float = 1.0, keepdim: bool = False) -> T:
        """Variance over the given axes, divided by count - correction."""
        return self._apply(lib.tarn_var, axes_struct(axes), correction, keepdim)

    def argmax(self: T, axis: Optional[int] = None, keepdim: bool = False) -> T:
        """Index of the maximum along an axis, the first of equal ones, as i64; None: among all elements."""
        if axis is None:
            return self.reshape(-1).argmax(0)
        return self._apply(lib.tarn_argmax, axis, keepdim)

    def argmin(self: T, axis: Optional[int] = None, keepdim: bool = False) -> T:
        """Index of the minimum along an axis, the first of equal ones, as i64; None: among all elements."""
        if axis is None:
            return self.reshape(-1).argmin(0)
        return self._apply(lib.tarn_argmin, axis, keepdim)

    def cumsum(self: T, axis: int) -> T:
        """Prefix sums along an axis."""
        return self._apply(lib.tarn_cumsum, axis)

    # ---- movement: most of these copy nothing

    def reshape(self: T, *shape: Any) -> T:
        """The same elements in another shape: sizes or a tuple; one may be -1. Copies only if the strides need it."""
        return self._apply(lib.tarn_reshape, shape_struct(listed(shape)))

    def permute(self: T, *axes: Any) -> T:
        """Permuted axes: axis i of the result is axis axes[i] of x."""
        return self._apply(lib.tarn_permute, axes_struct(listed(axes)))

    def transpose(self: T, a: int, b: int) -> T:
        """Two axes exchanged."""
        return self._apply(lib.tarn_transpose, a, b)

    def expand(self: T, *shape: Any) -> T:
        """Axes of size 1, and new leading axes, repeated without a copy; -1 keeps a size."""
        return self._apply(lib.tarn_expand, shape_struct(listed(shape)))

    def unsqueeze(self: T, axis: int) -> T:
        """A new axis of size 1 before `axis`."""
        return self._apply(lib.tarn_unsqueeze, axis)

    def squeeze(self: T, axis: int) -> T:
        """An axis of size 1 removed."""
        return self._apply(lib.tarn_squeeze, axis)

    def flip(self: T, axes: Axes) -> T:
        """The given axes reversed."""
        return self._apply(lib.tarn_flip, axes_struct(axes))

    def slice(self: T, axis: int, begin: int, end: int) -> T:
        """The slice [begin, end) of one axis."""
        return self._apply(lib.tarn_slice, axis, begin, end)

    def contiguous(self: T) -> T:
        """The same elements, row-major without gaps; x itself if it is contiguous."""
        return self._apply(lib.tarn_contiguous)

    def clone(self: T) -> T:
        """A contiguous copy with its own memory. Differentiable."""
        return self._apply(lib.tarn_clone)

    def detach(self: T) -> T:
        """The same values without a tape."""
        return self._apply(lib.tarn_detach)

    def index_select(self: T, axis: int, index: T) -> T:
        """The slices of x along an axis that a 1-D index lists."""
        return self._apply(lib.tarn_index_select, axis, index._handle)

    def gather(self: T, axis: int, index: T) -> T:
        """result[i][j] = x[index[i][j]][j] for axis 0, and so on."""
        return self._apply(lib.tarn_gather, axis, index._handle)

    def fill_(self: T, value: float) -> T:
        """Sets every element to a value, in place."""
        return self._in_place_unary(lib.tarn_fill_inplace, value)

    def _in_place_unary(self: T, function: Callable[..., Any], *arguments: Any) -> T:
        with Scope():
            lib.tarn_free(keep(function(self._handle, *arguments)))
        changes.note()
        return self
