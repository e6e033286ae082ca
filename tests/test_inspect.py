"""`kiln inspect` and `kiln list`, as users run them, where little is installed; and no damage passes --verify."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import gzip
import hashlib
import importlib
import importlib.util
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import types
import xml.etree.ElementTree
import zlib
from pathlib import Path

import deflate
import pytest
import zstandard

from kiln_build.artifacts import manifest, pack, presence, verify
from kiln_build.artifacts import reader as inspect
from kiln_build.cli import main
from kiln_build.difference.side import open_side
from kiln_build.release import portable, release
from kiln_build.report import gather, maps, page
from kiln_recipe.errors import ArtifactError, KilnError, UsageError
from old_pythons import find
from small_release import ROOT, VERSION, small_release, write_pack

# All that `kiln inspect` of a source tree needs besides the standard library, by the names that are imported.
PACKAGES = ("elftools", "zstandard")


@functools.cache
def packages(*names: str) -> Path:
    """A folder with these packages and no other."""
    folder = Path(tempfile.mkdtemp(prefix="kiln-packages-"))
    atexit.register(shutil.rmtree, folder)
    for name in names:
        (folder / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    return folder


def python(*words: object, having: tuple[str, ...] = PACKAGES, path: str = "") -> subprocess.CompletedProcess:
    """Runs a Python that has the standard library, these packages and nothing else."""
    command = [sys.executable, "-S", "-B", *map(str, words)]  # -S: no site-packages
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(filter(None, (path, str(packages(*having))))),
    }
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture
def folder(tmp_path) -> Path:
    """An unpacked release, to be damaged."""
    return Path(shutil.copytree(small_release().stage, tmp_path / "kiln", symlinks=True))


def run(*words: object, having: tuple[str, ...] = PACKAGES) -> subprocess.CompletedProcess:
    """`PYTHONPATH=v3python python3 -m kiln_build ...`, as docs/reference.md has it."""
    return python("-m", "kiln_build", *words, having=having, path=str(ROOT / "v3python"))


def problems(path: Path) -> list[str]:
    return verify.verify(inspect.open_artifact(path)).problems


# ---- what is whole ---------------------------------------------------------------------------------------------------


def test_tarball_on_another_machine():
    done = run("inspect", small_release().tarball, "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert "kiln 0.1.0b for manylinux_2_28_x86_64, profile core, with PTX" in done.stdout
    assert "whole: 18 files, 3 groups, 12 images checked" in done.stdout
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith(("gfx942", "sm_90"))}
    assert rows["sm_90"][:2] == ["sm_90", "compiled,"], "the last line that begins so says what was run"
    assert "toy.scale/scale: not on this GPU (2 of 2 variants missing)" in done.stdout


def test_unpacked(tmp_path):
    subprocess.run(["tar", "-xzf", small_release().tarball], cwd=tmp_path, check=True)
    for path in (tmp_path, tmp_path / "kiln"):
        done = run("inspect", path, "--verify")
        assert (done.returncode, done.stderr) == (0, "")
        assert "18 files, 3 groups, 12 images checked" in done.stdout


def test_a_release_looks_at_itself(tmp_path):
    """With nothing but what came in the tarball."""
    subprocess.run(["tar", "-xzf", small_release().tarball], cwd=tmp_path, check=True)
    script = tmp_path / "kiln/share/kiln/kiln-inspect.pyz"
    for words, expected in (
        ((), "kiln 0.1.0b for manylinux_2_28_x86_64"),
        ((tmp_path, "--verify"), "18 files, 3 groups, 12 images checked"),
        (("inspect", small_release().tarball, "--verify"), "18 files, 3 groups, 12 images checked"),
        (("list", tmp_path / "kiln/lib/kiln.images/nvidia-sm_90.pack"), "toy.scale/scale"),
        ((small_release().images / "gfx942-256-bf16",), "code object version      5"),
        ((tmp_path, "--html", tmp_path / "page.html"), "kiln 0.1.0b"),
        (("--version",), f"kiln {VERSION}\n"),
    ):
        done = python(script, *words)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert expected in done.stdout
    assert json.loads(python(script, "--schema").stdout) == manifest.schema()
    done = python(script, "list")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert script.read_bytes() == portable.inspector(VERSION)


def test_a_summary_names_families_and_every_ptx_version(folder):
    from kiln_build.cli.inspect import describe

    release = inspect.open_artifact(folder)
    (hopper,) = (target for target in release.manifest["targets"] if target["name"] == "sm_90")
    first, second = [row for row in release.manifest["images"] if row["target"] == "sm_90"][:2]
    first["ptx_version"], second["ptx_version"] = "8.10", "8.9"
    text = describe(release)
    assert "\nfamilies    toy\n" in text
    (line,) = (line for line in text.splitlines() if re.match(r"sm_90 .* [KM]iB ", line))
    assert f" {hopper['ptx_version']}, 8.9, 8.10 " in line
    assert "\nleft out: combinations that the profile, the selection or the recipe leaves out;" in text
    for target in release.manifest["targets"]:
        target["left_out"] = 0
    assert "\nleft out:" not in describe(release)


def test_the_inspector_says_which_python_it_needs(tmp_path):
    subprocess.run(["tar", "-xzf", small_release().tarball], cwd=tmp_path, check=True)
    script = tmp_path / "kiln/share/kiln/kiln-inspect.pyz"
    older = f"import runpy, sys; sys.version_info = (3, 8, 18); runpy.run_path({str(script)!r}, run_name='__main__')"
    done = python("-c", older)
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr == "kiln: kiln-inspect.pyz needs Python 3.9 or later; this is 3.8\n"


def test_the_inspector_needs_no_locks(tmp_path):
    """Locks are a POSIX system's; who looks into a release may have another."""
    (tmp_path / "fcntl.py").write_text("raise ImportError('no fcntl here')\n")
    subprocess.run(["tar", "-xzf", small_release().tarball], cwd=tmp_path, check=True)
    script = tmp_path / "kiln/share/kiln/kiln-inspect.pyz"
    done = python(script, tmp_path / "kiln", "--verify", path=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_pack():
    done = run("inspect", small_release().packs["sm_90"], "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert "toy.scale/scale: 3 functionals x 2 configurations x 2 specializations" in done.stdout
    assert "2 groups, 8 images checked" in done.stdout


@pytest.mark.parametrize("name", ["gfx942", "sm_90"])
def test_image_needs_no_zstandard(name):
    done = run("inspect", small_release().images / f"{name}-256-fp16", having=("elftools",))
    assert done.returncode == 0, done.stderr
    assert f"kind                     {'cubin' if name == 'sm_90' else 'hsaco'}" in done.stdout
    assert "kernel                   scale" in done.stdout
    sizes = [line.split()[1] for line in done.stdout.partition("OFFSET")[2].splitlines()[1:]]
    assert sizes == ["8", "8", "4", "8", "8", "8"]


def test_a_tarball_is_listed_with_the_standard_library_alone():
    for verb in ("inspect", "list"):
        done = run(verb, small_release().tarball, having=())
        assert (done.returncode, done.stderr) == (0, "")
    done = run("inspect", small_release().tarball, "--verify", having=())
    needs = "to read images, Python needs pyelftools; python3 -m pip install pyelftools\n"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(
        f"whole as far as it was read: 18 files, 3 groups checked\nnote: the images in packs were not read: {needs}"
    )
    done = run("inspect", small_release().images / "sm_90-256-fp16", "--verify", having=())
    assert (done.returncode, done.stderr) == (7, f"kiln: {needs}")


NOT_READ = (
    "note: the images in packs were not read: to read images, Python needs zstandard, or version 3.14 or later; "
    "python3 -m pip install zstandard\n"
)

OF_THE_PROGRAM = (
    "note: this program is share/kiln/kiln-inspect.pyz of a release, and says nothing about that release, whose maker "
    "may have written what it prints; use the kiln-inspect-<release>.pyz beside the tarball, checked by its own "
    "signature\n"
)


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_the_inspector_in_every_python(folder, version):
    """Of 3.9 the libraries that read images have no use; everything else is the same."""
    script = folder / "share/kiln/kiln-inspect.pyz"

    def inspected(*words: object) -> tuple[int, str]:
        done = subprocess.run([find(version), "-S", "-B", script, *words], capture_output=True, text=True)
        assert done.returncode in (0, 7) and "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    note = NOT_READ
    if version == "3.9":
        note = "note: the images in packs were not read: reading images needs Python 3.10 or later; this is 3.9\n"
    note += "note: an unpacked release has no digest of its manifest; only the tarball's .sha256 covers the manifest\n"
    note += OF_THE_PROGRAM
    code, said = inspected(folder, "--verify")
    assert (code, said[-len(note) :]) == (0, note) and "18 files, 3 groups checked" in said
    assert inspected("list", folder, "--target", "H100")[0] == 0
    assert inspected(small_release().images / "sm_90-256-fp16")[0] == (7 if version == "3.9" else 0)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="has zstd in its standard library")
def test_without_zstandard_all_but_images_is_checked(tmp_path, folder):
    """By nothing but Python and what came in the tarball; a report that is not complete says so."""
    script = folder / "share/kiln/kiln-inspect.pyz"
    for artifact, said in (
        (small_release().tarball, "18 files, 3 groups"),
        (small_release().packs["sm_90"], "2 groups"),
    ):
        done = python(script, artifact, "--verify", having=())
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith(f"\nwhole as far as it was read: {said} checked\n{NOT_READ}{OF_THE_PROGRAM}")
        found = json.loads(python(script, artifact, "--verify", "--json", having=()).stdout)["verified"]
        assert (found["complete"], found["images"], len(found["notes"])) == (False, 0, 2)
    victim = folder / "lib/kiln.images/nvidia-sm_90.pack"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    shutil.copy(victim, tmp_path / "whole.pack")
    (tmp_path / "damaged.pack").write_bytes(data)
    done = python(script, tmp_path / "damaged.pack", "--verify", having=())
    assert done.returncode == 6 and "does not have its digest" in done.stderr and "whole" not in done.stdout
    victim.write_bytes(data)
    done = python(script, folder, "--verify", having=())
    assert done.returncode == 6 and "nvidia-sm_90.pack does not have the digest" in done.stderr


def test_the_inspector_knows_targets_and_takes_nothing_from_around_it(folder):
    """Packages that happen to be installed make no difference."""
    script = folder / "share/kiln/kiln-inspect.pyz"
    for having in ((), ("msgspec", "yaml"), ("msgspec", "yaml", "elftools", "zstandard")):
        done = python(script, "list", folder, "--target", "H100", "--json", having=having)
        assert (done.returncode, done.stderr) == (0, "")
        assert {row["target"] for row in json.loads(done.stdout)} == {"sm_90"}
        done = python(script, "list", folder, "--target", "sm_9", having=having)
        assert (done.returncode, "unknown target 'sm_9'; the nearest is sm_90" in done.stderr) == (2, True)
        done = python(script, small_release().images / "sm_90-256-fp16", having=having)
        assert (done.returncode, done.stderr) == (0, "")


def test_zstd_of_the_standard_library(tmp_path, monkeypatch):
    """Python 3.14's module in the place of zstandard: the same answers, of frames that are whole and of others."""
    compressor = zstandard.ZstdCompressor()

    class Decompressor:
        """As compression.zstd's: `eof` is known once the end has been read."""

        def __init__(self) -> None:
            self._raw, self.eof = zstandard.ZstdDecompressor().decompressobj(), False

        def decompress(self, data: bytes, max_length: int) -> bytes:
            raw = self._raw.decompress(data)
            self.eof = self._raw.eof and len(raw) < max_length
            return raw[:max_length]

    def frame_info(data: bytes) -> types.SimpleNamespace:
        size = zstandard.frame_content_size(data)
        return types.SimpleNamespace(decompressed_size=None if size < 0 else size)

    module = types.ModuleType("compression.zstd")
    module.ZstdError, module.ZstdDecompressor, module.get_frame_info = zstandard.ZstdError, Decompressor, frame_info
    package = types.ModuleType("compression")
    package.zstd = module
    ours = importlib.import_module("kiln_build.base.zstd")
    whole = compressor.compress(b"words " * 50)
    frames = [
        (whole, 300),
        (whole, 299),
        (whole[:-3], 300),
        (b"", 9),
        (whole + b"x", 300),
        (compressor.compress(b""), 9),
    ]

    def outcomes() -> list[object]:
        found = []
        for frame, largest in frames:
            try:
                found.append(ours.decompress(frame, largest))
            except (ours.Error, ValueError) as error:
                found.append(str(error) if "where" in str(error) else "malformed")
        return found

    by_package = outcomes()
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "zstandard", None)
        context.setitem(sys.modules, "compression", package)
        context.setitem(sys.modules, "compression.zstd", module)
        importlib.reload(ours)
        assert not ours._HAS_PACKAGE and outcomes() == by_package
        assert verify.verify(inspect.open_artifact(small_release().tarball)) == verify.Report(True, 18, 3, 12)
    importlib.reload(ours)
    assert by_package[0] == b"words " * 50 and by_package[1] == "a frame of 300 bytes where 299 fit"


