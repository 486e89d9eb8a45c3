"""Operations with parameters: activations, products, normalization, convolution, attention, losses."""
import ctypes
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _c
from ._library import Scope, call, check, keep, kept, lib, options
from ._tensor import Tensor
from ._types import DTypeLike, dtype_of, shape_struct

Pair = Union[int, Tuple[int, int]]
REDUCTIONS = {"mean": _c.TARN_REDUCE_MEAN, "sum": _c.TARN_REDUCE_SUM, "none": _c.TARN_REDUCE_NONE}
ACTIVATIONS = {
    "relu": _c.TARN_RELU,
    "leaky_relu": _c.TARN_LEAKY_RELU,
    "gelu": _c.TARN_GELU,
    "gelu_erf": _c.TARN_GELU_ERF,
    "silu": _c.TARN_SILU,
    "tanh": _c.TARN_TANH,
    "sigmoid": _c.TARN_SIGMOID,
    "softplus": _c.TARN_SOFTPLUS
}


def tensor_of(value: Any) -> Tensor:
    """The value itself, which must be a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"a {type(value).__name__} is given for a tensor: tarn.tensor() or tarn.from_dlpack() "
                        "makes one")
    return value


def handle_of(tensor: Optional[Tensor]) -> Optional[int]:
    """The library's handle; None stays None."""
    return None if tensor is None else tensor_of(tensor)._handle


def chosen(table: Dict[str, int], name: str, what: str) -> int:
    """The value of a name; the error lists the known names."""
    if name not in table:
        raise ValueError(f"{what} is '{name}'; it must be {', '.join(table)}")
    return table[name]


def pair(value: Pair, kind: Any = ctypes.c_int64) -> Any:
    """Rows and columns; one number stands for both."""
    both = (value, value) if isinstance(value, (int, float)) else tuple(value)
    if len(both) != 2:
        raise ValueError(f"{value} is given for rows and columns: one number, or two, are expected")
    return (kind * 2)(*both)


def _handles(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(handle_of(tensor) for tensor in tensors))


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the bool tensor `condition` is true, b elsewhere."""
    return tensor_of(condition)._apply(lib.tarn_where, handle_of(a), handle_of(b))


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors concatenated along an existing axis."""
    return Tensor._wrap(kept(lib.tarn_concat, _handles(tensors), len(tensors), axis))


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape concatenated along a new axis."""
    return Tensor._wrap(kept(lib.tarn_stack, _handles(tensors), len(tensors), axis))


def split(x: Tensor, sizes: Sequence[int], axis: int = 0) -> List[Tensor]:
    """Views of the given sizes, which add up to the size of the axis."""
    parts = (ctypes.c_void_p * len(sizes))()
    with Scope():
        lib.tarn_split(handle_of(x), axis, (ctypes.c_int64 * len(sizes))(*sizes), len(sizes), parts)
        check()
        return [Tensor._wrap(keep(part)) for part in parts]


def pad(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Tensor:
    """`value` padded before and after each axis."""
    return tensor_of(x)._apply(lib.tarn_pad, shape_struct(before), shape_struct(after), value)


def one_hot(index: Tensor, classes: int, dtype: DTypeLike = "f32") -> Tensor:
    """A new last axis of zeros with a one at the index."""
    return tensor_of(index)._apply(lib.tarn_one_hot, classes, int(dtype_of(dtype)))


def scatter_add(x: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy of x with source[i][j] added at [index[i][j]][j] for axis 0, and so on."""
    return tensor_of(x)._apply(lib.tarn_scatter_add, axis, handle_of(index), handle_of(source))


def _two(function: Any, x: Tensor, *arguments: Any) -> Tuple[Tensor, Tensor]:
    first, second = ctypes.c_void_p(), ctypes.c_void_p()
    with Scope():
        function(handle_of(x), *arguments, ctypes.byref(first), ctypes.byref(second))
        check()
        return Tensor._wrap(keep(first.value)), Tensor._wrap(keep(second.value))


