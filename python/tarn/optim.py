"""Optimizers, learning rate schedules and averaged weights. An optimizer trains the parameters of a module that are not
frozen."""
import ctypes
from typing import Any, Callable, Dict, List, Optional

from . import _c
from ._library import Owner, PathLike, call, changes, kept, lib, options, path_of
from ._tensor import Tensor
from .functional import chosen
from .nn import Module

SCHEDULES = {
    "constant": _c.TARN_SCHEDULE_CONSTANT,
    "linear": _c.TARN_SCHEDULE_LINEAR,
    "cosine": _c.TARN_SCHEDULE_COSINE,
    "step": _c.TARN_SCHEDULE_STEP,
    "one_cycle": _c.TARN_SCHEDULE_ONE_CYCLE
}


def _groups(groups: Optional[List[Dict[str, Any]]]) -> Dict[str, Any]:
    """Parameter groups: [{"names": "*.bias", "no_decay": True}]."""
    if not groups:
        return {}
    structs = (_c.tarn_parameter_group * len(groups))()
    for struct, group in zip(structs, groups):
        for name, value in group.items():
            if name not in ("names", "lr_scale", "weight_decay", "no_decay"):
                raise ValueError(f"parameter group: '{name}' must be names, lr_scale, weight_decay or no_decay")
            setattr(struct, name, value.encode() if isinstance(value, str) else value)
    return {"groups": structs, "group_count": len(groups)}


def _adam(beta1: float, beta2: float, epsilon: float) -> Dict[str, float]:
    """Fields of Adam's options. 0 stands for the library's defaults, which are f64, while a given value is f32."""
    fields = {}
    for name, value, default in (("beta1", beta1, 0.9), ("beta2", beta2, 0.999), ("epsilon", epsilon, 1e-8)):
        if value == 0:
            raise ValueError(f"{name} is 0; it must be above 0")
        fields[name] = 0.0 if value == default else value
    return fields


class Optimizer:
    """Base class of the optimizers."""

    def __init__(self, function: Callable[..., Any], kind: Any, module: Module, **values: Any) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__}: the first argument is a {type(module).__name__}; it must be the "
                            "module whose parameters are trained, all that are not frozen")
        handle = call(function, module._handle, *options(kind, **values))
        changes.note()  # the parameters move to its buffers
        self._owner = Owner(handle, lib.tarn_optimizer_free, module._owner)
        self._module = module

    @property
    def _handle(self) -> int:
        return self._owner.handle

    def step(self) -> None:
        """Updates the parameters from their gradients and clears the gradients."""
        call(lib.tarn_optimizer_step, self._handle)
        changes.note()

    def zero_grad(self) -> None:
        """Clears the gradients without a step."""
        lib.tarn_optimizer_zero_grad(self._handle)

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Clips the gradients to a global norm, after the last backward of a step. Returns the norm before clipping."""
        return Tensor._wrap(kept(lib.tarn_optimizer_clip_norm, self._handle, max_norm))

    def clip_grad_value(self, limit: float) -> None:
        """Clamps every element of the gradients to [-limit, limit]."""
        call(lib.tarn_optimizer_clip_value, self._handle, limit)

    @property
    def lr(self) -> float:
        """Learning rate of the next step, schedule included."""
        return float(call(lib.tarn_optimizer_lr, self._handle))

    @lr.setter
    def lr(self, value: float) -> None:
        call(lib.tarn_optimizer_set_lr, self._handle, value)

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return int(call(lib.tarn_optimizer_steps, self._handle))

    def set_schedule(self, kind: str, warmup_steps: int = 0, total_steps: int = 0, final_factor: float = 0.0,
                     step_size: int = 0, gamma: float = 0.0, start_factor: float = 0.0) -> None:
        """Sets the schedule of the learning rate: constant, linear, cosine, step or one_cycle.

        start_factor: of one_cycle, 0: 1 / 25. 0 is the default of the others, too."""
        struct = _c.tarn_schedule(kind=chosen(SCHEDULES, kind, "schedule"), warmup_steps=warmup_steps,
                                  total_steps=total_steps, final_factor=final_factor, step_size=step_size, gamma=gamma,
                                  start_factor=start_factor)
        call(lib.tarn_optimizer_set_schedule, self._handle, ctypes.byref(struct))

    def save(self, path: PathLike) -> None:
        """Writes the state to a safetensors file."""
        call(lib.tarn_optimizer_save, self._handle, path_of(path))

    def load(self, path: PathLike) -> None:
        """Restores the state, so that training resumes bitwise identical; load the parameters first."""
        call(lib.tarn_optimizer_load, self._handle, path_of(path))


class SGD(Optimizer):
    """Stochastic gradient descent, as torch.optim.SGD."""

    def __init__(self, module: Module, lr: float, momentum: float = 0.0, dampening: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False,
                 groups: Optional[List[Dict[str, Any]]] = None) -> None:
        super().__init__(lib.tarn_sgd_sized, _c.tarn_sgd_options, module, lr=lr, momentum=momentum, dampening=dampening,
                         weight_decay=weight_decay, nesterov=nesterov, **_groups(groups))


class Adam(Optimizer):
    """Adam, as torch.optim.Adam."""

    def __init__(self, module: Module, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
                 weight_decay: float = 0.0, groups: Optional[List[Dict[str, Any]]] = None) -> None:
        super().__init__(lib.tarn_adam_sized, _c.tarn_adam_options, module, lr=lr, weight_decay=weight_decay,
                         **_adam(beta1, beta2, epsilon), **_groups(groups))


class AdamW(Optimizer):
    """AdamW, as torch.optim.AdamW; vectors (biases, norms) decay only with `decay_all`."""

    def __init__(self, module: Module, lr: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8,
                 weight_decay: float = 0.0, decay_all: bool = False,
                 groups: Optional[List[Dict[str, Any]]] = None) -> None:
        super().__init__(lib.tarn_adamw_sized, _c.tarn_adamw_options, module, lr=lr, weight_decay=weight_decay,
                         decay_all=decay_all, **_adam(beta1, beta2, epsilon), **_groups(groups))


class EMA:
    """The exponential moving average of the parameters that an optimizer trains."""

    def __init__(self, optimizer: Optimizer, decay: float, warmup: bool = False) -> None:
        module = optimizer._module
        handle = call(lib.tarn_ema_new_sized, module._handle, optimizer._handle,
                      *options(_c.tarn_ema_options, decay=decay, warmup=warmup))
        self._owner = Owner(handle, lib.tarn_ema_free, optimizer._owner, module._owner)

    def update(self) -> None:
        """Adds the current parameters to the average; call it after each step."""
        call(lib.tarn_ema_update, self._owner.handle)

    def __enter__(self) -> "EMA":
        """Puts the averages into the module, to evaluate or save it: `with ema:`."""
        call(lib.tarn_ema_apply, self._owner.handle)
        changes.note()
        return self

    def __exit__(self, *_: Any) -> None:
        call(lib.tarn_ema_restore, self._owner.handle)
        changes.note()
