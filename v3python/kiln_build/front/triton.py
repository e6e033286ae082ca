"""Triton from source, for a commit that has no wheel: KILN_TRITON=source.

`input/triton-<ref>.tar.gz` is the source, `input/llvm-<hash>-almalinux-x64.tar.gz` the LLVM and MLIR that it is built
with; <hash> stands in the source's cmake/llvm-hash.txt. input/install_triton.sh makes a wheel of the two without a
network, and the wheel becomes the toolchain.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kiln_build.base import machine
from kiln_build.front import packages
from kiln_recipe import digests
from kiln_recipe.compile.toolchain import SOURCES_NAME
from kiln_recipe.errors import ToolchainError

_HASH_FILE = re.compile(r"(\./)?[^/]+/cmake/llvm-hash\.txt")
_HASH_LENGTH = 8  # of the commit, in the tarball's name
_SECONDS_BETWEEN_LINES = 300.0


@dataclass(frozen=True)
class Sources:
    """What a Triton is built from: files in the input folder."""

    archive: Path
    llvm: Path
    script: Path

    def digests(self) -> dict[str, str]:
        """SHA-256 of each, by the name that the manifest gives it."""
        named = {"source archive": self.archive, "LLVM archive": self.llvm, "build script": self.script}
        return {name: digests.of_file(path) for name, path in named.items()}


def find_sources(folder: Path) -> Sources:
    """What KILN_TRITON=source builds, in the input folder; a matter of seconds, to be asked before anything is done.

    Raises:
        ToolchainError: an archive is missing or more than one, or has no hash of LLVM.
    """
    archive = _source_archive(folder)
    llvm = _llvm_archive(folder, archive)
    script = folder / "install_triton.sh"
    if not script.is_file():
        raise ToolchainError(f"{script} is not there; give input/ of the source tree, or a copy of it")
    return Sources(archive, llvm, script)


def build_from_source(
    sources: Sources, folder: Path, workspace: Path, tools: str, jobs: int | None, say: Callable[[str], None]
) -> Path:
    """The site-packages with the Triton built from `sources`; built once for each archive and LLVM.

    Args:
        folder: the input folder.
        tools: requirements of what it is built with, as `Lock.requirements` writes them.
        jobs: compilers at once; None: one for each processor.

    Raises:
        ToolchainError: it does not build.
    """
    stated = sources.digests()
    identity = digests.of_text("".join(stated.values()) + sys.version)[:16]
    wheels = workspace / "toolchains" / f"triton-source-{identity}"
    if not wheels.is_dir():
        log = workspace / "logs" / "triton.log"
        say(f"triton: building {sources.archive.name} with {sources.llvm.name}; log: {log}")
        site = packages.prepare_toolchain(workspace, folder, "triton-tools", tools) if tools else None
        _build(sources, wheels, workspace, site, jobs or machine.usable_cpus(), say)
    (wheel,) = wheels.glob("triton-*.whl")
    requirement = f"triton @ {wheel.as_uri()} --hash=sha256:{digests.of_file(wheel)}\n"
    texts = {SOURCES_NAME: json.dumps(stated, sort_keys=True) + "\n"}
    return packages.prepare_toolchain(workspace, folder, "triton-source-site", requirement, texts)


def llvm_hash(archive: Path) -> str:
    """The commit of LLVM that a source archive of Triton asks for.

    Raises:
        ToolchainError: the archive cannot be read, or has no cmake/llvm-hash.txt.
    """
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member) if re.fullmatch(_HASH_FILE, member.name) and member.isreg() else None
                if file is not None:
                    text = file.read(200).decode("ascii", "replace").strip()
                    if re.fullmatch(rf"[0-9a-f]{{{_HASH_LENGTH},40}}", text):
                        return text
                    raise ToolchainError(f"{archive}: cmake/llvm-hash.txt says {text!r}, which is not a commit")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ToolchainError(f"{archive} cannot be read ({error}); give a source archive of Triton")
    raise ToolchainError(f"{archive} has no <folder>/cmake/llvm-hash.txt; give a source archive of Triton")


def _source_archive(folder: Path) -> Path:
    found = sorted(folder.glob("triton-*.tar.gz"))
    if len(found) == 1:
        return found[0]
    problem = "there are several: " + ", ".join(path.name for path in found) if found else "there is none"
    raise ToolchainError(f"KILN_TRITON=source needs one triton-<ref>.tar.gz in {folder}, and {problem}")


def _llvm_archive(folder: Path, archive: Path) -> Path:
    name = f"llvm-{llvm_hash(archive)[:_HASH_LENGTH]}-almalinux-x64.tar.gz"
    if not (folder / name).is_file():
        raise ToolchainError(f"{archive.name} needs {name}, which is not in {folder}; put it there")
    return folder / name


def _build(
    sources: Sources, wheels: Path, workspace: Path, tools: Path | None, jobs: int, say: Callable[[str], None]
) -> None:
    wheels.parent.mkdir(parents=True, exist_ok=True)
    (workspace / "logs").mkdir(exist_ok=True)
    log = workspace / "logs" / "triton.log"
    fresh = Path(tempfile.mkdtemp(prefix=".triton-source.", dir=wheels.parent))
    python = str(packages.environment_python(workspace))
    environment = packages.pip_environment(workspace, KILN_BUILD_PYTHON=python, MAX_JOBS=str(jobs))
    if tools is not None:
        environment |= {"PYTHONPATH": str(tools), "PATH": f"{tools / 'bin'}:{environment['PATH']}"}
    try:
        files = [sources.script, sources.archive, sources.llvm, fresh / "work", fresh / "wheels"]
        with log.open("wb") as stream:
            code = _run(["bash", *map(str, files)], environment, stream, say)
        made = sorted((fresh / "wheels").glob("triton-*.whl")) if code == 0 else []
        if len(made) != 1:
            tail = " ".join(log.read_text(errors="replace").strip().splitlines()[-1:])
            raise ToolchainError(f"Triton could not be built from {sources.archive.name}: {tail}; log: {log}")
        os.replace(fresh / "wheels", wheels)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _run(command: list[str], environment: dict[str, str], log: BinaryIO, say: Callable[[str], None]) -> int:
    """Runs the build, which takes hours, and says now and then that it still does."""
    began = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
    ) as process:
        try:
            while True:
                try:
                    return process.wait(_SECONDS_BETWEEN_LINES)
                except subprocess.TimeoutExpired:
                    say(f"triton: still building after {(time.monotonic() - began) / 60:.0f} minutes")
        except BaseException:
            process.kill()
            raise
