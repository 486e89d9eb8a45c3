"""Modules: layers with named parameters. Names and shapes equal PyTorch's for the same network.

The layers compute in the library. Your own class derives from Module, assigns modules and Parameters to attributes, and
defines forward()."""
import ctypes
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar, Union

from . import _c
from ._library import Owner, PathLike, Scope, call, changes, check, fail, keep, kept, lib, options, path_of
from ._tensor import Tensor
from ._types import DeviceLike, DType, DTypeLike, device_of, dtype_of, shape_struct
from .functional import ACTIVATIONS, Pair, avg_pool_options, chosen, handle_of, max_pool_options, pair

M = TypeVar("M", bound="Module")


class Parameter(Tensor):
    """A tensor that becomes a parameter of the module to which it is assigned."""

    __slots__ = ()

    def __init__(self, data: Tensor) -> None:
        self._handle = keep(data.detach()._handle if data.requires_grad else data._handle)


class Module:
    """A layer, or a tree of layers. Calling it applies forward()."""

    _owner: Owner
    _children: Dict[str, "Module"]

    def __init__(self) -> None:
        me = weakref.ref(self)

        def forward(_: int, x: int, __: Optional[int]) -> Optional[int]:
            """Calls the forward() of a Python module from a module of the library."""
            try:
                module = me()
                if module is None:
                    raise RuntimeError("the module no longer exists")
                result = module.forward(Tensor._wrap(keep(x)))
                return int(lib.tarn_reshape(result._handle, lib.tarn_shape_of(result._handle)))
            except BaseException as error:  # pylint: disable=broad-except; the caller of the library gets it
                fail(error)
                return None

        callback = _c.tarn_forward_fn(forward)
        self._set_owner(Owner(call(lib.tarn_module_new, type(self).__name__.encode(), callback, None, _NO_RELEASE),
                              lib.tarn_module_free))
        object.__setattr__(self, "_callback", callback)

    def _set_owner(self, owner: Owner) -> None:
        object.__setattr__(self, "_owner", owner)
        object.__setattr__(self, "_children", {})

    @classmethod
    def _borrow(cls, handle: int, *owners: Owner) -> "Module":
        module = Module.__new__(Module)
        module._set_owner(Owner(handle, None, *owners))
        return module

    @property
    def _handle(self) -> int:
        return self._owner.handle

    def _adopt(self, name: str, child: "Module") -> None:
        """Retains a child that the library now owns."""
        child._owner.give_to(self._owner)
        self._children[name] = child

    # ---- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (Module, Parameter)) and "_owner" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__}: super().__init__() must be called before '{name}' is set")
        if isinstance(value, Module):
            self.add_module(name, value)
        elif isinstance(value, Parameter):
            self.register_parameter(name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__.get("_children", {}) or isinstance(getattr(self, name, None), Parameter):
            raise AttributeError(f"{type(self).__name__}: '{name}' cannot be deleted: a module keeps its parts")
        object.__delattr__(self, name)

    def add_module(self, name: str, child: "Module") -> None:
        """Adds a child; a module has one parent."""
        _check_modules(type(self).__name__, child)
        if child._owner.is_given:
            raise ValueError(f"{name}: the module has a parent already")
        if self._owner.root is child._owner:
            raise ValueError(f"{name}: a module cannot be inside itself")
        if not lib.tarn_module_add_child(self._handle, name.encode(), child._handle):
            child._owner.lose()  # the library takes ownership on failure too
            check()
        self._adopt(name, child)

    def register_parameter(self, name: str, tensor: Tensor) -> None:
        """Adds a parameter."""
        call(lib.tarn_module_add_parameter, self._handle, name.encode(), keep(tensor._handle))

    def register_buffer(self, name: str, tensor: Tensor) -> None:
        """Adds a tensor that is moved and saved with the module, but not trained."""
        call(lib.tarn_module_add_buffer, self._handle, name.encode(), keep(tensor._handle))
        object.__setattr__(self, name, tensor)

    # ---- computing

    def forward(self, x: Tensor) -> Tensor:
        """Computes the result from x."""
        if type(self) is not Module and hasattr(self, "_callback"):
            raise NotImplementedError(f"{type(self).__name__} has no forward()")
        return Tensor._wrap(kept(lib.tarn_forward, self._handle, handle_of(x)))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.forward(*arguments, **named)

    def train(self: M, mode: bool = True) -> M:
        """Training mode, which is the default; it affects dropout and batch norm."""
        call(lib.tarn_module_train, self._handle, mode)
        return self

    def eval(self: M) -> M:
        """Evaluation mode."""
        return self.train(False)

    @property
    def training(self) -> bool:
        """True in training mode."""
        return bool(call(lib.tarn_module_is_training, self._handle))

    @property
    def kind(self) -> str:
        """"linear", "sequential", or the name of a class of your own."""
        return str(call(lib.tarn_module_kind, self._handle).decode())

    # ---- parameters

    def named_parameters(self) -> Iterator[Tuple[str, Tensor]]:
        """Full names ("0.weight") and parameters of the module and its descendants."""
        for number in range(call(lib.tarn_module_parameter_count, self._handle)):
            name = call(lib.tarn_module_parameter_name, self._handle, number).decode()
            yield name, Tensor._wrap(keep(lib.tarn_module_parameter(self._handle, number)))

    def parameters(self) -> List[Tensor]:
        """All parameters."""
        return [tensor for _, tensor in self.named_parameters()]

    def named_buffers(self) -> Iterator[Tuple[str, Tensor]]:
        """Full names and buffers, such as the running statistics of a batch norm."""
        for number in range(call(lib.tarn_module_buffer_count, self._handle)):
            name = call(lib.tarn_module_buffer_name, self._handle, number).decode()
            yield name, Tensor._wrap(keep(lib.tarn_module_buffer(self._handle, number)))

    def num_parameters(self) -> int:
        """Number of elements of all parameters."""
        return int(call(lib.tarn_module_element_count, self._handle))

    def __getitem__(self, name: str) -> Tensor:
        """The parameter or buffer of that full name."""
        return Tensor._wrap(keep(lib.tarn_module_find(self._handle, name.encode())))

    def state_dict(self) -> Dict[str, Tensor]:
        """Parameters and buffers by name, not copies."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies values into the parameters and buffers; the names must be exactly theirs."""
        own = self.state_dict()
        wrong = sorted(set(own) ^ set(state))
        if wrong:
            lacking = "is missing" if wrong[0] in own else "is not in the module"
            raise ValueError(f"load_state_dict: '{wrong[0]}' {lacking} ({len(wrong)} such names)")
        from ._tensor import from_dlpack
        for name, tensor in own.items():
            value = state[name]
            tensor.copy_(value if isinstance(value, Tensor) else from_dlpack(value))

    def zero_grad(self) -> None:
        """Drops all gradients."""
        for tensor in self.parameters():
            tensor.zero_grad()

    def requires_grad_(self: M, required: bool = True) -> M:
        """Unfreezes or freezes all parameters; call it before the optimizer is created."""
        call(lib.tarn_module_freeze, self._handle, not required)
        return self

    def to(self: M, device: DeviceLike) -> M:
        """Moves all parameters and buffers to a device, in place."""
        call(lib.tarn_module_to, self._handle, device_of(device))
        changes.note()
        return self

    # ---- files

    def save_weights(self, path: PathLike) -> None:
        """Writes parameters and buffers to a safetensors file."""
        call(lib.tarn_module_save, self._handle, path_of(path))

    def load_weights(self: M, path: PathLike, strict: bool = True) -> M:
        """Reads parameters and buffers from a safetensors file by name; unless strict, others keep their values."""
        loose = not strict
        call(lib.tarn_module_load_sized, self._handle, path_of(path),
             *options(_c.tarn_module_load_options, allow_missing=loose, allow_unexpected=loose))
        changes.note()
        return self

    def summary(self, *shape: int, dtype: DTypeLike = "f32") -> str:
        """A table of all layers for an input of that shape."""
        text = call(lib.tarn_module_summary_string, self._handle, shape_struct(shape), int(dtype_of(dtype)))
        try:
            return ctypes.string_at(text).decode()
        finally:
            lib.tarn_string_free(text)

    def __repr__(self) -> str:
        return f"<tarn.nn.{type(self).__name__}: {self.num_parameters():,} parameters>"


def _check_modules(what: str, *modules: Any) -> None:
    for module in modules:
        if not isinstance(module, Module):
            raise TypeError(f"{what}: a {type(module).__name__} is given for a module; modules are given one by one")


_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NO_RELEASE = _Release()


class _Layer(Module):
    """A layer of the library."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:  # pylint: disable=super-init-not-called
        self._set_owner(Owner(call(function, *arguments), lib.tarn_module_free))


def _dtype(value: DTypeLike) -> int:
    return int(dtype_of(value))


class Linear(_Layer):
    """x · weightᵀ + bias."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, dtype: DTypeLike = DType.F32,
                 device: Optional[DeviceLike] = None) -> None:
        super().__init__(lib.tarn_linear_with_sized, in_features, out_features, device_of(device),
                         *options(_c.tarn_linear_options, no_bias=not bias, dtype=_dtype(dtype)))


