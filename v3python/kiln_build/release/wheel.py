"""Wheels from a release: kiln-runtime, one for each ABI of Python, kiln-images-<target>, one for each pack, kiln-build,
and kiln-recipe and kiln-cli, which they need.

    kiln_recipe-<version>-py3-none-any.whl      the package kiln_recipe
    kiln_cli-<version>-py3-none-any.whl         the command kiln
    kiln_build-<version>-py3-none-any.whl       the package kiln_build
      kiln_build/project/                       and all else of the source tree that builds need (installed.py)
    kiln_runtime-<version>-cp310-cp310-manylinux_2_28_x86_64.whl   the package kiln with its extension for 3.10,
    kiln_runtime-<version>-cp311-cp311-...                          for 3.11,
    kiln_runtime-<version>-cp312-abi3-...                           and for 3.12 and all later ones
      kiln/*.py, torch/, jit/                                       bindings/python/kiln
      kiln/flash/                                                   the family's recipe, kernels and tuning rules
      kiln/_core.*.so                                               the extension
      kiln/lib/libkiln.so.0, libkiln_flash.so, libkiln_torch.so
      kiln_bench/                                                   `kiln bench`, `tune`, `verify-device`; headers
    kiln_images_<target>-<version>-py3-none-any.whl
      kiln/lib/kiln.images/<pack>

Libraries, packs and licences are the release's, each checked against its manifest; Python's modules and the
extension's sources are those of this source tree.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln_build.artifacts.reader import IMAGES, Release
from kiln_build.base.wheel_file import Wheel, write_wheel
from kiln_build.native import argument_files, arguments, extension
from kiln_build.native.library import Compiler
from kiln_build.native.pythons import OLDEST, STABLE, Headers
from kiln_build.origin import bill, notices
from kiln_build.release import replacement, wheel_metadata
from kiln_build.release.release import PLATFORM
from kiln_build.release.wheel_metadata import Material, python_version
from kiln_recipe.compile import lock, toolchain
from kiln_recipe.console.appear import passing_folder
from kiln_recipe.errors import ArtifactError, ToolchainError, UsageError
from kiln_recipe.selection import PROFILES

RECIPE = "kiln-recipe"
RUNTIME = "kiln-runtime"
CLI = "kiln-cli"
BUILD = "kiln-build"
VERBS = "kiln.verbs"  # kiln_cli.GROUP
RUNTIME_POINTS = {
    VERBS: {
        "info": "kiln.__main__:main",
        "bench": "kiln_bench.command:main",
        "tune": "kiln_bench.tune.command:main",
        "verify-device": "kiln_bench.verify.command:main",
    }
}
# Of the source tree, what kiln-build takes along: folders and files.
PROJECT = (
    "bindings/", "cmake/", "csrc/", "docs/measurements/verified/", "dockerfile/", "include/", "input/", "notices/",
    "tritonsrc/", "tuning/", "v3python/kiln_bench/", "CMakeLists.txt", "LICENSE", "build.sh",
)  # fmt: skip
_TORCH_LIBRARY = "libkiln_torch.so"  # of a release that has it
_SHARE = "share/kiln/"

_SUMMARY = "Attention kernels for NVIDIA's and AMD's GPUs, compiled ahead of time"
_TORCH = "torch>=2.10"
(_OLD_MAJOR, _OLD_MINOR), (_MAJOR, _MINOR) = toolchain.JIT_VERSIONS
_TRITON = f"triton>={_OLD_MAJOR}.{_OLD_MINOR},<{_MAJOR}.{_MINOR + 1}"
_EXTRAS = {
    "torch": (_TORCH,),
    "transformers": (_TORCH, "transformers>=5.4"),
    "jit": (_TORCH, _TRITON, "numpy>=1.24", "msgspec>=0.18", "PyYAML>=6.0"),
}


@dataclass(frozen=True)
class Contents:
    """What of a release goes into wheels, unpacked.

    Attributes:
        version: the release's, "0.1.0b" or "0.1.0b+full".
        targets: all that the release has images for.
        libraries: by name.
        headers: public ones by path below include/, "kiln/kiln.h".
        packs: by target.
        texts: LICENSE, NOTICES.txt and licences/... by their path below share/kiln/.
        profile, selection: the release's, as its manifest spells them.
        bill: the release's bill of materials; b"" of a release that has none.
        urls: what the packages state as addresses, by their labels.
    """

    version: str
    targets: tuple[str, ...]
    libraries: Mapping[str, Path]
    headers: Mapping[str, bytes]
    packs: Mapping[str, Path]
    texts: Mapping[str, str]
    profile: str = PROFILES[0]
    selection: str = ""
    bill: bytes = b""
    urls: Mapping[str, str] = field(default_factory=dict)


def exactly(package: str, version: str, extra: str = "") -> str:
    """The requirement of a package of the same build. `===` compares texts; for `==`, "0.1.0b0+full" is a "0.1.0b0"
    too."""
    return f"{package}{f'[{extra}]' if extra else ''}==={python_version(version)}"


def unpack(release: Release, targets: Sequence[str], folder: Path, urls: Mapping[str, str] = {}) -> Contents:
    """Unpacks into `folder` what wheels are made of, and checks it against the manifest.

    Args:
        targets: whose packs; empty: all.
        urls: as Contents has them.

    Raises:
        UsageError: the release has no images for one of the targets.
        ArtifactError: it is damaged, or has not the libraries.
    """
    packs = {row["name"]: row["pack"] for row in release.manifest["targets"] if row.get("pack")}
    for target in targets:
        if target not in packs:
            raise UsageError(f"{release.path} has no images for {target}; it has {', '.join(packs) or 'none'}")
    wanted = {f"{IMAGES}/{packs[target]}": target for target in targets or packs}
    found = dict(_taken(release, set(wanted), folder))
    for path in (*(f"lib/{name}" for name in extension.LIBRARIES), *wanted):
        if path not in found:
            raise ArtifactError(f"{release.path} has no {path}, which the Python package needs")
    texts = [path for path in found if path.startswith(_SHARE) and path != bill.PATH]
    libraries = (*extension.LIBRARIES, *((_TORCH_LIBRARY,) if f"lib/{_TORCH_LIBRARY}" in found else ()))
    return Contents(
        version=str(release.manifest["kiln"]),
        targets=tuple(packs),
        libraries={name: found[f"lib/{name}"] for name in libraries},
        headers={p.removeprefix("include/"): f.read_bytes() for p, f in found.items() if p.startswith("include/")},
        packs={target: found[path] for path, target in wanted.items()},
        texts={p.removeprefix(_SHARE): _text(found[p], release, p) for p in texts},
        profile=release.manifest["profile"],
        selection=release.manifest["selection"],
        bill=found[bill.PATH].read_bytes() if bill.PATH in found else b"",
        urls=urls,
    )


def _text(file: Path, release: Release, path: str) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{release.path}: {path} is not UTF-8, as a text of a package must be") from error


def package_files(source: Path) -> dict[str, Path]:
    """The files of the package kiln but for the extension and the libraries, by path below kiln/; `source` is the
    tree."""
    files = _modules(source / "bindings/python/kiln")
    files[lock.LOCK_NAME] = source / "input" / lock.LOCK_NAME  # by which kiln.jit tells which Triton it has
    family, tuning = source / "tritonsrc/flash", source / "tuning/flash"
    files |= {f"flash/{path.name}": path for path in (*family.glob("*.py"), family / "recipe.yaml")}
    files |= {f"flash/tuning/flash/{path.relative_to(tuning).as_posix()}": path for path in tuning.rglob("*.yaml")}
    return files


def bench_files(source: Path, headers: Mapping[str, bytes]) -> dict[str, Path | bytes]:
    """`kiln bench`, with what it reads of a release's headers."""
    files: dict[str, Path | bytes] = {
        f"kiln_bench/{name}": path for name, path in _modules(source / "v3python/kiln_bench").items()
    }
    return files | {f"kiln_bench/include/{name}": headers[f"kiln/{name}"] for name in ("kiln.h", "flash.h")}


