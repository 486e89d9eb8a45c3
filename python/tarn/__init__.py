"""tarn: tensors with gradients, neural networks, and language models, from a small C library.

    >>> import tarn
    >>> x = tarn.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad.tolist()
    [[2.0, 4.0], [6.0, 8.0]]
"""
from . import functional, nn, optim, train
from ._library import (ArgumentError, DeviceError, DtypeError, Error, FileError, FormatError, OutOfMemoryError,
                       ShapeError, UnsupportedError, get_threads, seed, set_threads, version)
from ._tensor import (Tensor, arange, empty, eye, from_dlpack, full, no_grad, ones, ones_like, rand, randn, tensor,
                      zeros, zeros_like)
from ._types import Device, DType, devices
from .files import GGUF, Safetensors, load_file, save_file
from .functional import concat, stack, where
from .model import Model, Output, convert
from .text import Tokenizer

__version__ = version()

float32, float64, bfloat16, float16 = DType.F32, DType.F64, DType.BF16, DType.F16
int32, int64, uint8, bool_ = DType.I32, DType.I64, DType.U8, DType.BOOL

__all__ = [
    "ArgumentError", "DType", "Device", "DeviceError", "DtypeError", "Error", "FileError", "FormatError", "GGUF",
    "Model", "OutOfMemoryError", "Output", "Safetensors", "ShapeError", "Tensor", "Tokenizer", "UnsupportedError",
    "arange", "bfloat16", "bool_", "concat", "convert", "devices", "empty", "eye", "float16", "float32", "float64",
    "from_dlpack", "full", "functional", "get_threads", "int32", "int64", "load_file", "nn", "no_grad", "ones",
    "ones_like", "optim", "rand", "randn", "save_file", "seed", "set_threads", "stack", "tensor", "train", "uint8",
    "version", "where", "zeros", "zeros_like"
]