def topk(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> Tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements along an axis, sorted, and their i64 indices."""
    return _two(lib.tarn_topk, x, k, axis, largest)


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tuple[Tensor, Tensor]:
    """The elements along an axis, sorted stably, and their i64 indices."""
    return _two(lib.tarn_sort, x, axis, descending)


# ---- activations


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return tensor_of(x).relu()


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x where x is positive, slope · x elsewhere."""
    return tensor_of(x)._apply(lib.tarn_leaky_relu, slope)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """The Gaussian error linear unit: x · Φ(x), or its "tanh" form."""
    forms = {"none": lib.tarn_gelu_erf, "tanh": lib.tarn_gelu}
    if approximate not in forms:
        raise ValueError(f"gelu: approximate is '{approximate}'; it must be none or tanh")
    return tensor_of(x)._apply(forms[approximate])


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x)."""
    return tensor_of(x)._apply(lib.tarn_silu)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return tensor_of(x)._apply(lib.tarn_softplus)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) divided by its sum along an axis."""
    return tensor_of(x)._apply(lib.tarn_softmax, axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Logarithm of the softmax, without loss of precision."""
    return tensor_of(x)._apply(lib.tarn_log_softmax, axis)


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """In training mode zeroes each element with probability p and divides the others by 1 - p."""
    return tensor_of(x)._apply(lib.tarn_dropout, p) if training else x


# ---- products, normalization, attention


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """x · weightᵀ + bias over the last axis, with weight [out, in], which may be quantized."""
    return tensor_of(x)._apply(lib.tarn_linear_apply, handle_of(weight), handle_of(bias))


def embedding(index: Tensor, weight: Tensor) -> Tensor:
    """The rows of weight that the index lists."""
    return tensor_of(weight)._apply(lib.tarn_embedding, handle_of(index))


def layer_norm(x: Tensor, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None,
               epsilon: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over the last axis, times weight, plus bias."""
    return tensor_of(x)._apply(lib.tarn_layernorm, handle_of(weight), handle_of(bias), epsilon)


def rms_norm(x: Tensor, weight: Optional[Tensor] = None, epsilon: float = 1e-6) -> Tensor:
    """x / sqrt(mean of squares + epsilon) over the last axis, times weight."""
    return tensor_of(x)._apply(lib.tarn_rmsnorm, handle_of(weight), epsilon)


def group_norm(x: Tensor, groups: int, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None,
               epsilon: float = 1e-5) -> Tensor:
    """Normalization over each group of adjacent channels in each sample."""
    return tensor_of(x)._apply(lib.tarn_groupnorm, groups, handle_of(weight), handle_of(bias), epsilon)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float = 0.0, dropout_p: float = 0.0,
              window: int = 0, softcap: float = 0.0) -> Tensor:
    """softmax(q · kᵀ · scale) · v for q [B, H, T, D] and k, v [B, KV, S, D], without storing the T × S weights.

    `scale` 0 is 1 / sqrt(D). Queries are aligned at the end of the keys."""
    given = options(_c.tarn_attention_options, causal=causal, scale=scale, dropout=dropout_p, window=window,
                    softcap=softcap)
    return tensor_of(q)._apply(lib.tarn_attention_sized, handle_of(k), handle_of(v), *given)


def rope(x: Tensor, positions: Optional[Tensor] = None, base: float = 10000.0, interleaved: bool = False) -> Tensor:
    """Rotary position embedding of x [B, T, H, D]; positions are i32 or i64, None: 0, 1, 2 ..."""
    given = options(_c.tarn_rope_options, base=base, interleaved=interleaved)
    return tensor_of(x)._apply(lib.tarn_rope_sized, handle_of(positions), *given)


# ---- images and sequences


def conv2d(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Pair = 1, padding: Pair = 0,
           dilation: Pair = 1, groups: int = 1) -> Tensor:
    """2-D convolution of x [N, C, H, W] with weight [O, C / groups, KH, KW]."""
    given = options(_c.tarn_conv2d_options, stride=pair(stride), padding=pair(padding), dilation=pair(dilation),
                    groups=groups)
    return tensor_of(x)._apply(lib.tarn_conv2d_sized, handle_of(weight), handle_of(bias), *given)


