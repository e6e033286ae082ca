"""Kernels compiled by Triton in this process, and launched.

The recipe says what each variant is: types, constants, multiples, options. Triton's JIT would derive its own from each
call's values, so it is not asked: `triton.compile` gets exactly what a build's compiler gets, under the same variables.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kiln.jit.errors import KernelError, ResourcesError
from kiln.jit.locks import TRITON
from kiln.jit.packages import minor_version, need
from kiln_recipe.call.dispatch import Chosen
from kiln_recipe.call.implementations import Described
from kiln_recipe.compile import mistakes
from kiln_recipe.compile.source import triton_source
from kiln_recipe.compile.toolchain import GLUON_SINCE, Toolchain
from kiln_recipe.model import Kernel
from kiln_recipe.plan.model import CompileSpec
from kiln_recipe.targets import Target

# Asks ptxas for a report on standard output; changes no image.
_UNWANTED = "TRITON_DUMP_PTXAS_LOG"


def this_toolchain() -> Toolchain:
    """The Triton of this process, without its digests."""
    triton = need("triton")
    return Toolchain(str(Path(str(triton.__file__)).parents[1]), triton.__version__, ())


def compile_spec(spec: CompileSpec, target: Target, function: Any) -> Any:
    """The kernel of a spec, compiled, or taken from Triton's own cache.

    Args:
        function: the Triton function that the spec names.

    Raises:
        KernelError: Triton or an assembler rejected it.
    """
    compiler = need("triton", "triton.compiler")
    backends = need("triton.backends.compiler")
    source = triton_source(function, spec)
    make_ir = source.make_ir

    def make_or_tell(*values: Any) -> Any:
        """Says where a mistake lies while that is known: Triton takes its own frames out of tracebacks."""
        try:
            return make_ir(*values)
        except Exception as error:  # noqa: BLE001 - whatever a kernel's source, or Triton, raises
            raise _of(error, spec) from None

    source.make_ir = make_or_tell
    gpu = backends.GPUTarget(target.backend, target.triton_arch, target.warp_size)
    try:
        with _pinned(this_toolchain().environment(target, spec.ptx)):
            return compiler.compile(source, target=gpu, options=spec.compile_options)
    except KernelError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a kernel's source, or Triton, raises
        raise _of(error, spec) from None


def not_compiled(kernel: Kernel) -> str | None:
    """Why the installed Triton cannot compile an implementation, or None."""
    minor = minor_version()
    if kernel.language != "gluon" or minor is None or minor >= GLUON_SINCE:
        return None
    since = ".".join(map(str, GLUON_SINCE))
    return f"its source is in the Gluon of Triton {since}, and Triton {need('triton').__version__} is installed"


@dataclass(frozen=True)
class _Base:
    """Where a described tensor begins, as Triton's launcher asks a tensor for it."""

    address: int

    def data_ptr(self) -> int:
        return self.address


@dataclass(frozen=True)
class _Descriptor:
    """A described tensor, as Triton's launcher takes it: it has the driver encode it, with the image's own box."""

    base: _Base
    shape: Sequence[int]
    strides: Sequence[int]
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    @staticmethod
    def of(value: Any) -> Any:
        """The descriptor of what is given as one; all else as it is."""
        if not isinstance(value, Described):
            return value
        return _Descriptor(_Base(value.address), list(value.sizes), list(value.strides))


@dataclass(frozen=True)
class Image:
    """A kernel that Triton has compiled for a device."""

    kernel: Any

    def launch(self, chosen: Chosen) -> None:
        """Enqueues it on the current stream of the current device; nothing where its grid is empty.

        Raises:
            ResourcesError: the device has too little shared memory, or too few threads, for it.
        """
        if 0 in chosen.launch.grid:
            return
        given: Mapping[str, Any] = {**dict(chosen.variant.spec.constants), **dict(chosen.launch.arguments)}
        values = [_Descriptor.of(given[name]) for name, _ in chosen.variant.spec.signature]
        errors = need("triton", "triton.runtime.errors")
        try:
            # Triton's allocator belongs to the context: in a copy, the caller's stays as it is.
            copy_context().run(self._launch, chosen.launch.grid, values)
        except errors.OutOfResources as error:
            raise ResourcesError(f"{chosen.variant.name}: {error}") from None

    def _launch(self, grid: tuple[int, int, int], values: Sequence[Any]) -> None:
        if getattr(self.kernel.metadata, "global_scratch_size", 0):
            need("triton").set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device="cuda"))
        self.kernel[grid](*values)


class Images:
    """The compiled kernels of one recipe, by device."""

    def __init__(self) -> None:
        self._made: dict[tuple[CompileSpec, int], Image] = {}
        self._lock = threading.Lock()

    def get(self, chosen: Chosen, function: Any, target: Target, device: torch.device) -> Image:
        """The kernel that a call launches, compiled at its first use on the device.

        Raises:
            KernelError: Triton or an assembler rejected it.
        """
        key = (chosen.variant.spec, device.index or 0)
        with self._lock:
            if key not in self._made:
                self._made[key] = Image(compile_spec(chosen.variant.spec, target, function))
            return self._made[key]


@contextmanager
def _pinned(variables: Mapping[str, str]) -> Iterator[None]:
    """Triton reads its variables when it compiles; they are the process's, so one compile at a time."""
    variables = {name: value for name, value in variables.items() if name != _UNWANTED}
    with TRITON:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _of(error: Exception, spec: CompileSpec) -> KernelError:
    mistake = mistakes.find(error, Path(spec.source))
    if mistake is not None:
        return KernelError(mistake.sentence, "\n".join(mistake.excerpts))
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    gist = next((line for line in said if "error" in line.lower()), said[-1] if said else type(error).__name__)
    return KernelError(f"{spec.function} for {spec.target}: {gist}", str(error))