class Embedding(_Layer):
    """A table of `count` rows of `size` elements; takes i64 or i32 indices."""

    def __init__(self, count: int, size: int, *, dtype: DTypeLike = DType.F32,
                 device: Optional[DeviceLike] = None) -> None:
        super().__init__(lib.tarn_embedding_layer_with_sized, count, size, device_of(device),
                         *options(_c.tarn_embedding_options, dtype=_dtype(dtype)))


class LayerNorm(_Layer):
    """Layer norm over the last axis."""

    def __init__(self, size: int, epsilon: float = 1e-5, affine: bool = True, bias: bool = True, *,
                 dtype: DTypeLike = DType.F32, device: Optional[DeviceLike] = None) -> None:
        super().__init__(lib.tarn_layernorm_layer_with_sized, size, device_of(device),
                         *options(_c.tarn_norm_options, epsilon=epsilon, no_affine=not affine, no_bias=not bias,
                                  dtype=_dtype(dtype)))


class RMSNorm(_Layer):
    """RMS norm over the last axis."""

    def __init__(self, size: int, epsilon: float = 1e-6, affine: bool = True, *, dtype: DTypeLike = DType.F32,
                 device: Optional[DeviceLike] = None) -> None:
        super().__init__(lib.tarn_rmsnorm_layer_with_sized, size, device_of(device),
                         *options(_c.tarn_norm_options, epsilon=epsilon, no_affine=not affine, dtype=_dtype(dtype)))