def generated_files(source: Path, profile: str, selection: str) -> dict[str, bytes]:
    """The modules of the package kiln that are generated, by path below kiln/.

    Args:
        profile, selection: of the release whose libraries it gets.
    """
    table = arguments.read(source / arguments.TABLE)
    release = (
        f'"""Of the release that this package is made from."""\n\nPROFILE = {profile!r}\nSELECTION = {selection!r}\n'
    )
    return {
        argument_files.PYTHON_MODULE: argument_files.python_module(table).encode(),
        "_release.py": release.encode(),
    }


def _modules(package: Path) -> dict[str, Path]:
    """What a package in Python consists of, by path below it."""
    return {
        path.relative_to(package).as_posix(): path
        for path in sorted(package.rglob("*"))
        if path.suffix in (".py", ".pyi", ".yaml") or path.name == "py.typed"
    }


def recipe_wheel(contents: Contents, source: Path) -> Wheel:
    """The package that the runtime and the build share, with the command `kiln`."""
    files: dict[str, Path | bytes] = {
        f"{RECIPE.replace('-', '_')}/{name}": path for name, path in _modules(source / "v3python/kiln_recipe").items()
    }
    described = f"What {RUNTIME} and {BUILD} share: recipes, plans and calls.\n"
    material = _material(contents, RECIPE, files)
    metadata = _metadata(contents, RECIPE, f"{_SUMMARY}: recipes and plans", (), (), material, described)
    return _wheel(contents, RECIPE, "py3-none-any", metadata, files, material)


