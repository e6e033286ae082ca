"""Wheels from a release: kiln-runtime, one for each ABI of Python, and kiln-images-<target>, one for each pack.

    kiln_runtime-<version>-cp310-cp310-manylinux_2_28_x86_64.whl   the package kiln with its extension for 3.10,
    kiln_runtime-<version>-cp311-cp311-...                          for 3.11,
    kiln_runtime-<version>-cp312-abi3-...                           and for 3.12 and all later ones
      kiln/*.py, torch/, jit/                                       bindings/python/kiln
      kiln/recipe.py, plan.py ...                                   modules of v3python/kiln that those import
      kiln/flash/                                                   the family's recipe, kernels and tuning rules
      kiln/_core.*.so                                               the extension
      kiln/lib/libkiln.so.0, libkiln_flash.so, libkiln_torch.so
    kiln_images_<target>-<version>-py3-none-any.whl
      kiln/lib/kiln.images/<pack>

Libraries, packs and licences are the release's, each checked against its manifest; Python's modules and the
extension's sources are those of this source tree.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from kiln import extension, native, notices, portable, verify
from kiln.errors import ArtifactError, ToolchainError
from kiln.inspect import IMAGES, Release
from kiln.pythons import OLDEST, STABLE, Headers
from kiln.release import PLATFORM
from kiln.wheel_file import Wheel, write_wheel

RUNTIME = "kiln-runtime"
_TORCH_LIBRARY = "libkiln_torch.so"  # of a release that has it
_SHARE = "share/kiln/"

_SUMMARY = "Attention kernels for NVIDIA's and AMD's GPUs, compiled ahead of time"
_TORCH = "torch>=2.10"
_EXTRAS = {
    "torch": (_TORCH,),
    "transformers": (_TORCH, "transformers>=5.4"),
    "jit": (_TORCH, "triton>=3.6", "numpy>=1.24", "msgspec>=0.18", "PyYAML>=6.0"),
}
_CLASSIFIERS = (
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: Implementation :: CPython",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
)


@dataclass(frozen=True)
class Contents:
    """What of a release goes into wheels, unpacked.

    Attributes:
        version: the release's, "0.1.0b".
        libraries: by name.
        headers: public ones by path below include/, "kiln/kiln.h".
        packs: by target.
        texts: LICENSE, NOTICES.txt and licences/... by their path below share/kiln/.
    """

    version: str
    libraries: Mapping[str, Path]
    headers: Mapping[str, bytes]
    packs: Mapping[str, Path]
    texts: Mapping[str, str]


def python_version(version: str) -> str:
    """A release's version as Python's packages spell it: "0.1.0b0" for "0.1.0b".

    Raises:
        ArtifactError: it has no such spelling.
    """
    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise ArtifactError(
            f"the release's version {version} is none that a Python package can have; build it as one that is, "
            "0.1.0, 0.1.0b or 0.1.0rc1 say"
        ) from error


def unpack(release: Release, targets: Sequence[str], folder: Path) -> Contents:
    """Unpacks into `folder` what wheels are made of, and checks it against the manifest.

    Args:
        targets: whose packs; empty: all.

    Raises:
        ArtifactError: the release is damaged, is not what the .sha256 beside it states, has no such pack, or not the
            libraries.
    """
    if not release.is_folder:
        verify.verify_checksum(release.path, report := verify.Report())
        if report.problems:
            raise ArtifactError("; ".join(report.problems))
    packs = {row["name"]: row["pack"] for row in release.manifest["targets"] if row.get("pack")}
    for target in targets:
        if target not in packs:
            raise ArtifactError(f"{release.path} has no images for {target}; it has {', '.join(packs) or 'none'}")
    wanted = {f"{IMAGES}/{packs[target]}": target for target in targets or packs}
    found = dict(_taken(release, set(wanted), folder))
    for path in (*(f"lib/{name}" for name in extension.LIBRARIES), *wanted):
        if path not in found:
            raise ArtifactError(f"{release.path} has no {path}; the Python package is made of releases that have it")
    libraries = (*extension.LIBRARIES, *((_TORCH_LIBRARY,) if f"lib/{_TORCH_LIBRARY}" in found else ()))
    return Contents(
        version=str(release.manifest["kiln"]),
        libraries={name: found[f"lib/{name}"] for name in libraries},
        headers={p.removeprefix("include/"): f.read_bytes() for p, f in found.items() if p.startswith("include/")},
        packs={target: found[path] for path, target in wanted.items()},
        texts={p.removeprefix(_SHARE): f.read_text() for p, f in found.items() if p.startswith(_SHARE)},
    )


def package_files(source: Path) -> dict[str, Path]:
    """The files of the package below kiln/, but for the extension and the libraries, by path; `source` is the tree.

    The modules of v3python/kiln are those that the package's own import, and that those import in turn; one that reads
    a table beside it, targets.yaml say, brings that along.
    """
    package, generator = source / "bindings/python/kiln", source / "v3python/kiln"
    files = {
        path.relative_to(package).as_posix(): path
        for path in sorted(package.rglob("*"))
        if path.suffix in (".py", ".pyi") or path.name == "py.typed"
    }
    wanted = [name for path in files.values() if path.suffix == ".py" for name in _imports(path)]
    while wanted:
        name = wanted.pop()
        path = generator / f"{name}.py"
        if f"{name}.py" in files or f"{name}/__init__.py" in files or not path.is_file():
            continue
        files[f"{name}.py"] = path
        if path.with_suffix(".yaml").is_file():
            files[f"{name}.yaml"] = path.with_suffix(".yaml")
        wanted += _imports(path)
    family, tuning = source / "tritonsrc/flash", source / "tuning/flash"
    files |= {f"flash/{path.name}": path for path in (*family.glob("*.py"), family / "recipe.yaml")}
    files |= {f"flash/tuning/flash/{path.name}": path for path in tuning.glob("*.yaml")}
    return files


def runtime_wheel(
    contents: Contents, source: Path, site: Path, headers: Headers, compiler: native.Compiler, folder: Path, jobs: int,
    say: Callable[[str], None] = lambda _: None,
) -> Wheel:  # fmt: skip
    """The package for the Pythons that `headers` serve.

    Args:
        site: the site-packages with nanobind.
        folder: where what is compiled is kept.
        say: is told what takes long.

    Raises:
        NativeBuildError: the compiler rejected something.
        ToolchainError: nanobind or a licence is not where it should be.
    """
    built = extension.build_extension(
        source / "bindings/core", extension.nanobind_folder(), contents.headers, contents.libraries, headers, compiler,
        folder, jobs, say,
    )  # fmt: skip
    files = {f"kiln/{name}": path for name, path in package_files(source).items()}
    files |= {f"kiln/lib/{name}": path for name, path in contents.libraries.items()}
    files[f"kiln/{headers.file_name}"] = built
    texts = notices.with_extension(contents.texts, source, site)
    requires = [f'{what}; extra == "{extra}"' for extra, every in _EXTRAS.items() for what in every]
    described = (source / "bindings/python/README.md").read_text()
    metadata = _metadata(contents, RUNTIME, _SUMMARY, requires, tuple(_EXTRAS), texts, described)
    return _wheel(contents, RUNTIME, "-".join((*headers.tags, PLATFORM)), metadata, files, texts)


def images_wheel(contents: Contents, target: str) -> Wheel:
    """A target's pack, for the package of the same version."""
    name = f"kiln-images-{target.replace('_', '-')}"
    summary = f"{_SUMMARY}: those for {target}"
    described = f"The images of {target} for {RUNTIME}, which finds them.\n"
    requires = [f"{RUNTIME}=={python_version(contents.version)}"]
    metadata = _metadata(contents, name, summary, requires, (), contents.texts, described)
    pack = contents.packs[target]
    return _wheel(contents, name, "py3-none-any", metadata, {f"kiln/{IMAGES}/{pack.name}": pack}, contents.texts)


