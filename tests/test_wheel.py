"""What goes into wheels, and what keeps `kiln wheel` from making them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml
from packaging.licenses import canonicalize_license_expression

from kiln_build import cli
from kiln_build.artifacts import reader
from kiln_build.base.wheel_file import Wheel, write_wheel
from kiln_build.cli import wheel as verb
from kiln_build.native import extension
from kiln_build.native.library import Compiler
from kiln_build.native.pythons import Headers
from kiln_build.release import wheel
from kiln_build.release.replacement import InTheWay
from kiln_build.release.wheel_metadata import Material
from kiln_recipe.errors import ArtifactError
from small_release import ROOT, small_release

FILES = wheel.package_files(ROOT)
STANDARD = sys.stdlib_module_names | {"__future__"}
THIRD = {"msgspec", "yaml", "numpy", "torch", "triton", "transformers"}  # of the extras
READ = {"elftools", "tqdm"}  # where images are looked into, and for a bar


@pytest.mark.parametrize(
    ("version", "spelled"),
    [
        ("0.1.0b", "0.1.0b0"),
        ("1.2", "1.2"),
        ("1.2.0rc1", "1.2.0rc1"),
        ("1.2.0dev20261125", "1.2.0.dev20261125"),
        ("0.1.0b+full.s0a.with.rms_norm", "0.1.0b0+full.s0a.with.rms.norm"),
    ],
)
def test_versions(version, spelled):
    assert wheel.python_version(version) == spelled


def test_versions_that_no_package_has():
    with pytest.raises(ArtifactError, match="the release's version 1.2.0foo cannot be the version of a Python package"):
        wheel.python_version("1.2.0foo")


def test_a_module_imports_what_its_wheel_asks_for():
    recipe = {p.relative_to(ROOT).as_posix(): p for p in (ROOT / "v3python/kiln_recipe").rglob("*.py")}
    allowed = STANDARD | THIRD | {"kiln_recipe"}
    for name, path in (recipe | FILES).items():
        if not name.endswith(".py") or name.startswith("flash/"):
            continue
        tree = ast.parse(path.read_bytes())
        for unread in tree.body:  # for the checker of types alone
            if isinstance(unread, ast.If) and ast.unparse(unread.test) == "TYPE_CHECKING":
                unread.body = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                roots = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                roots = {node.module.partition(".")[0]}
            else:
                continue
            assert roots <= allowed | (READ if name in recipe else {"kiln", "kiln_bench"}), (name, roots)


def test_what_measures_asks_for_no_more():
    """Besides the standard library: PyTorch, NumPy, what is measured, and where used matplotlib and PyYAML."""
    used = {"torch", "numpy", "matplotlib", "yaml", "kiln_recipe", "kiln_bench"}
    for path in (ROOT / "v3python/kiln_bench").rglob("*.py"):
        more = {"kiln", "flash_attn"} if path.name == "host_time.py" else set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= STANDARD | used | more, path
    found = wheel.bench_files(ROOT, {f"kiln/{name}": name.encode() for name in ("kiln.h", "flash.h")})
    assert found["kiln_bench/include/flash.h"] == b"flash.h" and "kiln_bench/attention/row.py" in found


def test_what_kiln_jit_reads():
    for name in ("flash/recipe.yaml", "flash/attn_fwd.py", "flash/tuning/flash/sm_90.yaml", "py.typed", "_core.pyi"):
        assert name in FILES
    assert not any("__pycache__" in name for name in FILES)


def test_the_package_knows_what_its_release_was_made_for():
    for profile, selection in (("core", ""), ("full", "dtype=bf16;head_dim=128,64")):
        module: dict[str, str] = {}
        exec(wheel.generated_files(ROOT, profile, selection)["_release.py"], module)
        assert (module["PROFILE"], module["SELECTION"]) == (profile, selection)


def test_metadata():
    texts = {"LICENSE": "L\n", "NOTICES.txt": "N\n"}
    contents = wheel.Contents("0.1.0b", ("sm_90", "gfx942"), {}, {}, {"sm_90": Path("nvidia-sm_90.pack")}, texts)
    images = wheel.images_wheel(contents, "sm_90")
    assert images.file_name == "kiln_images_sm_90-0.1.0b0-py3-none-any.whl"
    assert [*images.files] == ["kiln/lib/kiln.images/nvidia-sm_90.pack"] and images.licences == texts
    fields = images.metadata.partition("\n\n")[0].splitlines()
    for field in ("Name: kiln-images-sm-90", "Version: 0.1.0b0", "Requires-Dist: kiln-runtime[sm-90]===0.1.0b0",
                  "Requires-Python: >=3.10", "License-File: NOTICES.txt", "License-Expression: MIT"):  # fmt: skip
        assert field in fields
    assert images.metadata.partition("\n\n")[2].strip(), "a description"


def test_the_licence_is_an_spdx_expression():
    """Of Kiln and of all parts; what has no name there is a reference."""
    rows = yaml.safe_load((ROOT / "notices/notices.yaml").read_text())
    text = "".join(f"\nLicence: {row['licence']}, licences/{row['file']}\n" for row in rows)
    contents = wheel.Contents("0.1.0b", ("sm_90",), {}, {}, {}, {"NOTICES.txt": text})
    metadata = wheel.runtime_metadata(contents, Material.whole(contents.texts), "")
    (stated,) = re.findall(r"^License-Expression: (.*)$", metadata, re.MULTILINE)
    assert canonicalize_license_expression(stated) == stated
    assert stated.startswith(
        "MIT AND BSD-3-Clause AND (BSD-2-Clause OR CC0-1.0) AND Apache-2.0 WITH LLVM-exception"
        " AND LicenseRef-LGPL-2.1-or-later-"
    )
    assert "NCSA" in stated and "LicenseRef-NVIDIA-CUDA-Toolkit-EULA" in stated and "\nLicense: " not in metadata


@pytest.fixture(scope="module")
def builds(tmp_path_factory) -> Path:
    """A folder for each of four builds of a version: a runtime's wheel with nothing but its metadata, and the images of
    its targets."""
    root = tmp_path_factory.mktemp("builds")
    (root / "nvidia-sm_90.pack").write_bytes(b"")
    (root / "amd-gfx942.pack").write_bytes(b"")
    packs = {"sm_90": root / "nvidia-sm_90.pack", "gfx942": root / "amd-gfx942.pack"}
    for label, targets in (
        ("core", ("sm_90",)),
        ("both", ("sm_90", "gfx942")),
        ("full", ("sm_90",)),
        ("s0a", ("sm_90",)),
    ):
        name = "0.1.0b" if label in ("core", "both") else f"0.1.0b+{label}"
        contents = wheel.Contents(name, targets, {}, {}, {target: packs[target] for target in targets}, {})
        version = wheel.python_version(name)
        metadata = wheel.runtime_metadata(contents, Material("MIT", {}), "")
        (root / label).mkdir()
        write_wheel(Wheel(wheel.RUNTIME, version, "py3-none-any", "test", metadata, {}), root / label)
        write_wheel(wheel.recipe_wheel(contents, ROOT), root / label)
        write_wheel(wheel.cli_wheel(contents, ROOT), root / label)
        for target in targets:
            write_wheel(wheel.images_wheel(contents, target), root / label)
    return root


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pip")
    venv.create(folder, with_pip=True)
    return folder / "bin/python"


def pip(python: Path, *words: object) -> tuple[int, str]:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--isolated", *words]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def installed(python: Path) -> set[str]:
    return {line for line in pip(python, "freeze")[1].splitlines() if line.startswith("kiln-")}


def test_pip_holds_the_wheels_of_a_build_together(builds, bare):
    def install(folders: tuple[str, ...], *words: str) -> tuple[int, str]:
        where = [part for folder in folders for part in ("--find-links", builds / folder)]
        return pip(bare, "install", "--no-index", *where, *words)

    # Images of one build take no runtime of another, whichever of the two has the label.
    for ours, theirs in (("core", "full"), ("full", "core"), ("full", "s0a")):
        (images,) = (builds / ours).glob("kiln_images_sm_90-*.whl")
        code, said = install((theirs,), str(images))
        assert (code, "kiln-runtime[sm-90]===" in said) == (1, True), (ours, theirs, said)
    # The extra takes the images along; another build's take its place whole.
    code, said = install(("core", "full"), "kiln-runtime[sm-90]==0.1.0b0+full")
    assert code == 0, said
    found = {line.split("==")[0].split(" @")[0]: line for line in installed(bare)}
    assert set(found) == {"kiln-cli", "kiln-recipe", "kiln-runtime", "kiln-images-sm-90"} and all(
        "0.1.0b0+full" in x for x in found.values()
    )
    assert pip(bare, "check")[0] == 0
    code, said = install(("core", "full"), "kiln-runtime===0.1.0b0")
    assert code == 0, said
    code, said = pip(bare, "check")
    assert code == 1 and "kiln-images-sm-90 0.1.0b0+full has requirement kiln-runtime" in said, said
    # The core profile's has no label, and its extra still takes its own images.
    code, said = install(("core", "full"), "--force-reinstall", "kiln-runtime[sm-90]===0.1.0b0")
    assert code == 0 and pip(bare, "check")[0] == 0 and not any("+full" in line for line in installed(bare)), said
    # Images for a target that the runtime was not built for.
    code, said = install(("core",), str(next((builds / "both").glob("kiln_images_gfx942-*.whl"))))
    assert "kiln-runtime 0.1.0b0 does not provide the extra 'gfx942'" in said


def test_other_wheels_of_the_same_names_stay(tmp_path):
    def made(text: str) -> list[Wheel]:
        return [Wheel(name, "1", "py3-none-any", "test", text, {}) for name in ("kiln-runtime", "kiln-images-sm-90")]

    first = wheel.write(made("one"), tmp_path, replace=False)
    before = {path: path.read_bytes() for path in first}
    assert wheel.write(made("one"), tmp_path, replace=False) == first
    first[1].unlink()
    with pytest.raises(InTheWay, match=rf"has {first[0].name} of another release; --replace replaces what is there"):
        wheel.write(made("two"), tmp_path, replace=False)
    assert [*tmp_path.iterdir()] == first[:1] and first[0].read_bytes() == before[first[0]], "all, or none"
    wheel.write(made("two"), tmp_path, replace=True)
    assert all(path.read_bytes() != before[path] for path in first)


def test_abis():
    assert wheel.ABIS == ((3, 10), (3, 11), (3, 12))
    assert [wheel.abi_of(Headers((3, minor), "", ())) for minor in (10, 11, 12, 14)] == [*wheel.ABIS, (3, 12)]


@pytest.mark.parametrize(("minor", "called"), [(11, "3.11"), (13, "3.12 and later")])
def test_the_extensions_headers(minor, called, monkeypatch, tmp_path):
    """Those of Debian's other folder lie where the compiler looks, and count; what takes long is said, once."""
    libraries = {name: tmp_path / name for name in extension.LIBRARIES}
    include, beside = tmp_path / "python3", tmp_path / "x86_64-linux-gnu/python3"
    for path in (*libraries.values(), include / "Python.h", beside / "pyconfig.h", tmp_path / "x86_64-linux-gnu/a.h"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    headers = Headers((3, minor), f"3.{minor}.0", (include,), (beside,))
    compiler = Compiler(("cc",), ("c++",), (), "none")
    heard, commands, seen = [], [], []

    def run(compiler: Compiler, command: list[str], work: Path) -> None:
        commands.append(command)
        seen.append(sorted(p.relative_to(work / "multiarch").as_posix() for p in (work / "multiarch").rglob("*.h")))
        (work / command[-1]).write_text("")

    monkeypatch.setattr("kiln_build.native.library.run", run)

    def build() -> Path:
        return extension.build_extension(
            ROOT / "bindings/core", tmp_path, {}, libraries, headers, compiler, tmp_path / "made", 1, heard.append
        )  # fmt: skip

    first = build()
    assert seen[0] == ["x86_64-linux-gnu/python3/pyconfig.h"]
    words = commands[0]
    assert ["-isystem", str(include), "-isystem", "multiarch"] == words[words.index(str(include)) - 1 :][:4]
    assert build() == first and heard == [f"compiling the extension for Python {called}"]
    (beside / "pyconfig.h").write_text("#define SIZEOF_LONG 8\n")
    assert build() != first and len(heard) == 2


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def toolless(monkeypatch):
    """No Python but this one is found, and its headers are whatever they are: nothing is compiled."""
    monkeypatch.setattr("kiln_build.native.pythons.python_commands", lambda environment: (sys.executable,))
    monkeypatch.setattr("kiln_build.native.pythons.headers_of", lambda command: Headers((3, 11), "3.11.7", ()))
    monkeypatch.setattr("kiln_build.front.source.describe", lambda root: cli_source())


def cli_source():
    from kiln_build.front.source import Origin

    return Origin("1" * 40, False)


def said(capsys, *words: object) -> tuple[int, str]:
    code = cli.main(["wheel", *map(str, words)])
    return code, capsys.readouterr().err


def test_a_release_without_the_attention_family(toolless, tmp_path, capsys):
    code, text = said(capsys, small_release().tarball, tmp_path / "w")
    assert code == 6 and "has no lib/libkiln_flash.so, which the Python package needs" in text
    assert not (tmp_path / "w").exists()


def test_a_release_without_images_of_attention(toolless, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(wheel, "unpack", lambda *_: wheel.Contents("0.1.0b", (), {}, {}, {}, {}))
    artifact = reader.open_artifact(small_release().tarball)
    artifact.manifest["selection"] = "family=toy"
    monkeypatch.setattr(reader, "open_artifact", lambda *_: artifact)
    code, text = said(capsys, small_release().tarball, tmp_path / "w")
    assert code == 2 and "has no images of attention, which Kiln's Python package is for: it was built for" in text
    assert "for family=toy alone; build one with family=flash in KILN_SELECT, or without KILN_SELECT" in text
    assert not (tmp_path / "w").exists()


def test_a_target_that_is_not_there(toolless, tmp_path, capsys):
    code, text = said(capsys, small_release().tarball, tmp_path, "--target", "sm_80")
    assert code == 2 and "has no images for sm_80; it has gfx942, sm_90" in text


def test_targets_are_those_of_the_builds(toolless, tmp_path, capsys):
    code, text = said(capsys, small_release().tarball, tmp_path, "--target", "A100")
    assert code == 2 and "has no images for sm_80; it has gfx942, sm_90" in text
    code, text = said(capsys, small_release().tarball, tmp_path, "--target", "H100", "--target", "mi300x")
    assert code == 6 and "has no lib/libkiln_flash.so" in text
    code, text = said(capsys, small_release().tarball, tmp_path, "--target", "H1000")
    assert code == 2 and "unknown target 'H1000'; the nearest is H100" in text


def test_a_tarball_that_is_not_what_stands_beside_it(toolless, tmp_path, capsys):
    path = tmp_path / "a.tar.gz"
    shutil.copy(small_release().tarball, path)
    (tmp_path / "a.tar.gz.sha256").write_text(f"{'0' * 64}  a.tar.gz\n")
    code, text = said(capsys, path, tmp_path / "w")
    assert code == 6 and "a.tar.gz does not have the digest of a.tar.gz.sha256" in text
    assert not (tmp_path / "w").exists()


def test_a_damaged_release(toolless, tmp_path, capsys):
    stage = tmp_path / "kiln"
    shutil.copytree(small_release().stage, stage, symlinks=True)
    with (stage / "lib/kiln.images/nvidia-sm_90.pack").open("ab") as file:
        file.write(b"x")
    code, text = said(capsys, stage, tmp_path / "w")
    assert code == 6 and "nvidia-sm_90.pack does not have the digest and size that the manifest states" in text


def test_a_release_is_checked_before_anything_else(monkeypatch, tmp_path, capsys):
    """Before a Python is looked for, or a compiler."""
    stage = tmp_path / "kiln"
    shutil.copytree(small_release().stage, stage, symlinks=True)
    (stage / "share/kiln/LICENSE").write_text("other")

    def refuse(*_: object) -> None:
        raise AssertionError("a damaged release went on")

    for name in (
        "kiln_build.native.pythons.headers_of",
        "kiln_build.native.pythons.python_commands",
        "kiln_build.release.wheel.unpack",
        "kiln_build.release.wheel.zig",
    ):
        monkeypatch.setattr(name, refuse)
    code, text = said(capsys, stage, tmp_path / "w")
    assert code == 6 and "share/kiln/LICENSE does not have the digest and size" in text
    assert not (tmp_path / "w").exists()


def test_wheels_are_no_files_of_the_release_that_they_are_made_of(toolless, tmp_path, capsys):
    subprocess.run(["tar", "-xzf", str(small_release().tarball), "-C", str(tmp_path)], check=True)
    before = sorted(tmp_path.rglob("*"))
    for output in (tmp_path / "kiln", tmp_path / "kiln/wheels"):
        code, text = said(capsys, tmp_path, output)
        assert code == 2 and f"output {output} lies inside of {tmp_path}/kiln; give a name outside of it" in text
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_release(tmp_path, capsys):
    pack = small_release().packs["sm_90"]
    assert said(capsys, pack, tmp_path)[0] == 6
    code, text = said(capsys, "/nowhere", tmp_path)
    assert code == 7 and text.count("\n") == 1


def test_pythons_that_are_missing_are_said(toolless, monkeypatch, tmp_path, capsys):
    chosen, left_out = verb._choose(None)
    assert [headers.version for headers in chosen] == [(3, 11)]
    assert left_out == [
        f"no wheel for Python {name}: no Python {name} with headers was found; --python {hint} names one"
        for name, hint in (("3.10", "python3.10"), ("3.12 or later", "python3.12"))
    ]


def test_one_without_headers_is_the_reason(monkeypatch):
    from kiln_recipe.errors import EnvironmentProblem

    def headers_of(command: str) -> Headers:
        if command == "python3.12":
            raise EnvironmentProblem("python3.12 (Python 3.12.1) has no headers; install them")
        return Headers((3, 13), "3.13.0", ()) if command == "b" else Headers((3, 10), "3.10.1", ())

    monkeypatch.setattr("kiln_build.native.pythons.headers_of", headers_of)
    monkeypatch.setattr("kiln_build.native.pythons.python_commands", lambda environment: ("a", "python3.12"))
    chosen, left_out = verb._choose(None)
    assert [headers.version for headers in chosen] == [(3, 10)]
    why = "python3.12 (Python 3.12.1) has no headers; install them"
    assert left_out[1] == f"no wheel for Python 3.12 or later: {why}"
    with pytest.raises(EnvironmentProblem, match="has no headers"):
        verb._choose(["python3.12"])
    assert [headers.version for headers in verb._choose(["b", "a"])[0]] == [(3, 10), (3, 13)]


def test_none_at_all(monkeypatch, tmp_path, capsys):
    from kiln_recipe.errors import EnvironmentProblem

    def headers_of(command: str) -> Headers:
        raise EnvironmentProblem("no headers")

    monkeypatch.setattr("kiln_build.native.pythons.headers_of", headers_of)
    monkeypatch.setattr(
        "kiln_build.release.wheel.unpack", lambda *_: None
    )  # which comes first, and lacks the attention family
    code, text = said(capsys, small_release().tarball, tmp_path)
    assert code == 7 and "\nkiln: no wheel can be built: no wheel for Python 3.10: " in text


@pytest.mark.parametrize("package", ["ziglang", "nanobind"])
def test_a_python_without_the_toolchain(package, monkeypatch):
    import importlib.metadata
    import importlib.util

    from kiln_build.native import extension
    from kiln_recipe.errors import ToolchainError

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ToolchainError,
        match=f"lacks the package {package}, which .* the extension.*; a build leaves a Python",
    ):
        wheel.zig() if package == "ziglang" else extension.nanobind_folder()


def test_another_tree_is_said(toolless, tmp_path, capsys, monkeypatch):
    from kiln_build.front.source import Origin

    monkeypatch.setattr("kiln_build.front.source.describe", lambda root: Origin("2" * 40, False))
    monkeypatch.setattr(wheel, "unpack", lambda *_: wheel.Contents("0.1.0b", (), {}, {}, {}, {}))

    def refuse(*_arguments: object) -> None:
        raise ArtifactError("as far as this")

    monkeypatch.setattr(wheel, "runtime_wheel", refuse)
    text = said(capsys, small_release().tarball, tmp_path)[1]
    assert (
        "was built from commit 111111111111, but the wheels' Python modules are from this tree's commit, 222222222222"
        in text
    )


def test_families_without_a_library_are_named():
    """Their images are in the wheels' packs, and nothing in the wheels can launch them."""
    release = reader.open_artifact(small_release().tarball)
    assert set(reader.families_of(reader.variants_of(release))) - {"flash"}
    assert verb._without_library(release) == [
        f"no library for the family {family}: of a release's families wheels have flash alone; Python calls others by "
        f"kiln.jit.Recipe, C by libkiln_{family}.so of the tarball"
        for family in reader.families_of(reader.variants_of(release))
        if family != "flash"
    ]