class GroupNorm(_Layer):
    """Group norm over `groups` groups of adjacent channels."""

    def __init__(self, groups: int, channels: int, epsilon: float = 1e-5, affine: bool = True, *,
                 dtype: DTypeLike = DType.F32, device: Optional[DeviceLike] = None) -> None:
        super().__init__(lib.tarn_groupnorm_layer_with_sized, groups, channels, device_of(device),
                         *options(_c.tarn_norm_options, epsilon=epsilon, no_affine=not affine, dtype=_dtype(dtype)))


class InstanceNorm(_Layer):
    """Instance norm of x [N, channels, ...]."""

    def __init__(self, channels: int, epsilon: float = 1e-5, affine: bool = False, *, dtype: DTypeLike = DType.F32,
                 device: Optional[DeviceLike] = None) -> None:
        super().__init__(lib.tarn_instancenorm_layer_with_sized, channels, device_of(device),
                         *options(_c.tarn_instancenorm_options, epsilon=epsilon, affine=affine, dtype=_dtype(dtype)))


class BatchNorm2d(_Layer):
    """Batch norm per channel of x [N, channels, ...], of any rank from 2."""

    def __init__(self, channels: int, epsilon: float = 1e-5, momentum: float = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, dtype: DTypeLike = DType.F32,
                 device: Optional[DeviceLike] = None) -> None:
        super().__init__(
            lib.tarn_batchnorm2d_with_sized, channels, device_of(device),
            *options(_c.tarn_batchnorm2d_options, epsilon=epsilon, momentum=momentum, no_affine=not affine,
                     no_tracking=not track_running_stats, dtype=_dtype(dtype)))