def cli_wheel(contents: Contents, source: Path) -> Wheel:
    """The command `kiln`, which finds its verbs among what is installed."""
    files: dict[str, Path | bytes] = {
        f"kiln_cli/{name}": path for name, path in _modules(source / "v3python/kiln_cli").items()
    }
    described = f"The command `kiln`; {RUNTIME} and {BUILD} bring what it does.\n"
    material = _material(contents, CLI, files)
    metadata = _metadata(contents, CLI, f"{_SUMMARY}: the command kiln", (), (), material, described)
    points = {"console_scripts": {"kiln": "kiln_cli:main"}}
    return _wheel(contents, CLI, "py3-none-any", metadata, files, material, points)


def build_wheel(
    contents: Contents, source: Path, tree: Iterable[str], origin: bytes, verbs: Iterable[str], described: str
) -> Wheel:
    """What builds releases from recipes, without a checkout.

    Args:
        source: the source tree.
        tree: paths of all its files.
        origin: what says which commit it is of.
        verbs: those that it brings.
        described: the text of its README.
    """
    files: dict[str, Path | bytes] = {"kiln_build/project/.source.json": origin}
    for path in tree:
        if path.startswith("v3python/kiln_build/"):
            files[path.removeprefix("v3python/")] = source / path
        elif path.startswith(PROJECT):
            files[f"kiln_build/project/{path}"] = source / path
    requires = [exactly(package, contents.version) for package in (CLI, RECIPE)]
    material = _material(contents, BUILD, files)
    the_lock = lock.read_lock(source / "input" / lock.LOCK_NAME)
    requires += [f'{one.requirement}; extra == "dask"' for one in the_lock.packages if one.use == "scheduler"]
    metadata = _metadata(contents, BUILD, f"{_SUMMARY}: the build", requires, ("dask",), material, described)
    points = {VERBS: dict.fromkeys(verbs, "kiln_build.installed:main")}
    return _wheel(contents, BUILD, "py3-none-any", metadata, files, material, points)


