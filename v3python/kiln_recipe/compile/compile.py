"""Compiles one variant. With mistakes.py and source.py all that imports Triton; it runs on workers alone.

`compile_variant` is a function of (spec, toolchain) alone: it knows no executor, no store, and not who asks.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kiln_recipe import targets
from kiln_recipe.compile import assembler, kernel_modules, libraries, mistakes, verifier
from kiln_recipe.compile.source import triton_source
from kiln_recipe.compile.stages import FRONT_END, IMAGE, Stages
from kiln_recipe.compile.toolchain import INHERITED_VARIABLES, PINNED_ENVIRONMENT, Toolchain
from kiln_recipe.errors import CompileError, EnvironmentProblem, KilnError, ToolchainError, is_full
from kiln_recipe.images import elf, image
from kiln_recipe.images.image import DescriptorInfo, Image, ImageInfo
from kiln_recipe.plan.model import CompileSpec
from kiln_recipe.read import fingerprint
from kiln_recipe.targets import Target

# Entered with the digest of a variant's IR; gives the image of an equal IR, or None, and then holds everybody else
# with that IR off until it is left.
Reuse = Callable[[str], AbstractContextManager["Image | None"]]


@dataclass(frozen=True)
class Compiled:
    """What a compile gives.

    Attributes:
        ir: the digest of its IR.
        shared: whether an equal IR had been compiled before.
        stages: seconds of processors that each stage took (stages.py).
    """

    image: Image
    ir: str
    shared: bool
    stages: Mapping[str, float] = field(default_factory=dict)


def prepare_worker(toolchain: Toolchain) -> None:
    """Makes this process a worker: a clean environment, and Triton imported once.

    From here on Python's garbage is collected after each variant alone: else all of Triton is walked again and again
    while the front end builds its trees, for 5 to 10 % of a compile's time.

    Python takes bytecode by the time of its source. The toolchain's identity is that of sources, so Triton is compiled
    from them: half a second for each worker.

    Raises:
        ToolchainError: another Triton is imported than the toolchain's.
    """
    kept = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    os.environ.clear()
    os.environ.update({**kept, **PINNED_ENVIRONMENT})
    sys.path.insert(0, toolchain.site)
    sys.pycache_prefix, sys.dont_write_bytecode = os.devnull, True
    import triton
    import triton.compiler.code_generator  # with Gluon; else the first compile imports it, and counts it as its own
    from triton._C import libtriton

    if not os.path.samefile(Path(triton.__file__).parents[1], toolchain.site):
        raise ToolchainError(f"a worker imports Triton from {triton.__file__} instead of {toolchain.site}")

    verifier.verify_once_a_stage(libtriton.ir, libtriton.llvm, libtriton.__file__)
    libraries.link_what_is_called(libtriton.ir, libtriton.llvm)
    kernel_modules.remember_blocks()
    kernel_modules.remember_trees(triton.JITFunction)
    gc.collect()
    gc.freeze()
    gc.disable()


def compile_variant(spec: CompileSpec, toolchain: Toolchain, reuse: Reuse | None = None) -> Compiled:
    """Compiles one variant in this process, which `prepare_worker` has made ready.

    Raises:
        CompileError: Triton or an assembler rejected it; carries the stage and what they printed.
        EnvironmentProblem: its source is not the one that was planned, or this machine refused the compiler a file.
        MemoryError: it refused memory.
    """
    target = targets.by_name(spec.target)
    os.environ.update(toolchain.environment(target, spec.ptx))
    printed = _Printed()
    took = Stages()
    stage = "source"
    try:
        with printed:
            pipeline = _Pipeline(spec, target, toolchain, took)
            stage = "ttir"
            ir = pipeline.lower()
            with (reuse or _nothing)(ir) as known:
                if known is not None:
                    return Compiled(known, ir, shared=True, stages=took.seconds)
                for stage in pipeline.remaining:
                    pipeline.run(stage)
                stage = "image"
                return Compiled(_image(pipeline, spec, target, printed), ir, shared=False, stages=took.seconds)
    except KilnError:
        raise
    except Exception as error:
        mistake = mistakes.find(error, Path(spec.source))
        if mistake is not None:
            raise CompileError(
                mistake.sentence, stage, "\n".join(filter(None, (printed.text, *mistake.excerpts)))
            ) from error
        _raise_if_refused(error, spec, printed.text)
        log = "\n".join(part for part in (printed.text, f"{type(error).__name__}: {error}") if part)
        raise CompileError(f"{spec.function} for {spec.target}: {_gist(error)}", stage, log) from error
    finally:
        gc.collect()
        took.end(IMAGE)


class _Pipeline:
    """Triton's stages, one by one. `triton.compile` would do, but it hashes its own 500 MB library in each process
    and writes every stage to a cache that is never read."""

    def __init__(self, spec: CompileSpec, target: Target, toolchain: Toolchain, took: Stages) -> None:
        from triton._C.libtriton import ir
        from triton.backends.compiler import GPUTarget
        from triton.compiler import make_backend

        function = _load_function(Path(spec.source), spec.function, spec.fingerprint)
        self.source = triton_source(function, spec)
        self.gpu = GPUTarget(target.backend, target.triton_arch, target.warp_size)
        self.backend = make_backend(self.gpu)
        self.options = self.backend.parse_options(spec.compile_options)
        # With the IR, all that the image depends on: equal digests mean equal bytes, as with keys.
        self.identity = [image.FORMAT, toolchain.identity, target.name, target.pinned, sorted(spec.options)]
        self.identity += [[name, value] for name, value in spec.marks.items()]
        self.stages: dict = {}
        self.backend.add_stages(self.stages, self.options, self.source.language)
        self.context = ir.context()
        ir.load_dialects(self.context)
        self.backend.load_dialects(self.context)
        self.metadata = {"target": self.gpu, **self.options.__dict__}
        self.results: dict = {}
        self.heap = toolchain.heap
        self.took = took

    @property
    def remaining(self) -> list[str]:
        return [name for name in self.stages if name not in self.results]

    def lower(self) -> str:
        """Source to IR; the digest of all that the stages after it depend on. Triton's is simplified first; Gluon's has
        no such stage."""
        module = self.source.make_ir(
            self.gpu,
            self.options,
            self.backend.get_codegen_implementation(self.options),
            self.backend.get_module_map(),
            self.context,
        )
        self.module = module
        self.took.end(FRONT_END)
        if "ttir" in self.stages:
            self.run("ttir")
        identity = json.dumps(self.identity) + self.module.str_nodebug()
        digest = hashlib.sha256(identity.encode()).hexdigest()
        self.took.end(FRONT_END)
        return digest

    def run(self, stage: str) -> None:
        with self._assembler() if stage == "cubin" and self.heap else contextlib.nullcontext():
            self.module = self.results[stage] = self.stages[stage](self.module, self.metadata)
        if stage in ("ttir", "ttgir"):
            verifier.verify(self.module)
        self.took.end(stage)

    def _assembler(self) -> AbstractContextManager[None]:
        from triton.backends.nvidia import compiler as backend

        return assembler.canonical(backend, self.heap, os.environ.get("LD_LIBRARY_PATH", ""))


class _Printed:
    """All that is printed while it is entered, by Python, by LLVM and by child processes.

    A worker's output already goes to one file, its job's log, and is read back from there, so that the log has all of
    it even if the compiler takes the process down. Elsewhere it goes to a temporary file.
    """

    def __init__(self) -> None:
        self.text = ""

    def __enter__(self) -> None:
        self._flush()
        one, two = os.fstat(1), os.fstat(2)
        self._kept: list[int] = []
        self._file: IO[bytes]
        if stat.S_ISREG(two.st_mode) and (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino):
            self._file = open("/proc/self/fd/2", "rb")
            self._begin = two.st_size
        else:
            self._file = tempfile.TemporaryFile()
            self._begin = 0
            for descriptor in (1, 2):
                self._kept.append(os.dup(descriptor))
                os.dup2(self._file.fileno(), descriptor)

    def __exit__(self, *_: object) -> None:
        self.read()
        for descriptor, kept in zip((1, 2), self._kept):
            os.dup2(kept, descriptor)
            os.close(kept)
        self._file.close()

    def read(self) -> str:
        """What has been printed up to now."""
        self._flush()
        size = os.fstat(self._file.fileno()).st_size - self._begin
        self.text = os.pread(self._file.fileno(), size, self._begin).decode(errors="replace")
        return self.text

    @staticmethod
    def _flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()


# LLVM's code generators report some errors (registers that an inline assembly's constraint cannot get, say) on standard
# error alone: what they return then looks like an image and is none.
_LLVM_ERROR = re.compile(r"^(?:.*: )?error: .*$", re.MULTILINE)


# Triton's number of an element type, as its compiler has it, to CUtensorMapDataType: they differ in these.
_ELEMENT_TYPES = {8: 10, 9: 8, 10: 9}


def descriptors_of(metadata: Mapping[str, Any]) -> tuple[DescriptorInfo, ...]:
    """What a compile's metadata says of the tensor descriptors that its image takes.

    Raises:
        CompileError: one is of a kind that no recipe can ask for.
    """
    found = []
    for row in metadata.get("tensordesc_meta") or ():
        if row.get("fp4_padded") or row.get("is_im2col"):
            kind = "of padded fp4" if row.get("fp4_padded") else "by im2col"
            raise CompileError(
                f"{metadata['name']} takes a tensor descriptor {kind}; a release has plain tiles", "image", ""
            )
        number = row["elem_type"]
        found.append(DescriptorInfo(_ELEMENT_TYPES.get(number, number), row["swizzle"], tuple(row["block_size"])))
    return tuple(found)


def _image(pipeline: _Pipeline, spec: CompileSpec, target: Target, printed: _Printed) -> Image:
    metadata = pipeline.metadata
    code = pipeline.results[target.image_kind]
    log = printed.read()
    if found := _LLVM_ERROR.search(log):
        raise CompileError(f"{metadata['name']} for {target.name}: {found[0]}", "image", log)
    if not code:
        raise CompileError(f"{metadata['name']} for {target.name}: the assembler wrote an empty image", "image", log)
    common = {
        "kind": target.image_kind,
        "symbol": metadata["name"],
        "scratch": metadata.get("global_scratch_size") or 0,
        "scratch_align": metadata.get("global_scratch_align") or 1,
        "profile_scratch": metadata.get("profile_scratch_size") or 0,
        "clusters": metadata.get("num_ctas") or 1,
        "descriptors": descriptors_of(metadata),
    }
    wanted = sum(kind.startswith("tensordesc") for _, kind in spec.signature)
    if len(common["descriptors"]) != wanted:
        raise CompileError(
            f"{metadata['name']} for {target.name}: the image takes {len(common['descriptors'])} tensor descriptors, "
            f"the recipe gives {wanted}",
            "image",
            log,
        )
    if target.vendor == "amd":
        facts = elf.amd_facts(code)
        info = ImageInfo(
            **common,
            threads=facts.max_flat_workgroup_size,
            shared=max(metadata["shared"], facts.group_segment),
            registers=facts.vgprs,
            spills=4 * facts.vgpr_spills,
            stack=facts.private_segment,
            parameters=facts.parameters,
            abi=facts.code_object_version,
            ptx_version="",
        )
        return Image(elf.strip(code), info)
    cubin = elf.nvidia_facts(code)
    report = elf.ptxas_report(log, metadata["name"])
    info = ImageInfo(
        **common,
        threads=cubin.threads,
        shared=metadata["shared"] + report.static_shared,
        registers=report.registers,
        spills=report.spill_stores,
        stack=report.stack,
        parameters=len(cubin.parameters),
        abi=cubin.abi,
        ptx_version=f"{spec.ptx_version // 10}.{spec.ptx_version % 10}",
    )
    return Image(elf.strip(code), info, pipeline.results["ptx"])


def _raise_if_refused(error: BaseException, spec: CompileSpec, printed: str) -> None:
    """Raises what the system refused the compiler, if it did: that says nothing of the variant."""
    what = f"{spec.function} for {spec.target} cannot be compiled on this machine"
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.errno is not None:
            if behind.errno in (errno.ENOMEM, errno.EAGAIN):
                raise MemoryError(str(behind)) from None
            raise EnvironmentProblem(f"{what} ({behind}); {_remedy(behind)}") from error
        behind = behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__)
    for number in (errno.ENOSPC, errno.EDQUOT):  # of an assembler's files
        if os.strerror(number) in f"{printed}\n{error}":
            refusal = OSError(number, os.strerror(number))
            raise EnvironmentProblem(f"{what} ({refusal}); {_remedy(refusal)}") from error


def _remedy(error: OSError) -> str:
    if is_full(error):
        return f"make room on the disk of {error.filename or tempfile.gettempdir()}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "allow more open files there (ulimit -n)"
    return f"make {error.filename or 'its files'} accessible there"


_modules: dict[tuple[str, str], object] = {}


def _load_function(path: Path, name: str, stated: str):
    """The Triton function `name` of the module at `path`, imported once a worker and fingerprint.

    Raises:
        EnvironmentProblem: it is another than was planned, so that its images would lie under wrong keys.
    """
    known = (str(path), stated)
    if known not in _modules:
        if fingerprint.fingerprint(path, name) != stated:
            raise EnvironmentProblem(f"{path}: {name} has changed since the build began; start the build again")
        _modules[known] = kernel_modules.load(path)
        gc.collect()
        gc.freeze()  # it stays, and is not walked again after each variant
    return getattr(_modules[known], name)


@contextlib.contextmanager
def _nothing(_ir: str) -> Iterator[None]:
    yield None


def _gist(error: Exception) -> str:
    """The line of a tool's long message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines[-1:] or [type(error).__name__])[-1]