class Conv1d(_Layer):
    """1-D convolution of x [N, in, L]."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, padding: int = 0,
                 dilation: int = 1, groups: int = 1, bias: bool = True, *, dtype: DTypeLike = DType.F32,
                 device: Optional[DeviceLike] = None) -> None:
        super().__init__(
            lib.tarn_conv1d_layer_with_sized, in_channels, out_channels, device_of(device),
            *options(_c.tarn_conv1d_layer_options, kernel=kernel, stride=stride, padding=padding, dilation=dilation,
                     groups=groups, no_bias=not bias, dtype=_dtype(dtype)))


class Conv2d(_Layer):
    """2-D convolution of x [N, in, H, W]."""

    def __init__(self, in_channels: int, out_channels: int, kernel: Pair, stride: Pair = 1, padding: Pair = 0,
                 dilation: Pair = 1, groups: int = 1, bias: bool = True, *, dtype: DTypeLike = DType.F32,
                 device: Optional[DeviceLike] = None) -> None:
        super().__init__(
            lib.tarn_conv2d_layer_with_sized, in_channels, out_channels, device_of(device),
            *options(_c.tarn_conv2d_layer_options, kernel=pair(kernel), stride=pair(stride), padding=pair(padding),
                     dilation=pair(dilation), groups=groups, no_bias=not bias, dtype=_dtype(dtype)))


class ConvTranspose2d(_Layer):
    """Transposed 2-D convolution of x [N, in, H, W]."""

    def __init__(self, in_channels: int, out_channels: int, kernel: Pair, stride: Pair = 1, padding: Pair = 0,
                 output_padding: Pair = 0, groups: int = 1, bias: bool = True, dilation: Pair = 1, *,
                 dtype: DTypeLike = DType.F32, device: Optional[DeviceLike] = None) -> None:
        super().__init__(
            lib.tarn_conv_transpose2d_layer_with_sized, in_channels, out_channels, device_of(device),
            *options(_c.tarn_conv_transpose2d_layer_options, kernel=pair(kernel), stride=pair(stride),
                     padding=pair(padding), output_padding=pair(output_padding), dilation=pair(dilation),
                     groups=groups, no_bias=not bias, dtype=_dtype(dtype)))


class MaxPool2d(_Layer):
    """Maximum of each window; stride 0 is the kernel's size."""

    def __init__(self, kernel: Pair, stride: Pair = 0, padding: Pair = 0, dilation: Pair = 1,
                 ceil_mode: bool = False) -> None:
        super().__init__(lib.tarn_max_pool2d_layer_sized,
                         *max_pool_options(kernel, stride, padding, dilation, ceil_mode))


