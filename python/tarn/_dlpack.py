"""DLPack capsules: memory shared with NumPy, PyTorch and others. The structs, and what frees them, are the library's;
here they only go in and out of capsules."""
import ctypes as c
from typing import Any, Optional

from ._library import call, kept, lib

DLTENSOR, VERSIONED = b"dltensor", b"dltensor_versioned"
USED, USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"
READ_ONLY = 1


class Versioned(c.Structure):
    """The head of DLManagedTensorVersioned."""

    flags: int


Versioned._fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("ctx", c.c_void_p), ("deleter", c.c_void_p),
                      ("flags", c.c_uint64)]


class Tensor(c.Structure):
    """DLTensor, for the place of what follows it."""


Tensor._fields_ = [("data", c.c_void_p), ("device", c.c_int32 * 2), ("rank", c.c_int32), ("dtype", c.c_uint32),
                   ("shape", c.c_void_p), ("strides", c.c_void_p), ("byte_offset", c.c_uint64)]


class Legacy(c.Structure):
    """DLManagedTensor."""


Legacy._fields_ = [("tensor", Tensor), ("ctx", c.c_void_p), ("deleter", c.c_void_p)]

# Capsules as addresses: in a destructor an object may not be referred to again.
_is_valid = c.PYFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p)(("PyCapsule_IsValid", c.pythonapi))
_pointer = c.PYFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)(("PyCapsule_GetPointer", c.pythonapi))
_set_name = c.PYFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p)(("PyCapsule_SetName", c.pythonapi))
_new = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_char_p, c.c_void_p)(("PyCapsule_New", c.pythonapi))
_Deleter = c.CFUNCTYPE(None, c.c_void_p)


def _destroy(capsule: int) -> None:
    """Deletes what no consumer has taken."""
    for name, kind in ((DLTENSOR, Legacy), (VERSIONED, Versioned)):
        if _is_valid(capsule, name):
            address = _pointer(capsule, name)
            deleter = kind.from_address(address).deleter
            if deleter:
                _Deleter(deleter)(address)


_destructor = c.PYFUNCTYPE(None, c.c_void_p)(_destroy)


def capsule_of(handle: int, versioned: bool) -> Any:
    """A capsule that shares the memory of a tensor."""
    export = lib.tarn_dlpack_export if versioned else lib.tarn_dlpack_export_legacy
    return _new(call(export, handle), VERSIONED if versioned else DLTENSOR, c.cast(_destructor, c.c_void_p))


def is_capsule(value: Any) -> bool:
    """True for a capsule, whatever it holds."""
    return type(value).__name__ == "PyCapsule"


def take(capsule: Any, copy: Optional[bool]) -> int:
    """A handle on a tensor on the memory of a capsule, which is used up."""
    address = id(capsule)
    if _is_valid(address, VERSIONED):
        managed = _pointer(address, VERSIONED)
        if copy is False and Versioned.from_address(managed).flags & READ_ONLY:
            raise BufferError("from_dlpack: the memory is read-only, and a tensor can be written: allow a copy")
        _set_name(address, USED_VERSIONED)
        return kept(lib.tarn_dlpack_import, managed)
    if _is_valid(address, DLTENSOR):
        managed = _pointer(address, DLTENSOR)
        _set_name(address, USED)
        return kept(lib.tarn_dlpack_import_legacy, managed)
    raise ValueError("from_dlpack: the capsule holds no tensor, or was used already")
