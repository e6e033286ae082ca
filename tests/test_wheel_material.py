"""What wheels state of what they are made of: licences, texts, bills of materials; their addresses and signatures."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.licenses import canonicalize_license_expression
from packaging.metadata import Metadata

import minisign_keys
from kiln_build import cli
from kiln_build.base.wheel_file import Wheel, write_wheel
from kiln_build.cli import wheel as verb
from kiln_build.origin import bill, notices
from kiln_build.release import wheel
from kiln_build.release.wheel_metadata import Material
from kiln_recipe.errors import ArtifactError
from small_release import ROOT, small_release
from test_bill import FACTS, LOCK, accepted


def described(made: Wheel) -> Metadata:
    """What the packaging library reads of METADATA, each field checked."""
    return Metadata.from_email(made.metadata, validate=True)


@pytest.fixture(scope="module")
def whole() -> wheel.Contents:
    """A release with a bill of materials and all of its texts, the files of which are not there."""
    listed = notices.read(ROOT, "notices.yaml")
    texts = {"LICENSE": "L\n"} | {f"licences/{one.file}": f"{one.name}\n" for one in listed}
    texts["NOTICES.txt"] = "This release also contains parts of:\n" + "".join(
        f"\n{one.name}\n{one.what}\nIn: {one.where}\nLicence: {one.licence}, licences/{one.file}\n" for one in listed
    )
    packs = {"sm_90": Path("nvidia-sm_90.pack"), "gfx942": Path("amd-gfx942.pack")}
    urls = {"Source": "https://git.example.org/kiln", "Issue tracker": "https://git.example.org/kiln/issues"}
    return wheel.Contents("0.1.0b+full", (*packs,), {}, {}, packs, texts, bill=bill.of_release(FACTS), urls=urls)


def test_a_wheel_states_what_is_in_it(whole):
    """Its own parts, and not the release's: licences, texts, bill of materials."""
    texts = {"sm_90": "libdevice.txt", "gfx942": "rocm-device-libs.txt"}
    licences = {"sm_90": "MIT AND LicenseRef-NVIDIA-CUDA-Toolkit-EULA", "gfx942": "MIT AND NCSA"}
    for target, text in texts.items():
        made = wheel.images_wheel(whole, target)
        fields = described(made)
        assert fields.license_expression == licences[target]
        assert canonicalize_license_expression(fields.license_expression) == fields.license_expression
        assert {*fields.license_files} == {*made.licences} == {
            "LICENSE", "NOTICES.txt", "licences/triton.txt", f"licences/{text}",
        }  # fmt: skip
        assert made.licences["NOTICES.txt"].count("Licence: ") == 2 and "zstd" not in made.licences["NOTICES.txt"]
        assert made.licences["NOTICES.txt"].startswith("This package also contains parts of:\n\nTriton\n")
        assert fields.project_urls == whole.urls
        name = f"kiln-images-{target.replace('_', '-')}"
        (path, data) = next(member for member in made.members() if "/sboms/" in member[0])
        assert path == f"{name.replace('-', '_')}-0.1.0b0+full.dist-info/sboms/{name}.cdx.json"
        found = accepted(data)
        assert (found.metadata.component.name, found.metadata.component.version) == (name, "0.1.0b0+full")
    for made in (wheel.cli_wheel(whole, ROOT), wheel.recipe_wheel(whole, ROOT), verb.build_wheel(whole)):
        fields = described(made)
        assert (fields.license_expression, fields.license_files) == ("MIT", ["LICENSE"]), made.name
        assert [
            one.name for one in accepted(made.bills[f"{made.name}.cdx.json"]).components if one.name == "zstd"
        ] == []


def test_what_the_runtime_is_made_of(whole):
    more = bill.parts_of(notices.read(ROOT, "extension.yaml"), LOCK, ())
    texts = {**whole.texts, "licences/nanobind.txt": "", "licences/robin-map.txt": ""}
    files = ["kiln/lib/libkiln.so.0", "kiln/_core.abi3.so", "kiln/flash/recipe.yaml"]
    made = Material.of(wheel.RUNTIME, whole.version, files, whole.bill, texts, more)
    names = {one.name for one in accepted(made.bills["kiln-runtime.cdx.json"]).components}
    assert {"Monocypher", "zstd", "nanobind", "robin-map"} <= names and not {"libdevice", "construct"} & names
    assert made.licence.startswith("MIT AND BSD-3-Clause AND (BSD-2-Clause OR CC0-1.0) AND ")
    assert "NVIDIA" not in made.licence and "licences/libdevice.txt" not in made.texts
    with pytest.raises(ArtifactError, match=r"names licences/glibc.txt, which the release does not have"):
        Material.of(wheel.RUNTIME, whole.version, files, whole.bill, {"LICENSE": "", "NOTICES.txt": ""}, ())


def test_equal_wheels_have_equal_bytes(whole, tmp_path):
    made = [wheel.images_wheel(whole, "sm_90"), wheel.cli_wheel(whole, ROOT)]
    (tmp_path / "nvidia-sm_90.pack").write_bytes(b"a pack")
    made[0].files["kiln/lib/kiln.images/nvidia-sm_90.pack"] = b"a pack"
    for one in made:
        first = write_wheel(one, tmp_path).read_bytes()
        assert write_wheel(one, tmp_path).read_bytes() == first


def test_addresses_and_keys_of_wheels(tmp_path, monkeypatch, capsys):
    words = ["wheel", str(small_release().tarball), str(tmp_path / "wheels")]
    for given in ("Source", "Source=ftp://x", "=https://x", f"{'x' * 33}=https://x", "A=https://x y"):
        assert cli.main([*words, "--url", given]) == 2
        assert f"--url {given!r} is not a label and an address; give for example" in capsys.readouterr().err
    assert cli.main([*words, "--password", "x"]) == 2
    assert "--password is that of a key; give the key with --sign" in capsys.readouterr().err
    keys = minisign_keys.make(tmp_path)
    made = tmp_path / "wheels" / "kiln_cli-0.1.0b0-py3-none-any.whl"

    def make(*_arguments: object) -> tuple[list[Path], list[str], list[str]]:
        made.parent.mkdir(exist_ok=True)
        small = Wheel("kiln-cli", "0.1.0b0", "py3-none-any", "kiln", "Name: kiln-cli\n", {})
        return [write_wheel(small, made.parent)], [], []

    monkeypatch.setattr(verb, "_make", make)
    assert cli.main([*words, "--sign", str(keys.secret)]) == 0
    listed = made.with_name("kiln-0.1.0b0-wheels.sha256")
    assert capsys.readouterr().out.split() == [str(made), str(listed), f"{listed}.minisig"]
    assert cli.main(["verify", str(made.parent), "--key", str(keys.public)]) == 0
    (tmp_path / "wheels/kiln_cli-9-py3-none-any.whl").write_text("another build's")
    assert cli.main([*words, "--sign", str(keys.secret)]) == 2
    assert "give a folder with the wheels of one build" in capsys.readouterr().err
