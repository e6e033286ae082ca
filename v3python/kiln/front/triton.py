"""Triton from source, for a commit that has no wheel: KILN_TRITON=source.

`input/triton-<ref>.tar.gz` is the source, `input/llvm-<hash>-almalinux-x64.tar.gz` the LLVM and MLIR that it is built
with; <hash> stands in the source's cmake/llvm-hash.txt. input/install_triton.sh makes a wheel of the two without a
network, and the wheel becomes the toolchain.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from kiln.errors import ToolchainError
from kiln.front import packages

_HASH_LENGTH = 8  # of the commit, in the tarball's name


def build_from_source(folder: Path, workspace: Path, tools: str, say: Callable[[str], None]) -> Path:
    """The site-packages with the Triton built from the archive in the input folder; built once per archive and LLVM.

    Args:
        tools: requirements of what it is built with, as `Lock.requirements` writes them.

    Raises:
        ToolchainError: an archive is missing or more than one, has no hash of LLVM, or does not build.
    """
    archive = _source_archive(folder)
    llvm = _llvm_archive(folder, archive)
    script = folder / "install_triton.sh"
    if not script.is_file():
        raise ToolchainError(f"{script} is not there; give input/ of the source tree, or a copy of it")
    identity = hashlib.sha256(
        "".join(_digest(path) for path in (archive, llvm, script)).encode() + sys.version.encode()
    ).hexdigest()[:16]
    wheels = workspace / "toolchains" / f"triton-source-{identity}"
    if not wheels.is_dir():
        say(f"triton: building {archive.name} with {llvm.name}; log: {workspace / 'logs' / 'triton.log'}")
        site = packages.prepare_toolchain(workspace, folder, "triton-tools", tools) if tools else None
        _build(script, archive, llvm, wheels, workspace, site)
    (wheel,) = wheels.glob("triton-*.whl")
    requirement = f"triton @ {wheel.as_uri()} --hash=sha256:{_digest(wheel)}\n"
    return packages.prepare_toolchain(workspace, folder, "triton-source-site", requirement)


def llvm_hash(archive: Path) -> str:
    """The commit of LLVM that a source archive of Triton asks for.

    Raises:
        ToolchainError: the archive cannot be read, or has no cmake/llvm-hash.txt.
    """
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if re.fullmatch(r"(\./)?[^/]+/cmake/llvm-hash\.txt", member.name) and member.isreg():
                    text = tar.extractfile(member).read(200).decode("ascii", "replace").strip()
                    if re.fullmatch(rf"[0-9a-f]{{{_HASH_LENGTH},40}}", text):
                        return text
                    raise ToolchainError(f"{archive}: cmake/llvm-hash.txt says {text!r}, which is no commit")
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
        raise ToolchainError(f"{archive.name} is built with {name}, which is not in {folder}; put it there")
    return folder / name


def _build(script: Path, archive: Path, llvm: Path, wheels: Path, workspace: Path, tools: Path | None) -> None:
    wheels.parent.mkdir(parents=True, exist_ok=True)
    (workspace / "logs").mkdir(exist_ok=True)
    log = workspace / "logs" / "triton.log"
    fresh = Path(tempfile.mkdtemp(prefix=".triton-source.", dir=wheels.parent))
    python = str(packages.environment_python(workspace))
    environment = packages.pip_environment(workspace, KILN_BUILD_PYTHON=python)
    if tools is not None:
        environment |= {"PYTHONPATH": str(tools), "PATH": f"{tools / 'bin'}:{environment['PATH']}"}
    try:
        with log.open("wb") as stream:
            done = subprocess.run(
                ["bash", str(script), str(archive), str(llvm), str(fresh / "work"), str(fresh / "wheels")],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=False,
                env=environment,
            )
        made = sorted((fresh / "wheels").glob("triton-*.whl")) if done.returncode == 0 else []
        if len(made) != 1:
            tail = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise ToolchainError(f"Triton could not be built from {archive.name}: {' '.join(tail)}; log: {log}")
        os.replace(fresh / "wheels", wheels)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