def write(wheels: Iterable[Wheel], output: Path) -> list[Path]:
    """Writes wheels into `output`.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    return [write_wheel(wheel, output) for wheel in wheels]


def abi_of(headers: Headers) -> tuple[int, int]:
    """The first Python that a wheel made with these headers is for: (3, 10), (3, 11) or (3, 12)."""
    return min(headers.version, STABLE)


ABIS = tuple((OLDEST[0], minor) for minor in range(OLDEST[1], STABLE[1] + 1))


def _imports(path: Path) -> list[str]:
    return portable.imports_of(path.read_bytes())


def _taken(release: Release, packs: set[str], folder: Path) -> Iterable[tuple[str, Path]]:
    """Files of a release that are wanted, written into `folder`."""
    stated = {row["path"]: row for row in release.manifest["files"]}
    for entry in release.entries():
        is_library = re.fullmatch(r"lib/libkiln\w*\.so(\.0)?", entry.path)
        is_text = re.fullmatch(rf"{_SHARE}(LICENSE|NOTICES\.txt|licences/[\w.-]+)", entry.path)
        is_wanted = is_library or is_text or entry.path in packs or re.fullmatch(r"include/kiln/[\w.]+", entry.path)
        if entry.kind != "file" or entry.problem or not is_wanted:
            continue
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for block in entry.blocks():
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != stated.get(entry.path, {}).get("sha256"):
            raise ArtifactError(f"{release.path}: {entry.path} does not have the digest that the manifest states")
        yield entry.path, path


def _metadata(
    contents: Contents, name: str, summary: str, requires: Sequence[str], extras: Sequence[str],
    texts: Mapping[str, str], described: str,
) -> str:  # fmt: skip
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", name),
        ("Version", python_version(contents.version)),
        ("Summary", summary),
        ("License", "MIT, and for parts the licences that NOTICES.txt names"),
        *(("License-File", path) for path in sorted(texts)),
        *(("Classifier", classifier) for classifier in _CLASSIFIERS),
        ("Requires-Python", ">={}.{}".format(*OLDEST)),
        *(("Requires-Dist", what) for what in requires),
        *(("Provides-Extra", extra) for extra in extras),
        ("Description-Content-Type", "text/markdown"),
    ]
    return "".join(f"{key}: {value}\n" for key, value in fields) + "\n" + described


def _wheel(
    contents: Contents, name: str, tag: str, metadata: str, files: Mapping[str, Path | bytes], texts: Mapping[str, str]
) -> Wheel:
    generator = f"kiln {contents.version}"
    return Wheel(name, python_version(contents.version), tag, generator, metadata, files, texts)


def zig() -> str:
    """The version of the zig that is installed.

    Raises:
        ToolchainError: none is.
    """
    try:
        return importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError as error:
        raise ToolchainError(
            "the package ziglang, which the extension is compiled with, is not in this Python; a build leaves a Python "
            "with all packages in <workspace>/venv/bin/python"
        ) from error
