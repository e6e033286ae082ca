"""The functions that images call of libdevice, ocml and ockl, cut out of these once a worker.

Triton reads such a library whole, half a megabyte of bitcode, for each image that calls one function of it: 3 % of a
compile. Here the library itself is linked into a module that only declares these functions, and what came is kept as
text for the next image that calls the same. No byte of an image depends on it: linked are equal functions, in order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Of a linked function, as LLVM prints it: Triton makes them internal, and an internal one is not found by its name.
_INTERNAL = re.compile(r"^define internal (?=[^\n]*? @([\w.$]+)\()", re.MULTILINE)

# One that no library has, by our declaration of it.
_DECLARED = re.compile(r"^declare void @[\w.$]+\(\)[^\n]*\n", re.MULTILINE)


def link_what_is_called(ir: ModuleType, llvm: ModuleType) -> None:
    """From now on this process links of a library what was cut out of it, and cuts that out where it is the first time.

    Args:
        ir, llvm: triton._C.libtriton's modules; what links libraries is replaced in the second.
    """
    link, translate = llvm.link_extern_libs, llvm.to_module  # type: ignore[attr-defined]
    known: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}

    def cut(paths: Sequence[str], names: Sequence[str]) -> str:
        context = ir.context()  # type: ignore[attr-defined]
        ir.load_dialects(context)  # type: ignore[attr-defined]
        # A function is found by its name; the library says of what type it is.
        declared = _file("".join(f'llvm.func @"{name}"()\n' for name in names))
        within = llvm.context()  # type: ignore[attr-defined]
        module = translate(ir.parse_mlir_module(_path(declared), context), within)  # type: ignore[attr-defined]
        os.close(declared)
        link(module, paths)
        text = _INTERNAL.sub(lambda found: "define " if found[1] in names else found[0], str(module))
        return _path(_file(_DECLARED.sub("", text)))

    def link_extern_libs(module: Any, paths: Sequence[str]) -> None:
        called = (one.name for one in module.get_functions() if one.is_declaration())
        names = tuple(name for name in called if not name.startswith("llvm."))
        key = (tuple(paths), names)
        if key not in known:
            known[key] = cut(paths, names)
        link(module, [known[key]])

    llvm.link_extern_libs = link_extern_libs  # type: ignore[attr-defined]


def _file(text: str) -> int:
    """A file in memory that holds it, by its descriptor."""
    descriptor = os.memfd_create("kiln-library")
    with open(descriptor, "w", closefd=False) as file:
        file.write(text)
    return descriptor


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
