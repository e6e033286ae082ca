"""The manifest: says what lies in the stage and in the packs, canonically, and by its schema."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from kiln_build.artifacts import manifest, pack
from kiln_build.artifacts.manifest_model import DescriptorRow
from kiln_build.native import native
from kiln_build.release import build, release
from kiln_recipe import shape
from kiln_recipe.compile import lock
from kiln_recipe.errors import ArtifactError
from kiln_recipe.images.image import DescriptorInfo
from kiln_recipe.plan.model import CompileSpec, Variant
from small_release import ROOT, VERSION, small_release


def make(**changes) -> manifest.Manifest:
    inputs = dataclasses.replace(small_release().inputs, **changes)
    return manifest.make_manifest(inputs, small_release().stage, release.PLATFORM)


def test_says_what_is_there():
    made = make()
    assert (made.kiln, made.format, made.platform) == (VERSION, 2, "manylinux_2_28_x86_64")
    stage = small_release().stage
    for file in made.files:
        path = stage / file.path
        if file.link:
            assert os.readlink(path) == file.link
        else:
            data = path.read_bytes()
            assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    listed = {file.path for file in made.files}
    there = {p.relative_to(stage).as_posix() for p in stage.rglob("*") if not p.is_dir()}
    assert listed == there - {"share/kiln/manifest.json"}
    for target, row in zip(("gfx942", "sm_90"), made.targets):
        index = pack.read_pack(small_release().packs[target])
        assert (row.name, row.index, row.functionals) == (target, index.index_digest, 2)
        assert (row.variants, row.images, row.unavailable, row.left_out) == (8, 4, 1, 4)
        assert [rule for rule in made.left_out if rule.target == target] == [
            manifest.LeftOut(
                target=target,
                kernel="toy.scale/scale",
                where={"dtype": ("fp32",)},
                reason=reason,
                variants=2,
                configurations=(configuration,),
            )
            for reason, configuration in (
                ("not in this build", "BLOCK=256 num_warps=4"),
                ("too large", "BLOCK=1024 num_warps=4"),
            )
        ]
        assert row.verified == "compiled, not run"
        images = [image for image in made.images if image.target == target]
        assert len(images) == 4 and all(image.registers > 0 and image.threads % 32 == 0 for image in images)
        assert all((image.ptx_bytes is None) == (target == "gfx942") for image in images)
        variants = [variant for variant in made.variants if variant.target == target]
        assert len({variant.key for variant in variants}) == 8
        assert [v.unavailable for v in variants if v.image is None] == ["not on this GPU"]
        assert {v.image for v in variants if v.image} == {image.sha256 for image in images}
    nvidia = made.targets[1]
    assert (nvidia.assembler, nvidia.abi, nvidia.ptx_version, nvidia.lowest_driver) == ("ptxas", 7, "8.0", "525")


def test_the_order_of_the_slots_gives_their_names():
    rows = [v for v in make().variants if v.target == "sm_90"]
    expected = [
        (f"dtype={dtype}", f"BLOCK={block} num_warps=4", specialization)
        for dtype in ("fp16", "bf16")
        for block in (256, 1024)
        for specialization in ("aligned", "generic")
    ]
    assert [(v.functional, v.configuration, v.specialization) for v in rows] == expected
    for row in rows:
        words = (row.functional.partition("=")[2], row.configuration.split()[0].partition("=")[2], row.specialization)
        assert row.key == hashlib.sha256(f"sm_90 {' '.join(words)}".encode()).hexdigest()


def described(version: str = "8.6") -> manifest.Manifest:
    """The small release's manifest, had one of its images descriptors and a PTX version of its own."""
    inputs = small_release().inputs
    the_pack = inputs.packs["sm_90"]
    first, *others = the_pack.images
    info = dataclasses.replace(first.info, descriptors=(DescriptorInfo(9, 3, (128, 64)),))
    changed = dataclasses.replace(the_pack, images=(dataclasses.replace(first, info=info), *others))
    return make(packs={**inputs.packs, "sm_90": changed}, ptx_versions={first.digest: version, others[0].digest: "8.0"})


