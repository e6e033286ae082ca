"""What `kiln diff` says of two releases: the most important first, and nothing of two that are the same."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from kiln_build import cli
from kiln_build.artifacts import manifest_model
from kiln_build.difference import combinations, compare, images, page, show, side, tables
from kiln_build.difference.compare import Difference
from kiln_build.difference.images import Facts, Place
from kiln_build.difference.side import File, Side
from kiln_build.difference.tables import Bin, Choice, Family, Table
from kiln_build.pages.document import begin
from kiln_recipe.errors import ArtifactError
from kiln_recipe.images import elf_file
from small_release import linked_release, small_release

ROOT = Path(__file__).resolve().parents[1]


# ---- images ----


def of(configuration: str, functional: str = "dtype=bf16", specialization: str = "aligned") -> Place:
    return Place("attn_fwd/attn_fwd", functional, configuration, specialization)


def test_images_are_paired_by_what_they_are_of():
    limited, free, other = of("BLOCK_M=64 maxnreg=128"), of("BLOCK_M=64"), of("BLOCK_M=32")
    taken = [Facts(registers, 0, 0, 4, blocks) for registers, blocks in ((128, 4), (168, 3), (64, 8))]
    found = list(images.pairs({limited: taken[0], other: taken[2]}, {free: taken[1], other: taken[2]}))
    assert [(one.old_place, one.place) for one in found] == [(limited, free), (other, other)]
    (worse,) = found[0].worse("x", "before")
    assert (worse.measure, worse.change) == ("blocks", (4, 3)) and found[1].worse("x", "before") == []
    assert worse.sentence == "x: blocks a multiprocessor: 3, before 4; registers: 168, before 128 (before)"


def row(configuration: str, functional: str = "dtype=bf16", image: str | None = "a", **facts) -> dict:
    """A variant's row as releases have it; facts by default those of a block of 4 warps on sm_90."""
    found = {
        "target": "sm_90", "kernel": "flash.attn_fwd/attn_fwd", "functional": functional, "key": "0" * 64,
        "configuration": configuration, "specialization": "aligned", "image": image, "unavailable": None,
    }  # fmt: skip
    if image is None:
        return found | facts
    taken = {"registers": 128, "spills": 0, "shared": 57344, "threads": 128, "bytes": 1000}
    return found | taken | facts


def made(*rows: dict, **fields) -> Side:
    targets = list(dict.fromkeys(one["target"] for one in rows if one["image"]))
    return Side(Path("x.tar.gz"), "tarball", "0.1.0b", targets=targets, rows=list(rows), **fields)


def lines_of(found: Difference) -> list[str]:
    return list(show.text(found))


def test_equal_code_that_is_launched_with_other_memory_is_another_image():
    found = compare.compare(made(row("BLOCK_M=64")), made(row("BLOCK_M=64", shared=16384)))
    assert [(one.before[0].shared, one.after[0].shared) for one in found.images] == [(57344, 16384)]
    assert not found.is_empty and "1 other image changed" in show.verdict(found)


def test_a_lost_occupancy_and_a_new_spill_stand_in_the_first_lines():
    """Behind forty combinations that were gained, a header and a file."""
    more = [row("BLOCK_M=64", f"dtype=bf16 head_dim={n}", f"m{n}") for n in range(40)]
    before = made(row("BLOCK_M=64 maxnreg=128"), row("BLOCK_M=32", image="b"), headers={"kiln/a.h": b"int a;\n"})
    after = made(
        *more, row("BLOCK_M=64", image="c", registers=168), row("BLOCK_M=32", image="d", spills=16),
        headers={"kiln/a.h": b"int b;\n"}, files={"lib/x": File(1, "e")},
    )  # fmt: skip
    found = compare.compare(before, after)
    lines = lines_of(found)
    assert lines[1].startswith("differ: 1 image holds fewer blocks, 1 image spills more, 40 combinations gained")
    assert lines[3] == "images that became worse: 2"
    assert "4 -> 3" in lines[5] and "128 -> 168" in lines[5] and "dtype=bf16 [BLOCK_M=64][aligned]" in lines[5]
    assert "0 -> 16" in lines[6]
    first = "".join(page.page(found)).partition("<h2")[2]
    assert first.startswith(' id="part-images-that-became-worse-2" class="worse">Images that became worse (2)</h2>')
    json.dumps(show.document(found))


def test_a_share_that_the_ledger_knows_counts():
    before, after = made(row("A=1", key="1" * 64)), made(row("A=1", image="b", key="2" * 64))
    known = {"1" * 64: 433, "2" * 64: 400}
    found = compare.compare(before, after, lambda _family, _target, key: known.get(key))
    assert [one.measure for one in found.images[0].worse] == ["share"]
    assert "0.433 -> 0.400" in lines_of(found)[5]
    assert compare.compare(before, after).images[0].sort == "code"


