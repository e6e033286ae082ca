"""Where `kiln bench` finds a release's libraries: unpacked, in a tarball, in wheels; and what is no release."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from kiln_bench.release import headers, places
from kiln_recipe.errors import ArtifactError, EnvironmentProblem
from small_release import ROOT

FILES = {
    "lib/libkiln.so.0": b"core", "lib/libkiln_flash.so": b"flash", "lib/kiln.images/nvidia-sm_90.pack": b"pack",
    "include/kiln/kiln.h": b"", "include/kiln/flash.h": b"", "share/kiln/manifest.json": b"{}",
}  # fmt: skip
DIGEST = "3b16d25ea3e55b5e4e16ea1be3ffaf2a4ce3ae1de9ef2a1a3ae10dc3efb9ff8d"
VERSION = "0.1.0b0+full"


def unpacked(folder: Path, files=FILES) -> Path:
    for name, data in files.items():
        (folder / "kiln" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "kiln" / name).write_bytes(data)
    return folder


def tarball(path: Path, files=FILES) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"kiln/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def wheel(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def wheels(folder: Path, *tags: str, version: str = VERSION) -> Path:
    folder.mkdir(exist_ok=True)
    for tag in tags:
        package = {f"kiln/{name}": data for name, data in FILES.items() if name.startswith("lib/libkiln")}
        package |= {
            "kiln/__init__.py": tag.encode(),
            "kiln_bench/include/kiln.h": b"",
            "kiln_bench/include/flash.h": b"",
        }
        wheel(folder / f"kiln_runtime-{version}-{tag}-manylinux_2_28_x86_64.whl", **package)
    wheel(folder / f"kiln_recipe-{version}-py3-none-any.whl", **{"kiln_recipe/__init__.py": b""})
    images = {"kiln/lib/kiln.images/nvidia-sm_90.pack": b"pack", "../outside": b"", "kiln/../../outside": b""}
    wheel(folder / f"kiln_images_sm_90-{version}-py3-none-any.whl", **images)
    return folder


OURS = f"cp3{min(sys.version_info[1], 12)}-{'abi3' if sys.version_info[1] >= 12 else f'cp3{sys.version_info[1]}'}"


@pytest.mark.parametrize("form", ["unpacked", "the folder kiln", "tarball"])
def test_a_release_without_a_package(tmp_path, form):
    path = tarball(tmp_path / "r.tar.gz") if form == "tarball" else unpacked(tmp_path)
    with places.found(str(path / "kiln" if form == "the folder kiln" else path)) as place:
        assert (place.libraries / "libkiln.so.0").read_bytes() == b"core"
        assert place.headers == place.libraries.parent / "include/kiln"
        assert place.site is None and place.without_site.startswith("a tarball has no Python package")
        pack = place.pack("sm_90")
        assert pack["file"] == "nvidia-sm_90.pack" and len(pack["sha256"]) == 64
        assert place.pack("sm_9") is None and place.pack("gfx942") is None
    assert place.libraries.is_dir() == (form != "tarball"), "what was unpacked is gone"


def test_of_a_tarball_no_more_is_unpacked_than_is_needed(tmp_path):
    more = FILES | {"lib/libkiln_torch.so": b"", "lib/../../outside": b"", "lib/aotriton/x/libkiln.so.0": b""}
    with places.found(str(tarball(tmp_path / "r.tar.gz", more))) as place:
        found = {
            p.relative_to(place.libraries.parent).as_posix() for p in place.libraries.parent.rglob("*") if p.is_file()
        }
        assert found == FILES.keys() - {"share/kiln/manifest.json"}


def test_a_folder_of_wheels(tmp_path):
    folder = wheels(tmp_path / "w", OURS, "cp39-cp39")
    with places.found(str(folder)) as place:
        site = Path(place.site)
        assert (site / "kiln/__init__.py").read_text() == OURS and (site / "kiln_recipe/__init__.py").is_file()
        assert place.libraries == site / "kiln/lib" and place.pack("sm_90")
        assert place.headers == site / "kiln_bench/include"
        assert not (site.parent / "outside").exists() and place.name == "w"
    assert not site.exists()


def test_wheels_for_another_python_can_be_loaded_and_not_imported(tmp_path):
    with places.found(str(wheels(tmp_path / "w", "cp39-cp39"))) as place:
        assert place.site is None and "there is no wheel of kiln-runtime for this Python (cp3" in place.without_site
        assert (place.libraries / "libkiln_flash.so").is_file()


def test_what_is_installed(tmp_path, monkeypatch):
    unpacked(tmp_path)
    (tmp_path / "kiln/__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with places.found(None) as place:
        assert place.site == "" and place.libraries == tmp_path / "kiln/lib" and place.name == "installed"
        assert headers.read(place.headers).structures
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(
        EnvironmentProblem, match="no release is installed in this Python, .*; give a release's tarball"
    ):
        places.found(None).__enter__()


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (lambda p: p / "nowhere", EnvironmentProblem, "does not exist, or is neither a file nor a folder"),
        (lambda p: p, ArtifactError, "has neither lib/libkiln.so.0 nor wheels of kiln-runtime"),
        (lambda p: unpacked(p, {"lib/libkiln.so.0": b""}), ArtifactError, "it was built without attention"),
        (lambda p: tarball(p / "r.tar.gz", {"x": b""}), ArtifactError, "r.tar.gz has no kiln/lib/libkiln.so.0"),
        (lambda p: wheel(p / "kiln_images_sm_90-1-py3-none-any.whl") and p, ArtifactError, "no wheel of kiln-runtime"),
        (lambda p: wheels(wheels(p / "w", OURS), OURS, version="0.2.0"), ArtifactError,
         r"wheels of several versions, 0.1.0b0\+full and 0.2.0; give a folder with the wheels of one release"),
    ],
)  # fmt: skip
def test_what_is_no_release(tmp_path, make, kind, sentence):
    with pytest.raises(kind, match=sentence):
        places.found(str(make(tmp_path))).__enter__()


def test_what_is_damaged(tmp_path):
    whole = tarball(tmp_path / "r.tar.gz", FILES | {"lib/libkiln.so.0": os.urandom(1 << 16)})
    for name, data in (("cut", whole.read_bytes()[:30000]), ("text", b"hello"), ("empty", b"")):
        path = tmp_path / f"{name}.tar.gz"
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=f"{name}.tar.gz is not a tarball that can be read"):
            places.found(str(path)).__enter__()
    folder = wheels(tmp_path / "w", OURS)
    (folder / f"kiln_recipe-{VERSION}-py3-none-any.whl").write_bytes(b"no")
    with pytest.raises(ArtifactError, match=r"kiln_recipe-.*\.whl is not a wheel that can be read"):
        places.found(str(folder)).__enter__()


def test_the_headers_are_those_of_the_checkout():
    assert headers.own() == ROOT / "include/kiln"
