"""MLIR's verifier, run once a stage in place of after each of its forty passes, which takes a tenth of a compile.

A pass manager verifies after each pass unless it is told not to; Triton's Python has no word for that. So its C++
method is called, which Triton's library exports, with the pointer that pybind11 gives for an object of just that class.
A Triton without one of these verifies as it always did, and takes longer. What is verified changes no byte of an image:
a module that is not what its operations demand is refused at the end of the stage, by the same verifier.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

_METHOD = "_ZN4mlir11PassManager14enableVerifierEb"
_CLASS = "_ZTIN4mlir11PassManagerE"  # its std::type_info
_CLASS_NAME = b"N4mlir11PassManagerE"
_TYPE_INFO = b"St9type_info"
# pybind11's name of the C++ library and compiler that its pointers are of: Linux's usual ones.
_ABI = b"system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"


def verify_once_a_stage(ir: ModuleType, llvm: ModuleType, library: str) -> bool:
    """From now on this process's pass managers do not verify; modules are verified before they become LLVM's, and by
    `verify` after each other stage. Returns whether this Triton can be told so.

    Args:
        ir, llvm: triton._C.libtriton's modules; what makes a pass manager is replaced in the first, what translates a
            module in the second.
        library: the path of libtriton.so.
    """
    disable = _disabler(library)
    make, translate = ir.pass_manager, llvm.to_module  # type: ignore[attr-defined]
    if disable is None or not disable(make(ir.context())):  # type: ignore[attr-defined]
        return False

    def pass_manager(context: Any) -> Any:
        made = make(context)
        disable(made)
        return made

    def to_module(module: Any, context: Any) -> Any:
        verify(module)
        return translate(module, context)

    ir.pass_manager, llvm.to_module = pass_manager, to_module  # type: ignore[attr-defined]
    return True


def verify(module: Any) -> None:
    """
    Raises:
        RuntimeError: an operation of the module is not what it must be; the details were printed.
    """
    if not module.verify():
        raise RuntimeError("the module is not valid after its passes")


def _disabler(library: str) -> Callable[[Any], bool] | None:
    """What switches a pass manager's verifier off and says whether it could; None where the library exports no such."""
    try:
        loaded = ctypes.CDLL(library)
        method = getattr(loaded, _METHOD)
        type_info = ctypes.addressof(ctypes.c_char.in_dll(loaded, _CLASS))
    except (OSError, AttributeError, ValueError):
        return None
    method.argtypes, method.restype = [ctypes.c_void_p, ctypes.c_bool], None
    capsule_of, pointer_of = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetPointer
    capsule_of.argtypes, capsule_of.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
    pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    wanted = capsule_of(type_info, _TYPE_INFO, None)

    def disable(pass_manager: Any) -> bool:
        give = getattr(pass_manager, "_pybind11_conduit_v1_", None)
        capsule = give(_ABI, wanted, b"raw_pointer_ephemeral") if give else None
        if capsule is None:  # another class, or another compiler's
            return False
        method(pointer_of(capsule, _CLASS_NAME), False)
        return True

    return disable