def test_what_is_neither_better_nor_worse_is_told_apart():
    cases = {"code": {}, "other": {"registers": 127}, "better": {"registers": 64, "shared": 0}}
    for sort, facts in cases.items():
        found = compare.compare(made(row("A=1")), made(row("A=1", image="b", **facts)))
        assert [one.sort for one in found.images] == [sort]
    gone = compare.compare(made(row("A=1")), made(row("A=1", image=None, unavailable="ptxas crashes"), row("A=2")))
    assert gone.images[0].sort == "worse" and gone.images[0].worse[0].clause.startswith("has no image")


# ---- combinations ----

HEAD_DIM = Choice("head_dim", ("64", "80", "128"), (0, 2, 2))


def test_what_serves_a_combination_instead_is_named():
    full = made(*(row("A=1", f"head_dim={n}", str(n)) for n in (64, 80, 128)))
    family = Family("flash", "x", {"attn_fwd": (HEAD_DIM,)}, ())
    core = made(*(row("A=1", f"head_dim={n}", str(n)) for n in (64, 128)), families={"flash": family})
    (one,) = combinations.compare(full, core)
    assert (one.functional, one.is_lost, one.instead, one.sort) == ("head_dim=80", True, "head_dim=128", "elsewhere")
    (one,) = combinations.compare(core, full)
    assert (one.is_lost, one.instead) == (False, "head_dim=128")
    core.families, core.rules = {}, [
        {"target": "sm_90", "kernel": "flash.attn_fwd/attn_fwd", "reason": "not here", "variants": 1,
         "where": {"head_dim": ["80", "96"]}}
    ]  # fmt: skip
    (one,) = combinations.compare(full, core)
    assert (one.sort, one.reason) == ("lost", "not here")
    some = core.rules[0] | {"reason": "no rule chooses it", "configurations": ["A=2"]}
    core.rules = [some, *core.rules, core.rules[0] | {"reason": "head_dim=80 is in the full profile only"}]
    assert combinations.compare(full, core)[0].reason == "head_dim=80 is in the full profile only"
    core.rules.pop()
    assert combinations.compare(full, core)[0].reason == "not here"


def test_another_implementation_serves_what_one_no_longer_does():
    general, hopper = (f"flash.attn_fwd/attn_fwd.{name}" for name in ("general", "hopper"))
    both = made(row("A=1", kernel=hopper), row("A=1", "dtype=bf16 padded=true", kernel=general, image="g"))
    left = made(row("A=1", "dtype=bf16 padded=true", kernel=general, image="g"))
    (one,) = combinations.compare(both, left)
    assert (one.kernel, one.instead) == (hopper, "attn_fwd.general")
    assert combinations.spell(["a=1 b=1", "a=2 b=1"]) == "a=1,2 b=1"
    assert combinations.spell(["a=1 b=1", "a=2 b=2"]) == "some of a=1,2 b=1,2"


# ---- look-ups ----


def table(edges: tuple[int, ...], lookup: list[int], **other) -> Table:
    parts = {
        "kernel": "attn_fwd/attn_fwd", "target": "sm_90", "serves": "", "bins": (Bin("queries", edges),),
        "choices": (Choice("dtype", ("fp16", "bf16"), (0, 1)),), "configurations": ("A=1", "A=2"),
        "lookup": bytes(lookup),
    }  # fmt: skip
    return Table(**{**parts, **other})


def rechosen(before: Table, after: Table) -> Difference:
    sides = [made(row("A=1"), families={"flash": Family("flash", "x", {}, (one,))}) for one in (before, after)]
    return compare.compare(*sides)


def test_look_ups_are_compared_where_both_choose():
    found = rechosen(table((65,), [0, 0, 0, 255]), table((65,), [0, 1, 0, 0]))
    assert [one[2:] for one in found.tables] == [("dtype=fp16", "queries >= 65", "A=1", "A=2")]


def test_look_ups_with_other_edges_are_compared_over_common_parts():
    found = rechosen(table((65,), [0, 1, 0, 1]), table((65, 1025), [0, 0, 1, 0, 1, 1]))
    assert [one[2:] for one in found.tables] == [("dtype=fp16", "queries >= 65, queries < 1025", "A=2", "A=1")]
    same = rechosen(table((65,), [0, 1, 0, 1]), table((65, 1025), [0, 1, 1, 0, 1, 1]))
    assert same.is_empty


