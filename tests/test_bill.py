"""The bill of materials: what others' validators and tools say of it; that it is complete, and true of the packages."""

from __future__ import annotations

import importlib.metadata
import json
import mmap
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import elftools.construct
import pytest
import yaml
import zstandard
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import ComponentScope
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import get_spdx_licensing
from packageurl import PackageURL

from kiln_build.artifacts.manifest_model import Source
from kiln_build.native import native
from kiln_build.origin import bill, licences, notices
from kiln_recipe.compile import lock
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.errors import ArtifactError
from small_release import ROOT

LOCK = lock.read_lock(ROOT / "input" / lock.LOCK_NAME)
SITE = Path(importlib.metadata.distribution("triton").locate_file("."))
NAMES = ("ptxas", "ptxas-blackwell", "libdevice", "ockl", "ocml", "compiler")
TRITON = Toolchain(
    "/nowhere", importlib.metadata.version("triton"), tuple((name, f"{i}" * 64) for i, name in enumerate(NAMES))
)
FACTS = bill.Facts(ROOT, "0.1.0b+full", Source("1" * 40, dirty=False), LOCK, "2" * 64, (TRITON,))


def document(facts: bill.Facts = FACTS) -> dict:
    return json.loads(bill.of_release(facts))


def accepted(data: bytes) -> Bom:
    """What CycloneDX's own library reads of a bill that its validator, which knows every field, accepts."""
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None
    found = Bom.from_json(json.loads(data))
    found.validate()
    return found


def files_of(component: dict) -> dict[str, str]:
    return {
        one["name"]: one["hashes"][0]["content"] for one in component.get("components", ()) if one["type"] == "file"
    }


def test_others_accept_it():
    found = accepted(bill.of_release(replace(FACTS, added=("rms_norm",))))
    assert (found.metadata.component.name, found.metadata.component.version) == ("kiln", "0.1.0b+full")
    required = {one.name: one.version for one in found.components if one.scope is ComponentScope.REQUIRED}
    assert required["Monocypher"] == "4.0.3" and required["zstd"] == "1.5.7" and "rms_norm" in required
    wrong = document()
    wrong["components"][0]["licenses"] = [{"license": {"id": "Apache-3.0"}}]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(wrong)) is not None, "it looks closely"


def test_every_address_and_licence_has_its_form():
    licensing = get_spdx_licensing()
    seen = 0
    for one in document()["components"]:
        for component in (one, *one.get("components", ())):
            if "purl" in component:
                address = PackageURL.from_string(component["purl"])
                if address.version and len(address.version) != 40:  # of a commit
                    assert address.version.endswith(component["version"])
                seen += 1
            for licence in component.get("licenses", ()):
                name = licence.get("expression") or licence["license"].get("id")
                assert name is None or licensing.validate(name).errors == [], name
    assert seen > 30


def test_every_locked_file_is_in_it():
    """Of every Python, whichever runs; without what builds Triton from source, since nothing did, and what speaks to a
    cluster, which makes no bytes."""
    rows = {one["bom-ref"]: one for one in document()["components"]}
    for package in LOCK.packages:
        if package.use in ("triton-source", "scheduler"):
            assert package.requirement not in rows
            continue
        assert files_of(rows[package.requirement]) == {file.name: file.sha256 for file in package.files}
        assert rows[package.requirement]["scope"] == "excluded"


def test_every_part_is_in_it():
    parts = {one["name"]: one for one in document()["components"] if one["scope"] == "required"}
    listed = notices.read(ROOT, "notices.yaml")
    assert [*parts] == [one.name for one in listed]
    packages = {one.package for one in listed}
    assert {one.package for one in native.VENDORED} <= packages, "whose C is compiled into the runtime"
    assert files_of(parts["libdevice"]) == {"libdevice": "2" * 64}
    named = {one["dependsOn"] and tuple(one["dependsOn"]) for one in document()["dependencies"] if "dependsOn" in one}
    assert named == {tuple(one["bom-ref"] for one in parts.values())}


def test_what_assembles_is_in_it_by_its_digest():
    (triton,) = [one for one in document()["components"] if one["bom-ref"].startswith("triton==")]
    inside = {one["name"]: one for one in triton["components"]}
    assert files_of(inside["ptxas"]) == {"ptxas": "0" * 64}
    assert files_of(inside["ptxas-blackwell"]) == {"ptxas-blackwell": "1" * 64}


