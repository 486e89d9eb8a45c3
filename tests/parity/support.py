"""What the comparison needs beside the package tarn: the device in use, tensors from torch's and back bit for bit, all
outputs of an operation by their index, and functions of the C interface by name where the package has no class."""
import ctypes as c
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

import tarn
from tarn import _c, functional
from tarn._library import Scope, check, keep, kept, lib
from tarn._types import dtype_of, shape_struct

QUANTIZED = [str(dtype) for dtype in tarn.DType if dtype.is_quantized]
DTYPES = [str(dtype) for dtype in tarn.DType if not dtype.is_quantized]
TORCH = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i32": torch.int32,
         "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool}
NAME = {dtype: name for name, dtype in TORCH.items()}

_used = [tarn.Device("cpu"), "cpu"]


def use_device(text):
    _used[:] = tarn.Device(text), text


def device():
    return _used[0]


def device_name():
    """As it was asked for: cpu, cuda …"""
    return _used[1]


# ---- the C interface -------------------------------------------------------------------------------------------------


def plain(argument):
    """What the library takes for an object of the package, a text or a path."""
    if isinstance(argument, str):
        return argument.encode()
    if hasattr(argument, "_owner"):
        return argument._owner.handle
    return getattr(argument, "_handle", getattr(argument, "_value", argument))


def call(name, *arguments):
    """Calls tarn_NAME(); its error is an exception."""
    result = getattr(lib, f"tarn_{name}")(*map(plain, arguments))
    check()
    return result


def made(name, *arguments):
    """The tensor that tarn_NAME() makes."""
    return tarn.Tensor._wrap(kept(getattr(lib, f"tarn_{name}"), *map(plain, arguments)))


def options(kind, **fields):
    """A pointer to tarn_KIND_options with these fields, and its size."""
    given = getattr(_c, f"tarn_{kind}_options")(**fields)
    return c.byref(given), c.sizeof(given)


def array(kind, values):
    """An array of C from a sequence."""
    return (kind * len(values))(*values)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def tensor(values):
    """A contiguous tensor on the device in use, with the bits of a torch tensor."""
    return tarn.tensor(values.detach().contiguous(), device=device())


def upload(values):
    """The same by one copy, from torch's memory to the device: for what is timed."""
    values = values.contiguous()
    return made("from", values.data_ptr() or None, shape_struct(values.shape), int(dtype_of(NAME[values.dtype])),
                device())


def read(values):
    """The elements as a torch tensor of the same dtype."""
    return torch.from_dlpack(values.detach().cpu().contiguous()).clone()


def gradient(values):
    """The gradient that backward left, or None."""
    return None if values.grad is None else read(values.grad)


def write(values, elements):
    """Writes the elements of a torch tensor of the same dtype."""
    elements = elements.contiguous()
    call("write", values, elements.data_ptr(), elements.numel() * elements.element_size())


def operations():
    """What the library says of each of its operations."""
    infos = []
    for index in range(call("op_count")):
        info = _c.tarn_op_info()
        call("op_at", index, c.byref(info))
        infos.append(info)
    return infos


def apply(name, inputs, attributes, outputs):
    """All outputs of an operation by their index, None for one that it does not have."""
    given = array(c.c_void_p, [functional.handle_of(x) for x in inputs])
    listed = array(_c.tarn_attribute, [functional._attribute(*item) for item in attributes.items()])
    results = (c.c_void_p * outputs)()
    with Scope():
        call("apply", name, given, len(inputs), listed, len(attributes), results, outputs)
        return [tarn.Tensor._wrap(keep(result)) if result else None for result in results]