def test_a_folder_says_what_was_not_checked(folder):
    report = verify.verify(inspect.open_artifact(folder))
    assert report.problems == [] and "an unpacked release has no digest of its manifest" in report.notes[0]
    library = folder / "lib/libkiln.so.0"
    library.chmod(0o6755)
    (problem,) = verify.verify(inspect.open_artifact(folder)).problems
    assert problem == "lib/libkiln.so.0 has the mode 6755; files of a release never run as another user"


def test_json():
    document = json.loads(run("inspect", small_release().tarball, "--verify", "--json").stdout)
    assert document["artifact"] == "release" and document["manifest"]["kiln"] == VERSION
    assert document["verified"] == {
        "complete": True, "files": 18, "groups": 3, "images": 12, "problems": [], "notes": []
    }  # fmt: skip
    document = json.loads(run("inspect", small_release().packs["gfx942"], "--json").stdout)
    assert document["pack"]["target"] == "gfx942" and len(document["pack"]["images"]) == 4
    document = json.loads(run("inspect", small_release().images / "sm_90-256-bf16", "--json").stdout)
    assert (document["image"]["sm"], document["image"]["kernel"]) == (90, "scale")


def test_schema(capsys):
    assert main(["inspect", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == manifest.schema()


# ---- list ------------------------------------------------------------------------------------------------------------


def listed(capsys, *words: str) -> list[dict]:
    assert main(["list", str(small_release().tarball), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_filters(capsys):
    rows = listed(capsys)
    assert len(rows) == 16
    assert len(listed(capsys, "--target", "sm_90")) == 8
    assert len(listed(capsys, "--target", "sm_90,gfx942")) == 16
    assert len(listed(capsys, "--select", "dtype=bf16;BLOCK=256,1024")) == 8
    found = listed(capsys, "--select", "dtype=fp16;BLOCK=256;specialization=generic", "--target", "gfx942")
    assert [(r["functional"], r["configuration"], r["specialization"]) for r in found] == [
        ("dtype=fp16", "BLOCK=256 num_warps=4", "generic")
    ]
    assert found[0]["registers"] > 0 and found[0]["unavailable"] is None
    assert listed(capsys, "--select", "family=toy;operation=scale;kernel=scale") == rows


def test_list_of_a_pack_says_the_same(capsys):
    ours = [row for row in listed(capsys) if row["target"] == "sm_90"]
    assert main(["list", str(small_release().packs["sm_90"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ours
    assert all(row["ptx_bytes"] for row in ours if row["image"])


def test_list_shows_what_is_missing(capsys):
    assert main(["list", str(small_release().tarball), "--keys"]) == 0
    out = capsys.readouterr().out
    assert "without an image: 2: not on this GPU" in out
    assert hashlib.sha256(b"sm_90 fp16 256 aligned").hexdigest() in out


def test_what_is_left_out_is_a_rule(capsys):
    for artifact, targets in (
        (small_release().tarball, ("gfx942", "sm_90")),
        (small_release().packs["sm_90"], ("sm_90",)),
    ):
        rules = [
            {"target": target, "kernel": "toy.scale/scale", "reason": reason, "variants": 2,
             "configurations": [configuration], "where": {"dtype": ["fp32"]}}
            for target in targets
            for reason, configuration in (
                ("not in this build", "BLOCK=256 num_warps=4"), ("too large", "BLOCK=1024 num_warps=4")
            )
        ]  # fmt: skip
        assert main(["list", str(artifact), "--json", "--missing"]) == 0
        assert json.loads(capsys.readouterr().out)[8 * len(targets) :] == rules
        assert main(["list", str(artifact)]) == 0
        out = capsys.readouterr().out
        assert "fp32" not in out and "  0000000" not in out
        assert out.endswith(
            f"left out by the profile, the selection or the recipe: {4 * len(targets)} combinations; "
            "--missing shows by which rules\n"
        )
        assert main(["list", str(artifact), "--missing"]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.split("  ")[-2:] == ["dtype=fp32; BLOCK=1024 num_warps=4", "too large"]
    assert listed(capsys, "--missing", "--target", "sm_90", "--select", "BLOCK=1024")[4:] == rules[1:]
    assert len(listed(capsys, "--missing", "--select", "dtype=bf16")) == 8, "no rule is about it"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "sm_80"], "there are no variants for sm_80, only for gfx942, sm_90"),
        (["--target", "A100"], "there are no variants for sm_80, only for gfx942, sm_90"),
        (["--target", "sm_9"], "unknown target 'sm_9'; the nearest is sm_90"),
        (
            ["--select", "dtyp=bf16"],
            "no variant has a dtyp; variants have family, operation, kernel, dtype, BLOCK, num_warps, spec",
        ),
        (["--select", "dtype=fp32"], "no variant has dtype=fp32: not in this build; dtype is one of fp16, bf16"),
        (["--select", "dtype=bf16,fp8"], "no variant has dtype=fp8; dtype is one of fp16, bf16"),
        (["--select", "operation=scales"], "no variant has operation=scales; operation is one of scale"),
        (["--select", "dtype"], "--select: 'dtype' is not choice=value,value"),
    ],
)
def test_list_mistakes(capsys, words, message):
    assert main(["list", str(small_release().tarball), *words]) == 2
    assert message in capsys.readouterr().err


def test_list_takes_targets_as_a_build_does(capsys):
    def listed(*words: str) -> str:
        assert main(["list", str(small_release().tarball), *words]) == 0
        return capsys.readouterr().out

    assert listed("--target", "MI300X") == listed("--target", "gfx942") != listed("--target", "H100;gfx942")
    assert listed("--target", "9.0", "--target", "cdna3") == listed()


# ---- what is not Kiln's ----------------------------------------------------------------------------------------------


def test_nothing_of_kilns(tmp_path, capsys):
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.add(tmp_path / "text", "kiln/text")
    (tmp_path / "other.tar.gz").write_bytes(deflate.gzip_compress(plain.getvalue(), 6))
    os.mkfifo(tmp_path / "fifo")
    for name, message in (
        ("text", "is not a release, a pack or an image; give a release's tarball"),
        ("empty", "is not a release, a pack or an image"),
        ("other.tar.gz", "the header at byte 0 is not of a file, a folder or a link"),
        (".", "is not an unpacked release: it has no share/kiln/manifest.json; give a release's tarball"),
    ):
        assert main(["inspect", str(tmp_path / name)]) == 6
        err = capsys.readouterr().err
        assert message in err and str(tmp_path) in err and len(err.splitlines()) == 1
    for node in (tmp_path / "fifo", "/dev/null"):
        assert main(["inspect", str(node)]) == 7
        assert f"{node} is a pipe or a device, which Kiln does not read; give a" in capsys.readouterr().err
    for verb, takes_images in (("inspect", True), ("list", False)):
        assert main([verb, str(tmp_path / "nowhere")]) == 7
        err = capsys.readouterr().err
        assert "nowhere cannot be read (No such file or directory)" in err
        assert ("an image (cubin, hsaco)" in err) == takes_images
    assert main(["inspect"]) == 2
    assert main(["list", str(small_release().images / "sm_90-256-bf16")]) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is damaged: it is empty"),
        ("\n", "is damaged: it is empty"),
        ('{"a":', "is damaged: it is cut off, or is not a JSON object"),
        ("[" * 100000, "is damaged: it is cut off, or is not a JSON object"),
        ("[]", "is damaged: it is cut off, or is not a JSON object"),
        ("{}", "states no format; this Kiln reads formats 2, 3, 4 and 5"),
        ('{"format": 1}', "has format 1; this Kiln reads formats 2, 3, 4 and 5"),
        ('{"format": 99}', "has format 99; a newer Kiln made it; this Kiln reads formats 2, 3, 4 and 5"),
        (f'{{"format": {"9" * 21}}}', f"has format {'9' * 21}; a newer Kiln made it"),
        ('{\n "format": 2,\n "files": {}\n}\n', "is malformed in line 3: files is an object; it must be a list"),
        ('{"format": 2}\n' + "[" * 300000, "has 300000 bytes in line 2"),
        ('{\n "format": 2,\n "kiln": ' + "[" * 60000, "is not valid JSON in line 3"),
        ('{\n "format": 2,\n "kiln": "\\u001b]0;x"\n}\n', r"kiln is '\x1b]0;x'; it must be a line without"),
    ],
)
def test_odd_manifests(folder, text, message):
    (folder / manifest.PATH).write_text(text)
    with pytest.raises(ArtifactError, match="manifest") as caught:
        inspect.open_artifact(folder)
    assert message in str(caught.value)


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_every_altered_file_is_found(folder):
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(folder).as_posix()
        if name == manifest.PATH:
            continue
        data = path.read_bytes()
        for bad in (data[:-1], bytes([data[0] ^ 1]) + data[1:], data + b"\0"):
            path.write_bytes(bad)
            assert any(name in problem for problem in problems(folder)), name
        path.write_bytes(data)
    assert problems(folder) == []


def test_missing_added_and_redirected(folder):
    (folder / "include/kiln/kiln.h").unlink()
    (folder / "include/kiln/version.h").unlink()
    (folder / "include/kiln/version.h").symlink_to("/etc/passwd")
    (folder / "lib/extra.so").write_bytes(b"")
    (folder / "lib/libkiln.so").unlink()
    (folder / "lib/libkiln.so").symlink_to("/tmp/evil.so")
    os.mkfifo(folder / "share/kiln/LICENCE.pipe")
    assert sorted(problems(folder)) == [
        "include/kiln/kiln.h is missing",
        "include/kiln/version.h is a link to /etc/passwd; the manifest says that it is a file",
        "lib/extra.so exists, but is not in the manifest",
        "lib/libkiln.so is a link to /tmp/evil.so; the manifest says libkiln.so.0",
        "share/kiln/LICENCE.pipe exists, but is not in the manifest",
    ]


def rewrite(folder: Path, change) -> None:
    """Changes the manifest, and states the digests of the files as they are now."""
    document = json.loads((folder / manifest.PATH).read_bytes())
    for row in document["files"]:
        path = folder / row["path"]
        if "link" not in row and path.is_file():
            row |= {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    change(document)
    (folder / manifest.PATH).write_bytes(manifest.encode(document))


def test_links_lead_to_files_and_folders_beside_them(folder):
    """As lib/aotriton.images leads to the packs."""
    (folder / "lib/aotriton.images").symlink_to("kiln.images")
    (folder / "lib/nowhere.so").symlink_to("nothing.so")

    def name(document: dict) -> None:
        document["files"] += [
            {"path": "lib/aotriton.images", "link": "kiln.images"},
            {"path": "lib/nowhere.so", "link": "nothing.so"},
        ]
        document["files"].sort(key=lambda row: row["path"])

    rewrite(folder, name)
    assert problems(folder) == ["lib/nowhere.so is a link to nothing.so, which does not exist"]


@pytest.mark.parametrize(
    ("damage", "clause"),
    [
        (lambda pack: pack.unlink(), "is missing"),
        (lambda pack: pack.rename(pack.with_name("nvidia-sm_80.pack")), "is missing"),
        (
            lambda pack: shutil.copyfile(pack.with_name("amd-gfx942.pack"), pack),
            "is not the one that the manifest names",
        ),
        (lambda pack: pack.write_bytes(pack.read_bytes()[:-1]), "is truncated or damaged"),
        (lambda pack: pack.write_bytes(pack.read_bytes()[:100] + b"x"), "is truncated or damaged"),
        (
            lambda pack: pack.write_bytes(pack.read_bytes()[:8] + b"\x63" + pack.read_bytes()[9:]),
            "is of format 99, which this Kiln does not read",
        ),
        (lambda pack: (pack.unlink(), pack.mkdir()), "cannot be read (Is a directory)"),
    ],
)
def test_a_folder_says_which_packs_are_not_there(folder, capsys, damage, clause):
    damage(folder / "lib/kiln.images/nvidia-sm_90.pack")
    sentence = f"sm_90: its pack lib/kiln.images/nvidia-sm_90.pack {clause}"
    for words in (["inspect"], ["list"], ["list", "--target", "sm_90"]):
        assert main([words[0], str(folder), *words[1:]]) == 0
        assert capsys.readouterr().out.splitlines().count(sentence) == 1
    assert main(["list", str(folder), "--target", "gfx942"]) == 0
    assert "its pack" not in capsys.readouterr().out
    assert main(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["absent_packs"] == {"sm_90": clause}
    assert main(["list", str(folder), "--json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        if row["target"] == "gfx942" or row["image"] is None:
            assert row["unavailable"] in (None, "not on this GPU")
        else:
            assert row["unavailable"] == f"its pack {clause}"


def test_packs_in_a_tarball_are_looked_at(folder, tmp_path):
    assert presence.absent_packs(inspect.open_artifact(small_release().tarball)) == {}
    packs = folder / "lib/kiln.images"
    shutil.copyfile(packs / "amd-gfx942.pack", packs / "nvidia-sm_90.pack")
    (packs / "amd-gfx942.pack").unlink()
    found = presence.absent_packs(inspect.open_artifact(release.make_release(folder, tmp_path, VERSION)))
    assert found == {"gfx942": "is missing", "sm_90": "is not the one that the manifest names"}


def test_a_pack_of_another_release(folder, tmp_path):
    """Whoever swaps a pack, and corrects the manifest's digests, still has the libraries against him."""
    other = write_pack(tmp_path, "sm_90", with_ptx=False)
    shutil.copy(other, folder / "lib/kiln.images/nvidia-sm_90.pack")
    rewrite(folder, lambda document: None)
    found = problems(folder)
    assert "nvidia-sm_90.pack is not the pack that the manifest names for sm_90" in found
    assert "libkiln_toy.so does not have the digest of nvidia-sm_90.pack and would refuse it" in found


DESCRIPTOR = {"box": [128, 64], "element_type": 9, "swizzle": 3}


def first_cubin(document: dict) -> dict:
    """The row of an image, in a manifest that says what only the second format knows."""
    document["format"] = 3
    return next(row for row in document["images"] if row["target"] == "sm_90")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["variants"][0].update(key="0" * 64), "variants for gfx942 are not those of amd-gfx942.pack"),
        (lambda d: d["variants"].pop(), "variants for sm_90 are not those of nvidia-sm_90.pack"),
        (lambda d: d["left_out"][0].update(variants=3), "is left out for gfx942 is not what amd-gfx942.pack lacks"),
        (lambda d: d["left_out"].pop(), "is left out for sm_90 is not what nvidia-sm_90.pack lacks"),
        (lambda d: d["images"][0].update(registers=1), "is not that of amd-gfx942.pack"),
        *(
            (lambda d, name=name: d["targets"][0].update({name: 77}), f"the manifest counts 77 {name} of gfx942; ")
            for name in ("functionals", "variants", "images", "unavailable", "left_out")
        ),
        (lambda d: d["targets"][0].update(abi=99), "the manifest says that the abi of gfx942 is 99; an image in "),
        (lambda d: d["targets"][0].update(kind="cubin"), "that the kind of gfx942 is cubin; an image in "),
        (lambda d: d["targets"].pop(), "nvidia-sm_90.pack belongs to no target"),
        (lambda d: d["targets"][0].update(pack="amd-gfx90a.pack"), "the pack amd-gfx90a.pack for gfx942 is missing"),
        (lambda d: d.update(kiln="0.2"), "is of release 0.1.0b, not of 0.2"),
        (lambda d: first_cubin(d).update(ptx_version="8.6"), "is of version 8.0, not the one that the manifest states"),
        (lambda d: first_cubin(d).update(descriptors=[DESCRIPTOR]), "is not that of nvidia-sm_90.pack"),
    ],
)
def test_a_manifest_that_lies(folder, change, message):
    rewrite(folder, change)
    assert any(message in problem for problem in problems(folder)), problems(folder)


def test_an_index_that_lies_about_an_image(tmp_path, monkeypatch):
    import small_release as maker

    honest = maker.info_of
    from dataclasses import replace

    monkeypatch.setattr(maker, "info_of", lambda code: replace(honest(code), registers=3, parameters=9))
    path = write_pack(tmp_path, "gfx942")
    found = problems(path)
    assert len(found) == 8
    assert any("its registers is" in problem and "the index says 3" in problem for problem in found)
    assert any("its parameters is 6, the index says 9" in problem for problem in found)


def test_an_index_that_lies_about_descriptors(tmp_path, monkeypatch):
    import small_release as maker
    from kiln_recipe.images.image import DescriptorInfo

    honest = maker.info_of
    lie = (DescriptorInfo(9, 3, (128, 64)),)
    monkeypatch.setattr(maker, "info_of", lambda code: dataclasses.replace(honest(code), descriptors=lie))
    found = problems(write_pack(tmp_path, "sm_90"))
    assert len(found) == 4 and all("takes 0 tensor descriptors, the index says 1" in problem for problem in found)


def test_an_image_for_another_gpu(tmp_path, monkeypatch):
    import small_release as maker

    for name in ("256-fp16", "256-bf16", "1024-fp16", "1024-bf16"):
        shutil.copy(maker.images() / f"gfx942-{name}", tmp_path / f"gfx90a-{name}")
    monkeypatch.setattr(maker, "images", lambda: tmp_path)
    found = problems(write_pack(tmp_path / "packs", "gfx90a"))
    assert len(found) == 4 and all("its target is 'gfx942', the index says 'gfx90a'" in problem for problem in found)


def test_damaged_tarballs(tmp_path):
    good = small_release().tarball.read_bytes()
    source = random.Random(3)
    path = tmp_path / small_release().tarball.name
    for number in range(60):
        bad = bytearray(good)
        if number % 3 == 0:
            del bad[source.randrange(4, len(bad)) :]
        else:
            bad[source.randrange(2, len(bad))] ^= 1 << source.randrange(8)
        path.write_bytes(bad)
        shutil.copy(f"{small_release().tarball}.sha256", f"{path}.sha256")
        try:
            assert problems(path), number
        except ArtifactError as error:
            assert str(path) in str(error)


def test_bytes_behind_the_end(tmp_path, capsys):
    whole = small_release().tarball.read_bytes()
    plain = gzip.decompress(whole)
    for name, data in (
        ("junk", whole + b"junk"),
        ("zeros", whole + b"\0" * 512),
        ("twice", whole + whole),
        ("tar-junk", deflate.gzip_compress(plain + b"junk", 6)),
        ("tar-twice", deflate.gzip_compress(plain + plain, 6)),
    ):
        path = tmp_path / f"{name}.tar.gz"
        path.write_bytes(data)
        what = "tar" if "tar-" in name else "gzip stream"
        assert problems(path) == [f"{path} has bytes after the end of its {what}"]
        assert main(["inspect", str(path), "--verify"]) == 6
    capsys.readouterr()
    for cut in (1, 4, 8):  # of the stream's CRC and length
        path.write_bytes(whole[:-cut])
        assert any("is truncated (" in problem or "is corrupt (" in problem for problem in problems(path))


def test_outputs_stand_where_links_lead_and_replace_no_node(tmp_path, capsys):
    pack = str(small_release().packs["gfx942"])
    (tmp_path / "real").mkdir()
    (tmp_path / "link.html").symlink_to("real/page.html")
    for _ in range(2):
        assert main(["inspect", pack, "--html", str(tmp_path / "link.html")]) == 0
    assert (tmp_path / "link.html").is_symlink() and svgs((tmp_path / "real/page.html").read_text())
    os.mkfifo(tmp_path / "fifo")
    capsys.readouterr()
    assert main(["inspect", pack, "--html", str(tmp_path / "fifo")]) == 7
    assert (
        f"--html {tmp_path}/fifo is a pipe; give a file, or a name that does not exist yet" in capsys.readouterr().err
    )
    assert (tmp_path / "fifo").is_fifo()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["fifo", "link.html", "page.html", "real"]


@pytest.mark.parametrize("over", ["itself", "its pack", "a link to it", "another name of it", "a file of it", "a note"])
def test_a_page_takes_no_other_files_place(tmp_path, capsys, over):
    release, note = tmp_path / "r.tar.gz", tmp_path / "note.html"
    shutil.copyfile(small_release().tarball, release)
    unpacked = tmp_path / "unpacked/kiln"
    run_tar(release, tmp_path / "unpacked")
    pack = next((unpacked / "lib/kiln.images").iterdir())
    (tmp_path / "link.html").symlink_to("r.tar.gz")
    os.link(release, tmp_path / "twin.html")
    note.write_text("<!doctype html>\n<html>mine</html>\n")
    artifact, page = {
        "itself": (release, release), "its pack": (pack, pack), "a link to it": (release, tmp_path / "link.html"),
        "another name of it": (release, tmp_path / "twin.html"),
        "a file of it": (unpacked, unpacked / "share/kiln/manifest.json"), "a note": (release, note),
    }[over]  # fmt: skip
    before = page.read_bytes()
    assert main(["inspect", str(artifact), "--html", str(page)]) == 2
    assert (
        f"--html {page} exists and is not a page of `kiln inspect`, so it stays; give a name that does not exist yet"
        in capsys.readouterr().err
    )
    assert page.read_bytes() == before


def test_a_page_is_no_file_of_the_release_that_it_shows(tmp_path, capsys):
    run_tar(small_release().tarball, tmp_path)
    assert main(["inspect", str(tmp_path / "kiln"), "--html", str(tmp_path / "kiln/page.html")]) == 2
    assert "lies inside of" in capsys.readouterr().err
    assert not (tmp_path / "kiln/page.html").exists()
    assert main(["inspect", str(tmp_path / "kiln"), "--html", ""]) == 2
    assert "--html is empty; give the file to write" in capsys.readouterr().err


def run_tar(tarball, folder):
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "-xzf", str(tarball), "-C", str(folder)], check=True)


def test_a_pack_cut_within_its_header(tmp_path):
    (tmp_path / "cut.pack").write_bytes(small_release().packs["sm_90"].read_bytes()[:10])
    with pytest.raises(ArtifactError, match="is truncated: its header has [0-9]+ bytes, the file 10 in all"):
        inspect.open_artifact(tmp_path / "cut.pack")


def test_the_checksum_beside_it(tmp_path):
    path = Path(shutil.copy(small_release().tarball, tmp_path))
    report = verify.verify(inspect.open_artifact(path))
    assert report.problems == [] and ".sha256 is missing" in report.notes[0]
    (tmp_path / f"{path.name}.sha256").write_text(f"{'0' * 64}  {path.name}\n")
    assert problems(path) == [f"{path.name} does not have the digest of {path.name}.sha256"]


def test_a_note_stays_in_its_line(tmp_path, capsys):
    named = tmp_path / "a\nwhole: all.tar.gz"
    named.symlink_to(small_release().tarball)
    assert main(["inspect", str(named), "--verify"]) == 0
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: "))
    assert note == "note: a\\nwhole: all.tar.gz.sha256 is missing, so the tarball as a whole was not checked"


def test_problems_are_the_exit_code(folder, capsys):
    (folder / "share/kiln/LICENSE").unlink()
    assert main(["inspect", str(folder), "--verify"]) == 6
    captured = capsys.readouterr()
    assert captured.err == f"kiln: {folder} is not what it should be: share/kiln/LICENSE is missing\n"
    assert captured.out == ""
    page = folder.parent / "page.html"
    assert main(["inspect", str(folder), "--verify", "--html", str(page)]) == 6 and not page.exists()
    capsys.readouterr()
    assert main(["inspect", str(folder), "--verify", "--json"]) == 6
    assert json.loads(capsys.readouterr().out)["verified"]["problems"] == ["share/kiln/LICENSE is missing"]
    assert main(["inspect", str(folder)]) == 0


def test_a_flipped_byte_is_said_once(tmp_path):
    path = tmp_path / small_release().tarball.name
    plain = gzip.decompress(small_release().tarball.read_bytes())
    at = plain.index(pack.MAGIC) + 300
    sum_of_whole = zlib.crc32(plain).to_bytes(4, "little")
    bad = deflate.gzip_compress(plain[:at] + bytes([plain[at] ^ 1]) + plain[at + 1 :], 6)
    path.write_bytes(bad[:-8] + sum_of_whole + bad[-4:])
    assert problems(path) == [
        "lib/kiln.images/amd-gfx942.pack does not have the digest and size that the manifest states"
    ]
    whole = deflate.gzip_compress(plain, 6)
    path.write_bytes(whole[:-8] + b"1234" + whole[-4:])
    assert problems(path) == [f"{path} is corrupt (its gzip stream: incorrect data check)"]


def test_what_is_wrong_stands_last():
    words = [sys.executable, "-m", "kiln_build", "coverage", "core", "--model", "head_dim=192", "--target", "sm_90"]
    done = subprocess.run(
        [*words, "--check"], env=os.environ | {"PYTHONPATH": str(ROOT / "v3python")}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 10
    assert [line.startswith("kiln: ") for line in done.stdout.splitlines()].index(True) == done.stdout.count("\n") - 1


# ---- pictures --------------------------------------------------------------------------------------------------------


def svgs(text: str) -> list[xml.etree.ElementTree.Element]:
    return [
        xml.etree.ElementTree.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")
        for part in text.split("<svg")[1:]
    ]


def test_page_of_a_release(tmp_path):
    done = run("inspect", small_release().tarball, "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.html").read_text()
    pictures = svgs(text)
    assert len(pictures) == 2 + 2 * 4, "a size and four maps for each target"
    rows = inspect.variants_of(inspect.open_artifact(small_release().tarball))
    tips = [title.text for svg in pictures[2:] for title in svg.iter("title")]
    assert len(tips) == 4 * len(rows)
    row = next(row for row in rows if row["target"] == "sm_90")
    assert f"dtype=fp16 | BLOCK=256 num_warps=4 | aligned: {row['registers']}" in tips
    assert sum("no image: not on this GPU" in tip for tip in tips) == 8
    assert not re.search("https?:|src=|<link|@import|url[(]", text)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_large_map_is_a_few_paths(monkeypatch):
    monkeypatch.setattr(maps, "_LABELLED", 7)
    for svg in svgs("".join(page.page(gather.gather(open_side(small_release().tarball)))))[2:]:
        assert not list(svg.iter("title"))
        assert 1 <= len(list(svg.iter("path"))) <= 14


def test_page_of_a_pack_and_of_an_image(tmp_path, capsys):
    assert main(["inspect", str(small_release().packs["gfx942"]), "--html", str(tmp_path / "p.html")]) == 0
    assert len(svgs((tmp_path / "p.html").read_text())) == 5
    with pytest.raises(UsageError, match="not an image"):
        from kiln_build.cli.inspect import _write_page

        _write_page(inspect.open_artifact(small_release().images / "sm_90-256-bf16"), tmp_path / "x")
    assert main(["inspect", str(small_release().tarball), "--html", str(tmp_path / "no/where.html")]) == 7


def test_without_images(tmp_path):
    """A release of libraries, tables and headers only."""
    from dataclasses import replace

    from small_release import contents

    stage = tmp_path / "kiln"
    release.lay_out(contents(tmp_path, {}), stage)
    made = manifest.make_manifest(replace(small_release().inputs, packs={}), stage, release.PLATFORM)
    (stage / manifest.PATH).write_bytes(manifest.encode(made))
    assert problems(stage) == []
    assert "This release has no images." in "".join(page.page(gather.gather(open_side(stage))))
    done = run("inspect", stage)
    assert done.returncode == 0
    assert "no images in this release" in done.stdout and "not run" not in done.stdout
    assert run("list", stage).returncode == 0


def test_errors_are_ours():
    with pytest.raises(KilnError):
        inspect.open_artifact(Path("/dev/null"))