def test_a_triton_from_source():
    """It has no wheels of the lock's; it is known by its files, and by what it was built from."""
    ours = Toolchain("/nowhere", "3.9.0+git1234", (("ptxas", "a" * 64), ("source archive", "b" * 64)))
    data = bill.of_release(replace(FACTS, toolchains=(ours,)))
    accepted(data)
    rows = {one["bom-ref"]: one for one in json.loads(data)["components"]}
    assert files_of(rows["triton==3.9.0+git1234"]) == dict(ours.files)


def test_equal_inputs_give_equal_bytes():
    script = (
        "import sys; sys.path.insert(0, 'tests'); import test_bill; "
        "sys.stdout.buffer.write(test_bill.bill.of_release(test_bill.FACTS))"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True,
            env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed, "TZ": zone, "HOME": "/nowhere"},
        ).stdout
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    }  # fmt: skip
    assert made == {bill.of_release(FACTS)}
    text = bill.of_release(FACTS).decode()
    assert str(ROOT) not in text and str(SITE) not in text
    others = [
        replace(FACTS, version="0.2.0"),
        replace(FACTS, source=Source("3" * 40, dirty=False)),
        replace(FACTS, source=Source("1" * 40, dirty=True)),
        replace(FACTS, lock_digest="4" * 64),
    ]
    numbers = {document(facts)["serialNumber"] for facts in (FACTS, *others)}
    assert len(numbers) == 5, "different bills have different numbers"


# ---- what is stated of the packages, against the packages ------------------------------------------------------------


def test_tools_are_of_locked_packages():
    rows = yaml.safe_load((ROOT / "notices/tools.yaml").read_text())
    assert {row["package"] for row in rows} <= {package.requirement for package in LOCK.packages}
    for name in ("notices.yaml", "extension.yaml"):
        assert {one.package for one in notices.read(ROOT, name)} <= {package.name for package in LOCK.packages}


def version_of(name: str) -> str:
    """As the bill states it, of a part or of a tool."""
    every = [one for row in document()["components"] for one in (row, *row.get("components", ()))]
    every += bill.parts_of(notices.read(ROOT, "extension.yaml"), LOCK, ())
    (found,) = {one.get("version", "") for one in every if one["name"] == name}
    return found


def member(package: str, name: str) -> str:
    """A file of a locked source distribution."""
    with tarfile.open(ROOT / "input/cache" / LOCK.source_of(package).name) as tar:
        (found,) = [one for one in tar if one.name.partition("/")[2] == name]
        return tar.extractfile(found).read().decode()


def said_by(*command: object) -> str:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout


def test_versions_of_what_is_compiled():
    header = member("zstandard", "zstd/zstd.h")
    found = [re.search(rf"define ZSTD_VERSION_{part} +([0-9]+)", header)[1] for part in ("MAJOR", "MINOR", "RELEASE")]
    assert version_of("zstd") == ".".join(found)
    assert f"// Monocypher version {version_of('Monocypher')}\n" in member("pymonocypher", "monocypher.h")
    assert version_of("construct") == elftools.construct.__version__
    assert native.ZIG_TARGET.endswith(f".{version_of('GNU C library')}")


def test_versions_of_tools():
    zig = (sys.executable, "-m", "ziglang")
    clang = version_of("Clang, LLVM and LLD of Zig")
    assert said_by(*zig, "cc", "--version").startswith(f"clang version {clang}\n")
    assert said_by(*zig, "ld.lld", "--version").startswith(f"LLD {clang} ")
    libcxx = Path(importlib.metadata.distribution("ziglang").locate_file("ziglang/lib/libcxx/include/__config"))
    major, minor, patch = map(int, version_of("LLVM's libc++ and compiler runtime").split("."))
    assert re.search(r"define _LIBCPP_VERSION ([0-9]+)", libcxx.read_text())[1] == f"{major}{minor:02}{patch:02}"
    assert version_of("LLVM's libc++, libc++abi and libunwind") == f"{major}.{minor}.{patch}"
    for name in ("ptxas", "ptxas-blackwell"):
        said = said_by(SITE / "triton/backends/nvidia/bin" / name, "--version")
        assert f", V{version_of(name)}\n" in said
    assert version_of("zstd of zstandard") == ".".join(map(str, zstandard.ZSTD_VERSION))
    rocm = (SITE / "triton/backends/amd/lib/ockl.bc").read_bytes()
    assert f" roc-{version_of('ROCm device libraries (ockl, ocml)')} ".encode() in rocm