class AvgPool2d(_Layer):
    """Average of each window; stride 0 is the kernel's size."""

    def __init__(self, kernel: Pair, stride: Pair = 0, padding: Pair = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:
        super().__init__(lib.tarn_avg_pool2d_layer_sized,
                         *avg_pool_options(kernel, stride, padding, ceil_mode, count_include_pad))


class GlobalAvgPool2d(_Layer):
    """Average of each channel of each image: [N, C, 1, 1]."""

    def __init__(self) -> None:
        super().__init__(lib.tarn_global_avg_pool2d_layer)


class Upsample(_Layer):
    """Resizes images [N, C, H, W] to a size or by a factor; mode "nearest" or "bilinear"."""

    def __init__(self, size: Pair = 0, scale: Union[float, Tuple[float, float]] = 0.0, mode: str = "nearest",
                 align_corners: bool = False) -> None:
        modes = {"nearest": _c.TARN_UPSAMPLE_NEAREST, "bilinear": _c.TARN_UPSAMPLE_BILINEAR}
        both = scale if isinstance(scale, tuple) else (scale, scale)
        super().__init__(lib.tarn_upsample_layer_sized,
                         *options(_c.tarn_upsample_options, size=pair(size), scale=(ctypes.c_double * 2)(*both),
                                  mode=chosen(modes, mode, "mode"), align_corners=align_corners))


class Dropout(_Layer):
    """In training mode zeroes elements with probability p and divides the others by 1 - p."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(lib.tarn_dropout_layer, p)


class Flatten(_Layer):
    """Merges an axis and all after it into one."""

    def __init__(self, first_axis: int = 1) -> None:
        super().__init__(lib.tarn_flatten, first_axis)


class Activation(_Layer):
    """An activation by its name: relu, leaky_relu, gelu, gelu_erf, silu, tanh, sigmoid, softplus."""

    def __init__(self, kind: str) -> None:
        super().__init__(lib.tarn_activation, chosen(ACTIVATIONS, kind, "activation"))


class ReLU(Activation):
    """max(x, 0)."""

    def __init__(self) -> None:
        super().__init__("relu")


class GELU(Activation):
    """x · Φ(x), or its "tanh" form."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(("gelu_erf", "gelu")[chosen({"none": 0, "tanh": 1}, approximate, "approximate")])


class SiLU(Activation):
    """x · sigmoid(x)."""

    def __init__(self) -> None:
        super().__init__("silu")


class Tanh(Activation):
    """The hyperbolic tangent."""

    def __init__(self) -> None:
        super().__init__("tanh")


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    def __init__(self) -> None:
        super().__init__("sigmoid")


class _Recurrent(_Layer):

    def __init__(self, function: Callable[..., Any], in_features: int, hidden: int, layers: int, bidirectional: bool,
                 batch_first: bool, bias: bool, dropout: float, dtype: DTypeLike,
                 device: Optional[DeviceLike]) -> None:
        super().__init__(
            function, in_features, hidden, device_of(device),
            *options(_c.tarn_recurrent_options, layers=layers, bidirectional=bidirectional, batch_first=batch_first,
                     no_bias=not bias, dropout=dropout, dtype=_dtype(dtype)))

    def _from_state(self, x: Tensor, h: Optional[Tensor], c: Optional[Tensor]) -> List[Optional[Tensor]]:
        """The result and the state after the last step; the cell state of a GRU is None."""
        first, last = _c.tarn_recurrent_state(h=handle_of(h), c=handle_of(c)), _c.tarn_recurrent_state()
        with Scope():
            y = lib.tarn_recurrent_forward(self._handle, handle_of(x), ctypes.byref(first), ctypes.byref(last))
            check()
            return [Tensor._wrap(keep(made)) if made else None for made in (y, last.h, last.c)]


class LSTM(_Recurrent):
    """LSTM over sequences [T, B, in]: the hidden state of each step, from a state of zeros."""

    def __init__(self, in_features: int, hidden: int, layers: int = 1, bidirectional: bool = False,
                 batch_first: bool = False, bias: bool = True, dropout: float = 0.0, *, dtype: DTypeLike = DType.F32,
                 device: Optional[DeviceLike] = None) -> None:
        super().__init__(lib.tarn_lstm_layer_with_sized, in_features, hidden, layers, bidirectional, batch_first, bias,
                         dropout, dtype, device)

    def with_state(self, x: Tensor, state: Optional[Tuple[Tensor, Tensor]] = None
                   ) -> Tuple[Tensor, Tuple[Tensor, Tensor]]:
        """The result, and the hidden and cell state [layers · directions, B, hidden] after the last step.

        `state`: those before the first step, None: zeros. So a long sequence is computed in parts."""
        y, h, c = self._from_state(x, *(state or (None, None)))
        assert y is not None and h is not None and c is not None
        return y, (h, c)


class GRU(_Recurrent):
    """GRU over sequences [T, B, in]: the hidden state of each step, from a state of zeros."""

    def __init__(self, in_features: int, hidden: int, layers: int = 1, bidirectional: bool = False,
                 batch_first: bool = False, bias: bool = True, dropout: float = 0.0, *, dtype: DTypeLike = DType.F32,
                 device: Optional[DeviceLike] = None) -> None:
        super().__init__(lib.tarn_gru_layer_with_sized, in_features, hidden, layers, bidirectional, batch_first, bias,
                         dropout, dtype, device)

    def with_state(self, x: Tensor, state: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        """The result, and the hidden state [layers · directions, B, hidden] after the last step.

        `state`: that before the first step, None: zeros."""
        y, h, _ = self._from_state(x, state, None)
        assert y is not None and h is not None
        return y, h


class Sequential(_Layer):
    """Modules in sequence; parameters are named "0.weight", "2.bias" ..."""

    def __init__(self, *modules: Module) -> None:
        _check_modules("Sequential", *modules)
        if any(module._owner.is_given for module in modules) or len(set(map(id, modules))) < len(modules):
            raise ValueError("Sequential: a module has a parent already")
        given = (ctypes.c_void_p * len(modules))(*(module._handle for module in modules))
        super().__init__(lib.tarn_sequential_from, given, len(modules))
        for number, module in enumerate(modules):
            self._adopt(str(number), module)

    def __len__(self) -> int:
        return len(self._children)


class Residual(_Layer):
    """body(x) + shortcut(x); without a shortcut, + x."""

    def __init__(self, body: Module, shortcut: Optional[Module] = None) -> None:
        _check_modules("Residual", body, *([] if shortcut is None else [shortcut]))
        if body._owner.is_given or shortcut is body or (shortcut is not None and shortcut._owner.is_given):
            raise ValueError("Residual: a module has a parent already")
        super().__init__(lib.tarn_residual, body._handle, None if shortcut is None else shortcut._handle)
        self._adopt("body", body)
        if shortcut is not None:
            self._adopt("shortcut", shortcut)


class ResNet(_Layer):
    """ResNet-18, -34 or -50 with torchvision's architecture and names, for images [N, channels, H, W]."""

    def __init__(self, layers: int, classes: int, channels: int = 3, *, device: Optional[DeviceLike] = None) -> None:
        super().__init__(lib.tarn_model_resnet_sized, layers, classes, device_of(device),
                         *options(_c.tarn_resnet_options, channels=channels))