def conv1d(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: int = 1, padding: int = 0,
           dilation: int = 1, groups: int = 1) -> Tensor:
    """1-D convolution of x [N, C, L] with weight [O, C / groups, K]."""
    given = options(_c.tarn_conv1d_options, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return tensor_of(x)._apply(lib.tarn_conv1d_sized, handle_of(weight), handle_of(bias), *given)


def max_pool_options(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool) -> Any:
    """Options of max pooling, as the library takes them."""
    return options(_c.tarn_pool2d_options, kernel=pair(kernel), stride=pair(stride), padding=pair(padding),
                   dilation=pair(dilation), ceil_mode=ceil_mode)


def avg_pool_options(kernel: Pair, stride: Pair, padding: Pair, ceil_mode: bool, count_include_pad: bool) -> Any:
    """Options of average pooling, as the library takes them."""
    return options(_c.tarn_pool2d_options, kernel=pair(kernel), stride=pair(stride), padding=pair(padding),
                   ceil_mode=ceil_mode, exclude_padding=not count_include_pad)


def max_pool2d(x: Tensor, kernel: Pair, stride: Pair = 0, padding: Pair = 0, dilation: Pair = 1,
               ceil_mode: bool = False) -> Tensor:
    """Maximum of each window; stride 0 is the kernel's size, ceil_mode rounds the number of windows up."""
    given = max_pool_options(kernel, stride, padding, dilation, ceil_mode)
    return tensor_of(x)._apply(lib.tarn_max_pool2d_sized, *given)


def avg_pool2d(x: Tensor, kernel: Pair, stride: Pair = 0, padding: Pair = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Tensor:
    """Average of each window; stride 0 is the kernel's size, ceil_mode rounds the number of windows up."""
    given = avg_pool_options(kernel, stride, padding, ceil_mode, count_include_pad)
    return tensor_of(x)._apply(lib.tarn_avg_pool2d_sized, *given)


# ---- losses


def cross_entropy(logits: Tensor, target: Tensor, label_smoothing: float = 0.0, ignore_index: Optional[int] = None,
                  reduction: str = "mean") -> Tensor:
    """Cross entropy of logits [..., C] and i64 class indices [...]."""
    ignored = None if ignore_index is None else ctypes.pointer(ctypes.c_int64(ignore_index))
    given = options(_c.tarn_cross_entropy_options, label_smoothing=label_smoothing, ignore_index=ignored,
                    reduction=chosen(REDUCTIONS, reduction, "reduction"))
    return tensor_of(logits)._apply(lib.tarn_cross_entropy_sized, handle_of(target), *given)


def mse_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """The mean of squared differences."""
    return tensor_of(prediction)._apply(lib.tarn_mse_loss, handle_of(target))


def l1_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """The mean of absolute differences."""
    return tensor_of(prediction)._apply(lib.tarn_l1_loss, handle_of(target))


def huber_loss(prediction: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    """The mean of the Huber loss: quadratic up to a difference of `delta`, linear beyond."""
    return tensor_of(prediction)._apply(lib.tarn_huber_loss, handle_of(target), delta)


def binary_cross_entropy_with_logits(logits: Tensor, target: Tensor) -> Tensor:
    """The mean binary cross entropy of logits against targets from 0 to 1."""
    return tensor_of(logits)._apply(lib.tarn_bce_with_logits_loss, handle_of(target))


# ---- any operation by its name


def operations() -> List[str]:
    """Names of all operations."""
    info, names = _c.tarn_op_info(), []
    for number in range(lib.tarn_op_count()):
        call(lib.tarn_op_at, number, ctypes.byref(info))
        names.append((info.name or b"").decode())
    return names


def _attribute(name: str, value: Union[bool, int, float, Sequence[int]]) -> Any:
    struct = _c.tarn_attribute(name=name.encode())
    if isinstance(value, (list, tuple)):
        struct.count = len(value)
        for place, item in enumerate(value):
            struct.list[place] = item
    elif isinstance(value, float):
        struct.number = value
    else:
        struct.integer = int(value)  # type: ignore[arg-type]
    return struct


def apply(name: str, *inputs: Optional[Tensor], **attributes: Union[bool, int, float, Sequence[int]]) -> List[Tensor]:
    """Runs an operation by its name (see `operations()`), with its attributes; returns its results."""
    number = call(lib.tarn_op_find, name.encode())
    if number < 0:
        raise ValueError(f"apply: there is no operation '{name}'; operations() lists them")
    info = _c.tarn_op_info()
    call(lib.tarn_op_at, number, ctypes.byref(info))
    given = (ctypes.c_void_p * len(inputs))(*(handle_of(x) for x in inputs))
    listed = (_c.tarn_attribute * len(attributes))(*(_attribute(*item) for item in attributes.items()))
    made = (ctypes.c_void_p * info.outputs)()
    with Scope():
        lib.tarn_apply(name.encode(), given, len(inputs), listed, len(attributes), made, info.outputs)
        check()
        return [Tensor._wrap(keep(output)) for output in made if output]