def test_the_llvm_of_triton():
    (one,) = [row for row in yaml.safe_load((ROOT / "notices/tools.yaml").read_text()) if "MLIR" in row["name"]]
    revision = one["purl"].rpartition("@")[2]
    with (
        (SITE / "triton/_C/libtriton.so").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        assert data.find(f"LLVM version {one['version']} ({revision})".encode()) > 0
        assert data.find(f"LLD {one['version'].removesuffix('git')} (".encode()) > 0


def test_licences_by_a_second_tool():
    """What pip-licenses reads of the installed packages is what the lock, and so the bill, says of them."""
    said = json.loads(said_by(sys.executable, "-m", "piplicenses", "--format=json", "--from=all", "--with-system"))
    found = {row["Name"].lower().replace("_", "-"): row for row in said}
    licensing = get_spdx_licensing()
    asked = 0
    for package in LOCK.packages:
        row = found.get(package.name.lower().replace("_", "-"))
        if package.use not in ("front", "build") or row is None or row["Version"] != package.version:
            continue
        asked += 1
        stated = {row["License-Metadata"], row["License-Classifier"], row.get("License-Expression", "")}
        names = {str(symbol) for symbol in licensing.license_symbols(package.licence)}
        assert all(any(is_named(name, text) for text in stated) for name in names), (package.name, names, stated)
    assert asked >= 15


WORDS = {
    "BSD-3-Clause": "BSD", "BSD-2-Clause": "BSD", "Apache-2.0": "Apache", "MPL-2.0": "MPL|Mozilla", "MIT": "MIT",
    "Unlicense": "Unlicense|Public Domain",
}  # fmt: skip


def is_named(name: str, text: str) -> bool:
    return re.search(rf"\b({re.escape(name)}|{WORDS.get(name, re.escape(name))})\b", text) is not None


# ---- a package's -----------------------------------------------------------------------------------------------------


def test_the_bill_of_a_package():
    ours = bill.of_release(FACTS)
    packs = bill.of_package("kiln-images-sm-90", "0.1.0b0+full", ours, ["lib/kiln.images/nvidia-sm_90.pack"], ())
    found = accepted(packs)
    assert str(found.metadata.component.purl) == "pkg:pypi/kiln-images-sm-90@0.1.0b0%2Bfull"
    assert bill.licences_of(packs) == ["MIT", "MIT", "NVIDIA CUDA Toolkit EULA"]
    assert bill.texts_of(packs) == {"licences/triton.txt", "licences/libdevice.txt"}
    nothing = bill.of_package("kiln-cli", "0.1.0b0", ours, ["kiln_cli/verbs.py"], ())
    assert accepted(nothing) and bill.licences_of(nothing) == ["MIT"] and bill.texts_of(nothing) == set()
    more = bill.parts_of(notices.read(ROOT, "extension.yaml"), LOCK, ())
    core = bill.of_package("kiln-runtime", "0.1.0b0", ours, ["lib/libkiln.so.0"], more)
    assert {"Monocypher", "nanobind", "robin-map"} <= {one.name for one in accepted(core).components}


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"components": 3}', b"\xff", b"[" * 100_000])
def test_a_bill_that_is_none(data):
    with pytest.raises(ArtifactError, match=r"share/kiln/kiln.cdx.json is not a bill of materials"):
        bill.of_package("kiln-cli", "0.1.0b0", data, (), ())


def test_names_of_licences():
    assert licences.together(["MIT", "BSD-2-Clause OR CC0-1.0", "MIT", "NVIDIA CUDA Toolkit EULA"]) == (
        "MIT AND (BSD-2-Clause OR CC0-1.0) AND LicenseRef-NVIDIA-CUDA-Toolkit-EULA"
    )
    assert licences.is_known("Apache-2.0 WITH LLVM-exception") and not licences.is_known("GPL with words")