def test_look_ups_by_other_bins_are_said_not_to_be_comparable():
    found = rechosen(table((65,), [0] * 4), table((65,), [0] * 4, bins=(Bin("keys", (65,)),)))
    assert found.table_notes == ["flash.attn_fwd/attn_fwd on sm_90 is chosen by keys, before by queries"]
    found = rechosen(table((65,), [0] * 4), table((65,), [0] * 4, serves="k >= 64"))
    assert found.table_notes == ["flash.attn_fwd/attn_fwd on sm_90 serves k >= 64, before all calls"]


LIBRARY = """
#include "kiln/family.h"
static const int64_t head_dims[] = {64, 80, 128};
static const char* const spellings[] = {"64", "80", "128"};
static const int32_t served[] = {0, 2, 2};
static const kiln_choice_table choices[] = {{"head_dim", 0, KILN_MATCH_NEXT_LARGER, 3, head_dims, spellings, served}};
static const int32_t own[] = {0};
static const int64_t edges[] = {65, 1025};
static const kiln_bin_table bins[] = {{"queries", 0, edges, 2}};
static const char* const names[] = {"A=1", "A=2"};
static const uint8_t lookup[] = {0, 0, 1, 255, 255, 255, 1, 1, 0};
static const uint8_t zero[9];
static const kiln_kernel_target_table targets[] = {{"sm_90", 2, 0, 0, names, lookup}, {"gfx942", 1, 0, 0, names, zero}};
static const kiln_kernel_table kernels[] = {
    {.name = "attn_fwd", .implementation = "hopper", .serves_text = "k >= 64", .choices = own, .choice_count = 1,
     .bins = bins, .bin_count = 1, .targets = targets, .target_count = 2}};
static const kiln_operation_table operations[] = {
    {.name = "attn_fwd", .choices = choices, .choice_count = 1, .kernels = kernels, .kernel_count = 1}};
static const kiln_family tables = {sizeof(kiln_family), KILN_FAMILY_ABI, 1, 0, 0, "toy", "0.1.0b", operations, 0};
__attribute__((visibility("default"))) const kiln_family* kiln_toy_family(void) { return &tables; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("library")
    (folder / "toy.c").write_text(LIBRARY)
    flags = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-I", str(small_release().stage / "include")]
    subprocess.run(["gcc", *flags, "toy.c", "-o", "libkiln_toy.so"], cwd=folder, check=True)
    return (folder / "libkiln_toy.so").read_bytes()


def test_a_librarys_look_ups_are_read_from_its_file(library):
    """As the C compiler lays family.h out: the structures here are held against the header itself."""
    family = tables.read(library, "toy")
    assert (family.name, family.version, family.choices) == ("toy", "0.1.0b", {"attn_fwd": (HEAD_DIM,)})
    one, other = family.tables
    assert (one.kernel, one.target, one.serves) == ("attn_fwd/attn_fwd.hopper", "sm_90", "k >= 64")
    assert one.bins == (Bin("queries", (65, 1025)),) and one.configurations == ("A=1", "A=2")
    assert dict(one.rows()) == {
        "head_dim=64": b"\0\0\1", "head_dim=80": b"\xff\xff\xff", "head_dim=128": b"\1\1\0"
    }  # fmt: skip
    assert (other.target, other.configurations, other.lookup) == ("gfx942", ("A=1",), bytes(9))
    assert tables.symbols(library) == ["kiln_toy_family"]


def test_a_library_of_another_abi_or_without_tables_is_refused_in_a_sentence(library):
    header = int.to_bytes(56, 8, "little") + int.to_bytes(tables.ABI, 4, "little")
    assert library.count(header) == 1
    newer = library.replace(header, header[:8] + int.to_bytes(99, 4, "little"))
    with pytest.raises(ArtifactError, match="of ABI 99; this Kiln reads"):
        tables.read(newer, "toy")
    with pytest.raises(ArtifactError, match="no tables of the family other"):
        tables.read(library, "other")


def test_no_damage_of_a_library_is_more_than_a_sentence(library):
    draw = random.Random(20)
    read = 0
    for _ in range(600):
        damaged = bytearray(library)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        try:
            tables.read(bytes(damaged[: draw.choice((None, None, draw.randrange(len(damaged))))]), "toy")
            tables.symbols(bytes(damaged))
            read += 1
        except ArtifactError:
            pass
    assert 0 < read < 600


def test_an_empty_table_of_symbols_whose_names_are_nowhere():
    header = bytearray(b"\x7fELF\x02\x01".ljust(128, b"\0"))
    struct.pack_into("<Q", header, 40, len(header))
    struct.pack_into("<HHHHH", header, 54, 56, 0, 64, 2, 0)
    dynamic = elf_file.SECTION.pack(0, 11, 0, 0, 64, 0, 99, 0, 0, elf_file.SYMBOL.size)
    with pytest.raises(ArtifactError, match="its symbols are malformed"):
        tables.symbols(bytes(header) + elf_file.SECTION.pack(*[0] * 10) + dynamic)


# ---- releases ----


def diff(*words: object) -> int:
    return cli.main(["diff", *map(str, words)])


def test_a_release_is_the_same_as_itself_and_as_what_it_was_unpacked_to(capsys):
    release = small_release()
    assert diff(release.tarball, release.tarball) == 0
    assert diff(release.tarball, release.stage) == 0
    assert capsys.readouterr().out.splitlines()[1] == "the same"


def test_what_surrounds_the_images_is_compared(tmp_path, capsys):
    assert diff(small_release().tarball, linked_release().tarball, "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["same"] and not said["images"] and not said["combinations"]
    (library,) = [one for one in said["files"] if "libother.so.2" in one["path"]]
    assert library["before"] is None and library["others"] == ["lib/other/1.0/lib/libother.so.2"]
    written = tmp_path / "page.html"
    assert diff(small_release().tarball, linked_release().tarball, "--html", written) == 1
    assert written.read_text().startswith(begin(page.COMMAND))


def test_a_target_whose_pack_was_removed_is_lost(tmp_path, capsys):
    folder = tmp_path / "kiln"
    shutil.copytree(small_release().stage, folder, symlinks=True)
    (folder / "lib/kiln.images/nvidia-sm_90.pack").unlink()
    assert diff(small_release().tarball, folder) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("differ: 1 target lost") and lines[5].split() == [
        "sm_90",
        "its",
        "pack",
        "is",
        "missing",
    ]


def test_headers_and_symbols(capsys):
    before = side.open_side(small_release().tarball)
    after = dataclasses.replace(before, headers=dict(before.headers), symbols=dict(before.symbols))
    after.headers["kiln/kiln.h"] = before.headers["kiln/kiln.h"] + b"/* more */\n"
    after.symbols = {path: [*names, "kiln_new"] for path, names in before.symbols.items()}
    assert "kiln_version" in before.symbols["lib/libkiln.so.0"]
    text = "\n".join(lines_of(compare.compare(before, after)))
    assert "kiln/kiln.h  changed  +1 -0" in text and "kiln_new" in text


def wheel(folder: Path, target: str, release, version: str = "0.1.0b0") -> None:
    folder.mkdir(exist_ok=True)
    pack = release.packs[target]
    with zipfile.ZipFile(folder / f"kiln_images_{target}-{version}-py3-none-any.whl", "w") as archive:
        archive.write(pack, f"kiln/lib/kiln.images/{pack.name}")
        archive.writestr(f"kiln_images_{target}-{version}.dist-info/METADATA", f"Version: {version}\n")


def test_wheels_are_compared_with_wheels_and_with_a_release(tmp_path, capsys):
    release = small_release()
    wheel(tmp_path / "a", "gfx942", release)
    wheel(tmp_path / "b", "gfx942", release)
    wheel(tmp_path / "b", "sm_90", release)
    assert diff(tmp_path / "a", tmp_path / "a") == 0
    assert diff(tmp_path / "a", tmp_path / "b") == 1
    assert "1 target gained" in capsys.readouterr().out
    assert diff(release.tarball, tmp_path / "a", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert [one["target"] for one in said["targets"]["lost"]] == ["sm_90"] and not said["images"]
    wheel(tmp_path / "b", "sm_90", release, "0.2.0")
    assert diff(tmp_path / "a", tmp_path / "b") == ArtifactError.exit_code
    assert "keep each build's in a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "`kiln diff` lacks before, after"),
        (("{tarball}", "/nowhere"), 7, "/nowhere"),
        (("{tarball}", "{image}"), 2, "is a single image"),
        (("{tarball}", "{tarball}", "--ledger", "/nowhere"), 7, "--ledger /nowhere is not a folder"),
        (("{tarball}", "{tarball}", "--html", "{tarball}"), 2, "exists and is not a page of `kiln diff`"),
        (("{tarball}", "{text}"), 6, "is not a release, a pack or an image"),
    ],
)
def test_mistakes_are_one_sentence(words, code, said, tmp_path, capsys):
    (tmp_path / "text").write_text("no release")
    image = small_release().images / "gfx942-256-fp16"
    filled = [word.format(tarball=small_release().tarball, image=image, text=tmp_path / "text") for word in words]
    assert diff(*filled) == code
    captured = capsys.readouterr()
    assert said in captured.err and not captured.out and "Traceback" not in captured.err


def test_the_manifest_is_what_a_release_states(tmp_path):
    before = side.open_side(small_release().stage)
    assert before.stated["commit"] == "1" * 40 and before.stated["gfx942: triton"] == "3.8.0"
    assert before.files[manifest_model.INSPECTOR].bytes > 0 and before.targets == ["gfx942", "sm_90"]