def test_descriptors_and_ptx_versions_are_said_where_they_are_not_the_usual():
    assert make().format == 2
    made = described()
    assert made.format == 3
    first, *others = [image for image in made.images if image.target == "sm_90"]
    assert first.ptx_version == "8.6" and first.descriptors == (DescriptorRow(9, 3, (128, 64)),)
    assert all(image.ptx_version == "" and image.descriptors is None for image in others)
    assert first.abi == 0 and '"abi": 8' not in manifest.encode(made).decode()
    newer = described("9.0")  # which the newer assembler makes
    assert [image.abi for image in newer.images if image.target == "sm_90"] == [8, 0, 0, 0]
    assert manifest.encode(manifest.read(manifest.encode(newer), "m")) == manifest.encode(newer)
    data = manifest.encode(made)
    assert b'"descriptors": [{"box": [128, 64], "element_type": 9, "swizzle": 3}]' in data
    assert manifest.encode(manifest.read(data, "m")) == data
    _follows(json.loads(data), manifest.schema(), manifest.schema())
    for other in (
        data.replace(b'"format": 3', b'"format": 2'),
        manifest.encode(make()).replace(b'mat": 2', b'mat": 3'),
    ):
        with pytest.raises(ArtifactError, match=r"has format \d; what it says has \d"):
            manifest.read(other, "m")


def test_families_are_named_where_attention_is_left_out():
    made = make(families=("norm", "silu"))
    data = manifest.encode(made)
    assert made.format == 4 and b'\n "families": ["norm", "silu"],\n' in data
    read = manifest.read(data, "m")
    assert read["families"] == ["norm", "silu"] and manifest.encode(read) == data
    with pytest.raises(ArtifactError, match="has format 2; what it says has 4"):
        manifest.read(data.replace(b'"format": 4', b'"format": 2'), "m")


def test_canonical_and_read_back():
    data = manifest.encode(make())
    assert data == manifest.encode(manifest.read(data, "m")) == manifest.encode(make())
    document = json.loads(data)
    assert list(document) == sorted(document)
    lines = data.decode().splitlines()
    assert sum('"functional": "dtype=bf16"' in line for line in lines) == 8, "a variant a line"
    assert not data.decode().count("/tmp") and "site" not in data.decode()


def test_one_change_is_one_line(tmp_path):
    before = manifest.encode(make()).decode().splitlines()
    stage = shutil.copytree(small_release().stage, tmp_path / "stage", symlinks=True)
    (stage / "include/kiln/kiln.h").write_text("changed")
    after = manifest.encode(manifest.make_manifest(small_release().inputs, stage, release.PLATFORM))
    differing = [line for line in after.decode().splitlines() if line not in before]
    assert len(differing) == 1 and "include/kiln/kiln.h" in differing[0]


def test_a_manifest_follows_its_schema():
    schema = manifest.schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    _follows(json.loads(manifest.encode(make())), schema, schema)
    json.dumps(schema)