def runtime_wheel(
    contents: Contents, source: Path, site: Path, headers: Headers, compiler: Compiler, folder: Path, jobs: int,
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
    files: dict[str, Path | bytes] = {f"kiln/{name}": path for name, path in package_files(source).items()}
    files |= {
        f"kiln/{name}": data for name, data in generated_files(source, contents.profile, contents.selection).items()
    }
    files |= {f"kiln/lib/{name}": path for name, path in contents.libraries.items()}
    files |= bench_files(source, contents.headers)
    files[f"kiln/{headers.file_name}"] = built
    texts = notices.with_extension(contents.texts, source, site)
    described = (source / "bindings/python/README.md").read_text()
    the_lock = lock.read_lock(source / "input" / lock.LOCK_NAME)
    more = bill.parts_of(notices.read(source, "extension.yaml"), the_lock, ())
    material = Material.of(RUNTIME, contents.version, [*files], contents.bill, texts, more)
    metadata = runtime_metadata(contents, material, described)
    return _wheel(contents, RUNTIME, "-".join((*headers.tags, PLATFORM)), metadata, files, material, RUNTIME_POINTS)


def runtime_metadata(contents: Contents, material: Material, described: str) -> str:
    """The runtime's METADATA; it has an extra for the images of each target, of this very build."""
    requires = [exactly(package, contents.version) for package in (CLI, RECIPE)]
    requires += [f'{what}; extra == "{extra}"' for extra, every in _EXTRAS.items() for what in every]
    # By `==`, since pip before 24 does not read `===` before a marker. Without a label that lets images of other builds
    # pass too, but these ask for another runtime.
    version = python_version(contents.version)
    requires += [f'{images_package(t)}=={version}; extra == "{_extra_of(t)}"' for t in contents.targets]
    extras = (*_EXTRAS, *map(_extra_of, contents.targets))
    return _metadata(contents, RUNTIME, _SUMMARY, requires, extras, material, described)


def images_wheel(contents: Contents, target: str) -> Wheel:
    """A target's pack, for the package of the same build. It asks for the runtime with this target's extra: a runtime
    that was built for other targets has no such extra, and pip warns of that."""
    name = images_package(target)
    summary = f"{_SUMMARY}: those for {target}"
    described = f"The images of {target} for {RUNTIME}, which finds them.\n"
    requires = [exactly(RUNTIME, contents.version, _extra_of(target))]
    pack = contents.packs[target]
    files: dict[str, Path | bytes] = {f"kiln/{IMAGES}/{pack.name}": pack}
    material = _material(contents, name, files)
    metadata = _metadata(contents, name, summary, requires, (), material, described)
    return _wheel(contents, name, "py3-none-any", metadata, files, material)


def images_package(target: str) -> str:
    """ "kiln-images-sm-90" """
    return f"kiln-images-{_extra_of(target)}"


def write(wheels: Iterable[Wheel], output: Path, replace: bool) -> list[Path]:
    """Writes wheels into `output`: all, or none.

    Args:
        replace: other wheels of the same names may go.

    Raises:
        InTheWay: other wheels of the same names are there, and stay.
        EnvironmentProblem: it cannot be written.
    """
    with passing_folder(".kiln-wheels-", output) as folder:
        fresh = {output / path.name: path for path in (write_wheel(wheel, folder, output) for wheel in wheels)}
        if not replace:
            replacement.check_files(fresh)
        for path, new in fresh.items():
            os.replace(new, path)
    return list(fresh)


def _extra_of(target: str) -> str:
    return target.replace("_", "-")


def abi_of(headers: Headers) -> tuple[int, int]:
    """The first Python that a wheel made with these headers is for: (3, 10), (3, 11) or (3, 12)."""
    return min(headers.version, STABLE)


ABIS = tuple((OLDEST[0], minor) for minor in range(OLDEST[1], STABLE[1] + 1))


def _taken(release: Release, packs: set[str], folder: Path) -> Iterable[tuple[str, Path]]:
    """Files of a release that are wanted, written into `folder`."""
    stated = {row["path"]: row for row in release.manifest["files"]}
    for entry in release.entries():
        is_library = re.fullmatch(r"lib/libkiln\w*\.so(\.0)?", entry.path)
        is_text = re.fullmatch(rf"{_SHARE}(LICENSE|NOTICES\.txt|kiln\.cdx\.json|licences/[\w.-]+)", entry.path)
        is_wanted = is_library or is_text or entry.path in packs or re.fullmatch(r"include/kiln/[\w.]+", entry.path)
        if entry.kind != "file" or not is_wanted:
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


def _material(contents: Contents, name: str, files: Iterable[str]) -> Material:
    return Material.of(name, contents.version, [*files], contents.bill, contents.texts)


def _metadata(
    contents: Contents, name: str, summary: str, requires: Sequence[str], extras: Sequence[str], material: Material,
    described: str,
) -> str:  # fmt: skip
    version, urls = contents.version, contents.urls
    return wheel_metadata.metadata(name, version, summary, requires, extras, material, urls, described)


def _wheel(
    contents: Contents, name: str, tag: str, metadata: str, files: Mapping[str, Path | bytes], material: Material,
    entry_points: Mapping[str, Mapping[str, str]] = {},
) -> Wheel:  # fmt: skip
    generator, version = f"kiln {contents.version}", python_version(contents.version)
    return Wheel(name, version, tag, generator, metadata, files, material.texts, entry_points, material.bills)


def zig() -> str:
    """The version of the zig that is installed.

    Raises:
        ToolchainError: none is.
    """
    try:
        return importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError as error:
        raise ToolchainError(
            "this Python lacks the package ziglang, which compiles the extension; a build leaves a Python "
            "with all packages in <workspace>/venv/bin/python"
        ) from error
