"""DLPack capsules: memory shared with NumPy, PyTorch and others. The library creates and frees the structs; this module
puts them into capsules and takes them out."""
import ctypes as c
from typing import Any, Optional

from . import _c
from ._library import Scope, call, kept, lib

READ_ONLY = 1


class Versioned(c.Structure):
    """The head of DLManagedTensorVersioned."""

    flags: int


Versioned._fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("ctx", c.c_void_p), ("deleter", c.c_void_p),
                      ("flags", c.c_uint64)]

# Names as addresses: a capsule stores the pointer, and may be destroyed after the last string of Python.
_name_of = c.CFUNCTYPE(c.c_void_p, c.c_bool, c.c_bool)(("tarn_dlpack_capsule_name", lib))
NAMES = {versioned: _name_of(versioned, False) for versioned in (True, False)}
USED_NAMES = {versioned: _name_of(versioned, True) for versioned in (True, False)}
_is_valid = c.PYFUNCTYPE(c.c_int, c.py_object, c.c_void_p)(("PyCapsule_IsValid", c.pythonapi))
_pointer = c.PYFUNCTYPE(c.c_void_p, c.py_object, c.c_void_p)(("PyCapsule_GetPointer", c.pythonapi))
_set_name = c.PYFUNCTYPE(c.c_int, c.py_object, c.c_void_p)(("PyCapsule_SetName", c.pythonapi))
_new = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_void_p, c.c_void_p)(("PyCapsule_New", c.pythonapi))

# A destructor written in Python cannot run where capsules are destroyed: in a consumer that rejects one, with its
# exception pending, or after the interpreter has cleared this module. The library's destructor gets the addresses of
# these two functions of Python.
call(lib.tarn_dlpack_set_capsule_functions, c.cast(c.pythonapi.PyCapsule_IsValid, _c.tarn_capsule_is_valid_fn),
     c.cast(c.pythonapi.PyCapsule_GetPointer, _c.tarn_capsule_get_pointer_fn))
_destructor = c.cast(lib.tarn_dlpack_capsule_destroy, c.c_void_p)


def capsule_of(handle: int, versioned: bool) -> Any:
    """A capsule that shares the memory of a tensor."""
    managed = call(lib.tarn_dlpack_export if versioned else lib.tarn_dlpack_export_legacy, handle)
    try:
        return _new(managed, NAMES[versioned], _destructor)
    except BaseException:
        with Scope():  # taken back, and freed with the scope
            (lib.tarn_dlpack_import if versioned else lib.tarn_dlpack_import_legacy)(managed)
        raise


def is_capsule(value: Any) -> bool:
    """True for a capsule, whatever it holds."""
    return type(value).__name__ == "PyCapsule"


def take(capsule: Any, copy: Optional[bool]) -> int:
    """A handle on a tensor that takes over the memory of a capsule."""
    for versioned in (True, False):
        if _is_valid(capsule, NAMES[versioned]):
            managed = _pointer(capsule, NAMES[versioned])
            if versioned and copy is False and Versioned.from_address(managed).flags & READ_ONLY:
                raise BufferError("from_dlpack: the memory is read-only and must be copied, but copy is False")
            _set_name(capsule, USED_NAMES[versioned])
            return kept(lib.tarn_dlpack_import if versioned else lib.tarn_dlpack_import_legacy, managed)
    raise ValueError("from_dlpack: the capsule holds no tensor, or has already been used")