def _follows(value, rule, schema) -> None:
    """The part of JSON schema that shape.py writes."""
    if "$ref" in rule:
        rule = schema["$defs"][rule["$ref"].rpartition("/")[2]]
    if "anyOf" in rule:
        rule = next(r for r in rule["anyOf"] if (r.get("type") == "null") == (value is None))
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    assert isinstance(value, kinds[rule["type"]]), (value, rule)
    if rule["type"] == "object" and "properties" not in rule:
        for item in value.values():
            _follows(item, rule["additionalProperties"], schema)
    elif rule["type"] == "object":
        assert set(rule["required"]) <= set(value) <= set(rule["properties"])
        assert rule["additionalProperties"] is False
        for name, item in value.items():
            _follows(item, rule["properties"][name], schema)
    for item in value if rule["type"] == "array" else ():
        _follows(item, rule["items"], schema)
    assert rule["type"] != "integer" or value >= rule.get("minimum", 0)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b'"kiln": "0.1.0b"', b'"kiln": 1', r"in line [0-9]+: kiln is 1; it must be text"),
        (b'"profile"', b'"profil"', "profil"),
        (b'"variants": 8', b'"variants": -1', r"targets\[0\].variants is -1; it must be from 0"),
        (b'{\n "files"', b"{\n x", "is malformed: it lacks the field 'files'"),
        (b'"dirty": false', b'"dirty": 0', "source.dirty is 0; it must be true or false"),
        (b'"ptx": true', b'"ptx": NaN', "ptx is nan; it must be true or false"),
        (b'"abi": 7', b'"abi": 1e9', "abi is 1000000000.0; it must be a whole number"),
        (b'"abi": 7', b'"abi": ' + b"9" * 4000, "abi is a number beyond 64 bits; it must be from 0"),
        (b'"abi": 7', b'"abi": ' + b"9" * 300000, "the limit is 262144"),
        (b'"abi": 7', b'"abi": ' + b"[" * 60000, "is not valid JSON in line"),
        (b'"vendor": "amd"', b'"vendor": "amd", "vendor": "amd"', "is not written as Kiln writes it"),
        (b'"vendor": "amd"', b'"vendor": ["amd"]', "vendor is a list; it must be text"),
        (b'"vendor": "amd"', b'"vendor": "../amd"', "vendor is '../amd'; it must match"),
        (b'"runs_on": ["gfx942"]', b'"runs_on": "gfx942"', "runs_on is 'gfx942'; it must be a list"),
        (b'"source": {', b'"source": ["a"], "x": {', "is not valid JSON"),
        (b"not on this GPU", b"not on\xff this", "is not valid JSON .*decode byte"),
        (b"not on this GPU", b"\\ud800", r"'\\ud800'; it must be a line without control characters"),
        (b"not on this GPU", b"\\u001b[31m", r"'\\x1b\[31m'; it must be a line without control characters"),
        (b"not on this GPU", "\u202edrawkcab".encode(), "it must be a line without control characters"),
        (b"not on this GPU", b"x" * 5000, "has 5000 characters; it can have 4096"),
        (b'"include/kiln/kiln.h"', b'"include/' + b"a/" * 16 + b'b"', "such a name is not allowed"),
        (b'"nvidia-sm_90.pack"', b'"amd-gfx942.pack"', "names a pack twice in its table 'targets'"),
        (b'"include/kiln/kiln.h"', b'"../kiln.h"', "names the file '../kiln.h'; such a name is not allowed"),
        (b'"include/kiln/family.h"', b'"include/kiln/kiln.h"', "has include/kiln/kiln.h twice in its table 'files'"),
        (b'"link": "libkiln.so.0"', b'"link": "/lib/libc.so"', "link is '/lib/libc.so'; it must match"),
        (b'  {"bytes"', b'  {"bytes" ', "is not written as Kiln writes it, in line 3"),
        (b"}\n", b"}\r\n", "is not written as Kiln writes it"),
        (
            b'"unavailable": "not',
            b'"image": null, "unavailable": "not',
            "image is the default value null; leave the field out",
        ),
    ],
)
def test_strict(before, after, message):
    data = manifest.encode(make())
    assert before in data
    with pytest.raises(ArtifactError, match=message):
        manifest.read(data.replace(before, after, 1), "m")


@pytest.mark.parametrize("cut", [1, 2, 3, 1000])
def test_a_cut_manifest(cut):
    with pytest.raises(ArtifactError, match="^m: its manifest is"):
        manifest.read(manifest.encode(make())[:-cut], "m")


def test_without_images():
    made = make(packs={})
    assert made.images == made.variants == made.left_out == ()
    assert [(row.pack, row.index, row.variants) for row in made.targets] == [(None, None, 0)] * 2
    assert manifest.read(manifest.encode(made), "m") == shape.plain(made)


def test_only_what_ran_counts_as_verified(tmp_path):
    keys = [v.key for v in make().variants if v.target == "sm_90"]
    (tmp_path / "h200.json").write_text(
        json.dumps({"device": "NVIDIA H200", "driver": "580.95.05", "by": "image", "keys": [*keys[:3], "0" * 64]})
    )
    (tmp_path / "h200-more.json").write_text(
        json.dumps({"device": "NVIDIA H200", "driver": "580.95.05", "by": "image", "keys": keys[2:5]})
    )
    (tmp_path / "ptx.json").write_text(
        json.dumps({"device": "NVIDIA H200", "driver": "580.95.05", "by": "ptx", "keys": keys[:1]})
    )
    made = make(verifications=manifest.load_verifications(tmp_path))
    assert [row.verified for row in made.targets] == [
        "compiled, not run",
        "run on NVIDIA H200, driver 580.95.05: 5 of 7 variants tested, all correct, 2 untested; "
        "PTX run on NVIDIA H200, driver 580.95.05: 1 of 7 variants tested, all correct, 6 untested",
    ]
    assert manifest.load_verifications(tmp_path / "nowhere") == ()
    (tmp_path / "bad.json").write_text('{"device": 1}')
    with pytest.raises(ArtifactError, match=r"bad\.json is not the result of a GPU run"):
        manifest.load_verifications(tmp_path)


def test_waivers_used_and_unused():
    spec = CompileSpec("k.py", "k", "0", (), (), (), "gfx1100", ())

    def variant(number: int, waiver: str | None) -> Variant:
        fields = {field.name: None for field in dataclasses.fields(Variant)}
        fields |= {"family": "flash", "operation": "fwd", "kernel": "main", "functional": f"f={number}"}
        fields |= {"configuration": "c", "specialization": "s", "target": "gfx1100", "slot": number}
        return Variant(**(fields | {"spec": spec, "spill_allowance": 0, "waiver": waiver}))

    variants = [
        variant(0, None),
        variant(1, "slow compiler"),
        variant(2, "slow compiler"),
        variant(3, "too many spills"),
    ]
    made = manifest.summarize_waivers(variants, {variants[1].name})
    assert [(w.kernel, w.reason, w.covers, w.missing) for w in made] == [
        ("flash.fwd/main", "slow compiler", 2, 1),
        ("flash.fwd/main", "too many spills", 1, 0),
    ]


def test_tools_of_several_tritons_are_told_apart():
    toolchains = dict(small_release().inputs.toolchains)
    other = dataclasses.replace(toolchains["sm_90"], triton_version="3.9.0")
    made = make(toolchains=toolchains | {"sm_90": other})
    assert [tool.version for tool in made.tools if tool.name == "triton"] == ["3.8.0", "3.9.0"]
    assert len([tool for tool in made.tools if tool.name == "triton's ptxas"]) == 2
    assert len([tool for tool in make().tools if tool.name == "triton's ptxas"]) == 1
    assert made.targets[0].toolchain != made.targets[1].toolchain
    assert msgspec.to_builtins(made)["tools"][-1]["name"] == "zig"


def test_tools_that_made_the_libraries_stand_with_the_locked_digests():
    the_lock = lock.read_lock(ROOT / "input" / lock.LOCK_NAME)
    version = the_lock.wheel_of("ziglang", "3.12").name.split("-")[1]
    tools = build.made_by(native.zig_compiler("python3", Path("zig"), version), the_lock)
    digests = {tool.name: tool.sha256 for tool in tools}
    assert digests == {
        "compiler": the_lock.wheel_of("ziglang", "3.12").sha256,
        "zstandard's source": the_lock.source_of("zstandard").sha256,
        "pymonocypher's source": the_lock.source_of("pymonocypher").sha256,
        "zstandard": None,
        "deflate": None,
    }
    assert {the_lock.wheel_of("ziglang", python).sha256 for python in the_lock.pythons} == {digests["compiler"]}
    made = make(tools=tools)
    assert manifest.read(manifest.encode(made), "m") == shape.plain(made)
    assert made.tools[-len(tools) :] == tools
