"""The ledger of images: keys, updates, what got worse, samples. Kernels of a small family are really compiled."""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kiln_build import cli
from kiln_build.cli import ledger as cli_ledger
from kiln_build.difference.images import Facts, Place, Was, Worse
from kiln_build.farm import farm
from kiln_build.farm.options import FarmOptions
from kiln_build.ledger import file as ledger_file
from kiln_build.ledger import ledger
from kiln_build.ledger import reasons as ledger_reasons
from kiln_build.ledger import report as ledger_report
from kiln_build.ledger.chain import toolchain_of
from kiln_build.ledger.file import Line
from kiln_build.store.local import LocalStore
from kiln_recipe import targets
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, Interrupted, RecipeError
from kiln_recipe.read import recipe

ROOT = Path(__file__).resolve().parents[1]
KERNEL = """import triton
import triton.language as tl

LIVE = tl.constexpr(1)


@triton.jit
def spread(x_ptr, out_ptr, stride, BLOCK: tl.constexpr, FACTOR: tl.constexpr):
    places = tl.arange(0, LIVE)[:, None] * stride + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + places).to(tl.float32) * FACTOR
    tl.store(out_ptr + places, tl.exp(x - tl.max(x, 0)[None, :]))


@triton.jit
def double(x_ptr, out_ptr):
    tl.store(out_ptr, 2 * tl.load(x_ptr))
"""
RECIPE = """family: tiny
summary: Two kernels.
operations:
  spread:
    summary: what the ledger keeps
    arguments:
      x: {tensor: fp32, rank: 2}
      out: {tensor: fp32, rank: 2}
    choices:
      factor: {of: "x.size[0]", values: [1, 2], match: next_larger}
    kernels:
      spread:
        source: kernel.py
        choices: [factor]
        parameters:
          x_ptr: {type: "*fp32", value: x.data}
          out_ptr: {type: "*fp32", value: out.data}
          stride: {type: i64, value: "x.stride[0]"}
        constants: {FACTOR: factor}
        grid: [1]
        configurations:
          - {core: [{BLOCK: 1024, num_warps: 4}], full: [{BLOCK: 2048, num_warps: 8}]}
        spills: [{bytes: 4096, reason: a test}]
      double:
        source: kernel.py
        parameters:
          x_ptr: {type: "*fp32", value: x.data}
          out_ptr: {type: "*fp32", value: out.data}
        grid: [1]
        configurations: [{core: [{num_warps: 1}]}]
"""
SM_90 = targets.by_name("sm_90")
NAME = "tiny.spread/spread[factor=1][BLOCK=1024 num_warps=4][generic]@sm_90"


@pytest.fixture
def tiny(tmp_path, monkeypatch, capsys):
    """The family in a repository; `tiny(...)` runs `kiln ledger`; gives the exit code and what it printed."""
    monkeypatch.delenv("KILN_STORE", raising=False)
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "kernel.py").write_text(KERNEL)

    def run(*words: str, at: str = "sm_90 gfx942"):
        usual = ["--recipe", f"{folder}/recipe.yaml", "--ledger", f"{folder}/ledger"]
        if at:
            usual += ["--targets", at]
        if "--update" in words and "--store" not in words:
            usual += ["--store", str(tmp_path / "store")]
        code = cli.main(["ledger", *words, *usual])
        said = capsys.readouterr()
        return SimpleNamespace(code=code, out=said.out, err=said.err)

    run.folder, run.ledger, run.store = folder, folder / "ledger", tmp_path / "store"
    run.edit = lambda old, new: (folder / "kernel.py").write_text((folder / "kernel.py").read_text().replace(old, new))
    run.file = lambda target="sm_90": run.ledger / "tiny" / f"{target}.txt"
    run.git = lambda *words: git(folder, *words)
    return run


def test_amd_images_are_modelled_and_slower_ones_ask_for_a_reason(tiny, monkeypatch):
    share = 480

    def shares_of(wanted, store, jobs, progress):
        assert all(target == "gfx942" and store.read(image.digest) for _, target, _, image in wanted.values())
        return dict.fromkeys(wanted, share)

    monkeypatch.setattr(ledger, "shares_of", shares_of)
    assert tiny("--update").code == 0
    assert " 480  BLOCK=1024 num_warps=4 generic" in tiny.file("gfx942").read_text()
    assert "resident share" not in tiny.file("sm_90").read_text()
    share = 400
    tiny.edit("LIVE = tl.constexpr(1)", "LIVE = tl.constexpr(2)")
    done = tiny("--update")
    assert done.code == 9 and "share=480" in tiny.file("gfx942").read_text()
    assert "thousandths of the matrix peak by the model: 400, before 480" in done.out
    (tiny.ledger / "reasons.yaml").write_text(
        'reasons: [{images: "tiny.*@gfx942", share: {from: 480, to: 400}, reason: a test}]\n'
    )
    assert tiny().code == 0


def test_without_a_disassembler_shares_stay_unknown_until_there_is_one(tiny, monkeypatch):
    def shares_of(wanted, store, jobs, progress):
        raise EnvironmentProblem("llvm-objdump is not installed")

    monkeypatch.setattr(ledger, "shares_of", shares_of)
    done = tiny("--update")
    assert done.code == 0 and "5 images are not modelled: llvm-objdump is not installed" in done.err
    assert "   ?  BLOCK=1024 num_warps=4 generic" in tiny.file("gfx942").read_text()
    monkeypatch.setattr(ledger, "shares_of", lambda wanted, *_: dict.fromkeys(wanted, 0))
    assert tiny("--update").code == 0
    assert "   -  BLOCK=1024 num_warps=4 generic" in tiny.file("gfx942").read_text()


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(tiny) -> None:
    if not (tiny.folder / ".git").exists():
        tiny.git("init", "-q")
    tiny.git("add", "-A")
    tiny.git("commit", "-q", "-m", "x")


# ---- from the command line, with real compiles ----


@pytest.mark.slow(30)
def test_a_live_value_more_fails_until_a_reason_stands_beside_it(tiny):
    assert tiny("--check").code == 9
    first = tiny("--update")
    assert (first.code, first.out.splitlines()[0]) == (0, "tiny on gfx942: 5 variants, 5 keys")
    assert "10 images compiled, 0 from the store" in first.err
    assert tiny().code == 0
    commit(tiny)

    # A comment is no other kernel; a value more is one, and its facts are not worse by that alone.
    tiny.edit("def spread", "# a comment\ndef spread")
    assert tiny().code == 0
    tiny.edit("* FACTOR", "* FACTOR + 1")
    changed = tiny()
    assert changed.code == 9 and "4 with another key than in the ledger: tiny.spread/spread[factor=1]" in changed.out
    assert (
        "8 variants of the tree (tiny.spread/spread) are not in the ledger, or have another key there; "
        "run `kiln ledger --update --store FOLDER`" in changed.err
    )
    assert tiny("--update").code == 0
    commit(tiny)
    facts = tiny.git("show", "--stat", "--format=")
    assert "ledger/tiny/sm_90.txt" in facts

    # Sixteen rows at once in registers: fewer blocks. The sentence names the image, registers and blocks.
    tiny.edit("LIVE = tl.constexpr(1)", "LIVE = tl.constexpr(16)")
    worse = tiny("--update")
    assert worse.code == 9
    before, after = facts_of(tiny, "HEAD"), facts_of(tiny)
    assert after.blocks < before.blocks and after.registers > before.registers
    assert (
        f"worse: {NAME}: blocks a multiprocessor: {after.blocks}, before {before.blocks}; registers: "
        f"{after.registers}, before {before.registers} (the ledger's `was`)" in worse.out
    )
    assert "images are worse than before; improve them, or give the reason in ledger/reasons.yaml" in worse.err
    assert f"was registers={before.registers} spills={before.spills} blocks={before.blocks}" in tiny.file().read_text()

    # That stays so when it is committed, and when another update follows.
    commit(tiny)
    assert tiny("--update").code == tiny().code == 9
    commit_only = tiny("--against", "HEAD")
    assert commit_only.code == 9 and "blocks a multiprocessor" in commit_only.out

    (tiny.ledger / "reasons.yaml").write_text(
        f'reasons:\n  - {{images: "tiny.spread/*", blocks: {{from: 16, to: {after.blocks}}}, reason: sixteen rows}}\n'
    )
    said = tiny()
    assert "worse, with a reason in ledger/reasons.yaml: " in said.out and f"worse: {NAME}: blocks" not in said.out
    document = json.loads(tiny("--json").out)
    assert {entry["measure"]: entry["has_reason"] for entry in document["worse"] if entry["name"] == NAME}["blocks"]

    # Mended: nothing is worse, and the reason is in the way of the next one.
    tiny.edit("LIVE = tl.constexpr(16)", "LIVE = tl.constexpr(1)")
    mended = tiny("--update")
    assert mended.code == 0 and "0 images compiled, 8 from the store" in mended.err
    assert "was" not in tiny.file().read_text()


def facts_of(tiny, revision: str = "") -> Facts:
    text = tiny.git("show", f"{revision}:ledger/tiny/sm_90.txt") if revision else tiny.file().read_text()
    found = ledger_file.parse(text, "x")
    (facts,) = [line.facts for place, line in found.lines.items() if found.name(place) == NAME]
    return facts


@pytest.mark.slow
def test_a_sample_is_compiled_anew(tiny):
    assert tiny("--update").code == 0
    right = tiny("--sample", "3")
    assert right.code == 0 and "3 images compiled, 0 differ from the ledger" in right.out
    assert tiny("--sample", "3").out == right.out, "equal ledgers have equal samples"

    kept = ledger_file.read(tiny.file())
    wrong = {place: replace(line.facts, shared=line.facts.shared + 128) for place, line in kept.lines.items()}
    lines = {place: Line(line.key, ledger._recounted(wrong[place], SM_90)) for place, line in kept.lines.items()}
    changed = ledger_file.Ledger(kept.family, kept.target, kept.toolchain, kept.triton, lines)
    ledger_file.write(tiny.file(), changed)
    wrong = tiny("--sample", "4", "--seed", "one", at="sm_90")
    assert wrong.code == 9 and "4 images of the sample differ from the ledger" in wrong.err
    assert "0 bytes shared, 1 warps" in wrong.out and "the ledger says" in wrong.out


@pytest.mark.slow
def test_an_update_of_a_part_leaves_the_rest(tiny):
    assert tiny("--update", "--select", "kernel=spread;BLOCK=1024", at="sm_90").code == 0, (
        "its check is of the part too"
    )
    assert tiny(at="sm_90").code == 9 and not tiny.file("gfx942").exists()
    part = ledger_file.read(tiny.file())
    assert {place.configuration for place in part.lines} == {"BLOCK=1024 num_warps=4"}
    assert tiny("--select", "kernel=spread;BLOCK=1024", at="sm_90").code == 0
    assert tiny("--update", at="sm_90").code == 0
    whole = ledger_file.read(tiny.file())
    assert len(whole.lines) == 5 and part.lines.items() <= whole.lines.items()

    # A configuration that the recipe has no more is gone with the next update, however small.
    recipe_file = tiny.folder / "recipe.yaml"
    recipe_file.write_text(RECIPE.replace(", full: [{BLOCK: 2048, num_warps: 8}]", ""))
    gone = tiny(at="sm_90")
    assert gone.code == 9 and "the ledger has 2 variants that the tree does not make" in gone.err
    assert tiny("--update", "--select", "kernel=double", at="sm_90").code == 0


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--targets", "sm_86"], 2, "sm_86 has no ledger: targets.yaml lacks the limits of its multiprocessor"),
        (["--store", "x"], 2, "--store is for --update alone"),
        (["--seed", "x"], 2, "--seed is for --sample alone"),
        (["--jobs", "2"], 2, "--jobs is for --update and --sample alone"),
        (["--sample", "0"], 2, "--sample 0"),
        (["--update", "--sample", "2"], 2, "not allowed with argument"),
    ],
)
def test_mistakes_in_the_words(words, code, sentence, capsys, monkeypatch):
    monkeypatch.delenv("KILN_STORE", raising=False)
    assert cli.main(["ledger", *words]) == code
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--against", "nowhere"],
            "--against nowhere is not a revision of the ledger's repository; give a commit or a tag",
        ),
        (
            ["--select", "head_dims=64"],
            "no variant has a head_dims; variants have family, operation, kernel, factor, BLOCK, num_warps",
        ),
        (["--select", "factor=3"], "no variant has factor=3; factor is one of 1, 2"),
        (["--update", "--store", ""], "--store is empty; give a store, a build's workspace or a new folder"),
    ],
)
def test_mistakes_about_what_there_is(tiny, words, sentence):
    said = tiny(*words)
    assert said.code == 2 and sentence in said.err and "\n" not in said.err.rstrip("\n")


def test_an_update_needs_a_store(tiny, capsys):
    words = ["--recipe", f"{tiny.folder}/recipe.yaml", "--ledger", str(tiny.ledger), "--targets", "sm_90"]
    assert cli.main(["ledger", "--update", *words]) == 2
    assert "no store given; use --store FOLDER, or set KILN_STORE" in capsys.readouterr().err


def test_what_is_no_checkout_is_said(tiny):
    said = tiny(at="sm_90")
    assert said.code == 9 and "this is not a git checkout: what got worse" in said.out


def test_a_shallow_clone_is_said(tiny):
    chain, shelves = shelves_of(tiny)
    fill(chain, shelves, lambda name: 40)
    commit(tiny)
    said = tiny(at="sm_90")
    assert said.code == 0 and "there is no HEAD^ here" in said.out
    (tiny.folder / "x").touch()
    commit(tiny)
    assert "HEAD^" not in tiny(at="sm_90").out


# ---- the pieces, without compiling ----


def shelves_of(tiny, at: str = "sm_90"):
    chain = toolchain_of(ROOT)
    recipes = [recipe.load(tiny.folder / "recipe.yaml")]
    return chain, ledger.shelves(recipes, targets.parse(at), chain, tiny.ledger)


def fill(chain, shelves, registers) -> ledger.Update:
    """Writes a ledger of made-up facts."""
    names = frozenset(v.name for shelf in shelves for v in shelf.places.values())
    update = ledger.Update(shelves, chain, names)
    for shelf in shelves:
        for variant in shelf.places.values():
            facts = Facts(registers(variant.name), 0, 0, 4, 0)
            update.facts[variant.name] = ledger._recounted(facts, shelf.target)
    update.save()
    return update


def test_the_keys_of_the_tree_are_computed_without_compiling(tiny, monkeypatch):
    chain, shelves = shelves_of(tiny)
    monkeypatch.setattr(farm, "run", None)
    names = frozenset(v.name for v in shelves[0].places.values())
    assert len(ledger.compare(shelves[0], names).missing) == 5
    fill(chain, shelves, lambda name: 40)
    _, shelves = shelves_of(tiny)
    assert ledger.compare(shelves[0], names).is_empty
    tiny.edit("2 * tl.load", "3 * tl.load")
    _, shelves = shelves_of(tiny)
    difference = ledger.compare(shelves[0], names)
    assert difference.changed and all("/double[]" in name for name in difference.changed)


def test_limits_that_change_are_recounted(tiny, monkeypatch):
    chain, shelves = shelves_of(tiny)
    fill(chain, shelves, lambda name: 128)
    kept = ledger_file.read(tiny.file())
    text = tiny.file().read_text()
    assert {line.facts.blocks for line in kept.lines.values()} == {4}
    tiny.file().write_text(text.replace("  4  16  ", "  5  20  "))
    said = tiny(at="sm_90")
    assert said.code == 9 and "5 lines have blocks that do not follow from the limits in targets.yaml" in said.err


def test_an_interrupted_update_keeps_what_was_done(tiny):
    """And the next one goes on from there, store or no store."""
    chain, shelves = shelves_of(tiny)
    names = frozenset(v.name for v in shelves[0].places.values() if "factor=1" in v.functional)

    def run(variants, chain, store, options, progress):
        progress.start(len(variants))
        for number, variant in enumerate(variants):
            if number == 1:
                raise Interrupted("interrupted")
            put(store, variant.spec.key(chain.identity))
            progress.done(variant.name)

    update = ledger.Update(shelves, chain, names)
    with pytest.raises(Interrupted):
        update.run(LocalStore(tiny.store), FarmOptions(tiny.store), Progress(), run)
    assert len(ledger_file.read(tiny.file()).lines) == 1
    _, shelves = shelves_of(tiny)
    left = [variant.name for variant in ledger.Update(shelves, chain, names).wanted]
    assert len(left) == len(names) - 1 and set(left) < names


def put(store: LocalStore, key: str) -> None:
    from kiln_recipe.images.image import Image, ImageInfo

    info = ImageInfo("cubin", "spread", 128, 0, 32, 0, 0, 3, 0, 1, 0, 1, 7, "8.0")
    store.put(key, Image(b"code", info), key, 1.0)


def test_an_update_saves_now_and_then(tiny, monkeypatch):
    monkeypatch.setattr(ledger, "_SECONDS_BETWEEN_SAVES", -1.0)
    chain, shelves = shelves_of(tiny)
    names = frozenset(v.name for v in shelves[0].places.values())
    seen = []

    def run(variants, chain, store, options, progress):
        for variant in variants:
            put(store, variant.spec.key(chain.identity))
            progress.done(variant.name)
            seen.append(len(ledger_file.read(tiny.file()).lines))
        keys = {variant.name: variant.spec.key(chain.identity) for variant in variants}
        return farm.FarmResult({name: store.get(key) for name, key in keys.items()}, keys, 5, 0, 0, 1, 1.0, 1.0)

    ledger.Update(shelves, chain, names).run(LocalStore(tiny.store), FarmOptions(tiny.store), Progress(), run)
    assert seen == [1, 2, 3, 4, 5]


def test_another_setting_does_not_hide_that_an_image_got_worse(tiny):
    """Neither in an update of the part that has it, nor in one of another part before."""
    chain, shelves = shelves_of(tiny)
    fill(chain, shelves, lambda name: 40)
    recipe_file = tiny.folder / "recipe.yaml"
    recipe_file.write_text(RECIPE.replace("{BLOCK: 1024, num_warps: 4}", "{BLOCK: 1024, num_warps: 4, num_stages: 2}"))
    chain, shelves = shelves_of(tiny)
    part = ledger.Update(shelves, chain, frozenset())
    part.save()
    assert len(ledger_file.read(tiny.file()).lines) == 5
    chain, shelves = shelves_of(tiny)
    fill(chain, shelves, lambda name: 255 if "num_stages=2" in name else 40)
    worse = ledger_reasons.worse_in(ledger_file.read(tiny.file()))
    assert len(worse) == 2 and all("num_stages=2" in one.name and one.change == (12, 2) for one in worse)


def test_samples_spread_over_targets_and_kernels(tiny):
    chain, shelves = shelves_of(tiny, "sm_80 sm_90 gfx942")
    fill(chain, shelves, lambda name: 40)
    _, shelves = shelves_of(tiny, "sm_80 sm_90 gfx942")
    names = frozenset(v.name for shelf in shelves for v in shelf.places.values())
    drawn = {seed: ledger.draw(shelves, names, 6, seed) for seed in map(str, range(40))}
    for pairs in drawn.values():
        assert len({(shelf.target.name, shelf.keys[place]) for shelf, place in pairs}) == 6
        counts = [sum(shelf.target.name == name for shelf, _ in pairs) for name in ("sm_80", "sm_90", "gfx942")]
        assert counts == [2, 2, 2]
    assert len({tuple(place for _, place in pairs) for pairs in drawn.values()}) > 20
    kernels = [place.kernel for pairs in drawn.values() for _, place in pairs]
    assert kernels.count("spread/double") > len(kernels) / 5 / 2, "one image of five; drawn more often than 1 in 10"
    assert ledger.draw(shelves, names, 99, "x") and len(ledger.draw(shelves, names, 99, "x")) == 15


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (Facts(128, 0, 0, 8, 2), Facts(156, 0, 0, 8, 1), Was(128, 0, 2)),
        (Facts(128, 0, 0, 8, 2), Facts(128, 4, 0, 8, 2), Was(128, 0, 2)),
        (Facts(128, 8, 0, 8, 2), Facts(156, 4, 0, 8, 1), Was(128, 8, 2)),
        (Facts(128, 0, 0, 8, 2), Facts(156, 0, 0, 8, 2), None),
        (Facts(128, 4, 0, 8, 1), Facts(128, 0, 0, 8, 2), None),
        (Facts(128, 0, 0, 8, 2), None, Was(128, 0, 2)),
        (None, Facts(255, 99, 0, 8, 1), None),
    ],
)
def test_what_a_line_keeps_of_the_one_before(old, new, expected):
    assert ledger_reasons.since(Line("a" * 12, old), new) == expected


def test_what_was_stays_until_it_is_mended():
    was = Was(128, 0, 2)
    worse = Line("a" * 12, Facts(156, 0, 0, 8, 1), was)
    assert ledger_reasons.since(worse, Facts(160, 0, 0, 8, 1)) == was
    assert ledger_reasons.since(worse, Facts(128, 0, 0, 8, 2)) is None
    assert ledger_reasons.since(None, Facts(255, 0, 0, 8, 1)) is None


def test_what_got_better_meanwhile_counts_from_then_on():
    spilled = Line("a" * 12, Facts(128, 100, 0, 8, 2))
    half = Line("a" * 12, Facts(128, 0, 0, 8, 1), ledger_reasons.since(spilled, Facts(128, 0, 0, 8, 1)))
    assert ledger_reasons.since(half, Facts(128, 50, 0, 8, 1)) == Was(128, 0, 2)


# ---- reasons ----


def worse(measure="blocks", before=(128, 0, 2), after=(156, 0, 1), name=NAME) -> Worse:
    registers, spills, blocks = after
    return Worse(name, measure, Was(*before), Facts(registers, spills, 0, 8, blocks), "HEAD^")


def reasons(tmp_path: Path, *entries: str) -> list:
    (tmp_path / "reasons.yaml").write_text("reasons:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries))
    return ledger_reasons.read(tmp_path)


def test_a_reason_covers_changes_within_its_own(tmp_path):
    (reason,) = reasons(tmp_path, f'images: "{NAME}", blocks: {{from: 3, to: 1}}, reason: "x"')
    assert ledger_reasons.covers(reason, worse())
    assert ledger_reasons.covers(reason, worse(before=(1, 0, 3)))
    assert not ledger_reasons.covers(reason, worse(before=(1, 0, 4)))
    assert not ledger_reasons.covers(reason, worse(after=(200, 0, 0)))
    assert not ledger_reasons.covers(reason, worse("spills", after=(128, 4, 2)))
    assert not ledger_reasons.covers(reason, worse(name=NAME.replace("sm_90", "sm_80")))
    (reason,) = reasons(tmp_path, 'images: "*@sm_90", spills: {from: 0, to: 8}, reason: "x"')
    assert ledger_reasons.covers(reason, worse("spills", after=(128, 8, 2)))
    assert not ledger_reasons.covers(reason, worse("spills", after=(128, 12, 2)))
    assert not ledger_reasons.covers(reason, worse())
    assert ledger_reasons.uncovered([worse()], [reason]) == [worse()]
    assert ledger_reasons.unused([worse()], [reason]) == [reason]


def test_a_measure_that_covers_nothing_is_found_beside_one_that_does(tmp_path):
    both = reasons(tmp_path, 'images: "*", blocks: {from: 3, to: 1}, spills: {from: 0, to: 8}, reason: "x"')
    spilled = worse("spills", after=(128, 8, 2))
    assert not ledger_reasons.unused([worse(), spilled], both)
    assert [rest.measures for rest in ledger_reasons.unused([worse()], both)] == [["spills"]]
    assert [rest.measures for rest in ledger_reasons.unused([spilled], both)] == [["blocks"]]
    assert [rest.measures for rest in ledger_reasons.unused([], both)] == [["blocks", "spills"]]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ('images: "*", reason: "x"', "reasons.yaml:2: applies to nothing; give it blocks"),
        ('images: "*", blocks: {from: 1, to: 2}, reason: "x"', "blocks from 1 to 2 is not worse, and needs no reason"),
        ('images: "*", spills: {from: 8, to: 8}, reason: "x"', "spills from 8 to 8 is not worse"),
        ('images: "*", spills: {from: 0, to: 8}, reason: " "', "the reason is empty"),
        ('images: "*", spills: {to: 8}, reason: "x"', "lacks the field 'from'"),
        ('image: "*", spills: {from: 0, to: 8}, reason: "x"', "unknown field 'image'"),
    ],
)
def test_mistakes_in_reasons(tmp_path, entry, sentence):
    with pytest.raises(RecipeError) as caught:
        reasons(tmp_path, entry)
    assert sentence in str(caught.value)


def test_a_reason_that_covers_nothing_fails_the_check(tiny):
    chain, shelves = shelves_of(tiny)
    fill(chain, shelves, lambda name: 40)
    assert tiny(at="").code == 0
    reasons(tiny.ledger, 'images: "tiny.*", blocks: {from: 2, to: 1}, reason: "x"')
    said = tiny(at="")
    assert said.code == 9 and "no image needs 1 reason in ledger/reasons.yaml" in said.err


def test_what_nothing_needs_is_found_if_all_families_are_looked_at(tiny):
    chain, shelves = shelves_of(tiny)
    fill(chain, shelves, lambda name: 40)
    stray = tiny.ledger / "gone" / "sm_90.txt"
    stray.parent.mkdir()
    stray.write_text("left over\n")
    reasons(tiny.ledger, 'images: "*@sm_90", blocks: {from: 2, to: 1}, reason: "x"')
    shelves = shelves_of(tiny)[1]
    names = frozenset(v.name for shelf in shelves for v in shelf.places.values())
    alone, beside_others = (
        ledger_report.Report(shelves, names, tiny.ledger, None, chain, True, others) for others in (False, True)
    )
    assert alone.strangers == [str(stray)] and [reason.images for reason in alone.unused] == ["*@sm_90"]
    assert any(str(stray) in problem for problem in alone.problems())
    assert not beside_others.strangers and not beside_others.unused


def test_names_are_those_of_the_plan(tiny):
    _, shelves = shelves_of(tiny)
    shelf = shelves[0]
    empty = ledger_file.Ledger("tiny", "sm_90", "0" * 12, "3", {})
    assert {empty.name(place) for place in shelf.places} == {variant.name for variant in shelf.places.values()}
    assert NAME in {variant.name for variant in shelf.places.values()}


def test_a_malformed_ledger_is_one_sentence(tiny):
    tiny.file().parent.mkdir(parents=True)
    tiny.file().write_text("<<<<<<< HEAD\n")
    said = tiny(at="sm_90")
    assert said.code == ArtifactError.exit_code and "sm_90.txt:1: '<<<<<<< HEAD' is not a line of a ledger" in said.err


@pytest.mark.parametrize("content", [b"", b"ledger 1: tiny on sm_90\n", b"\xff\xfe"])
def test_a_damaged_ledger_is_6(tiny, content):
    tiny.file().parent.mkdir(parents=True)
    tiny.file().write_bytes(content)
    for words in ([], ["--update"]):
        said = tiny(*words, at="sm_90")
        assert (said.code, said.out, said.err.count("\n")) == (6, "", 1) and f"kiln: {tiny.file()}:1: " in said.err


def test_a_folder_that_is_not_there_is_named(tiny, capsys, tmp_path):
    for words in ([], ["--update", "--store", str(tiny.store)]):
        assert cli.main(["ledger", "--ledger", str(tmp_path / "nowhere"), *words]) == 7
        assert f"kiln: --ledger {tmp_path}/nowhere is not a folder; give one with" in capsys.readouterr().err


def test_a_store_is_called_as_it_was_given(tiny, tmp_path, capsys, monkeypatch):
    (place := tmp_path / "file").touch()
    words = ["--recipe", f"{tiny.folder}/recipe.yaml", "--ledger", str(tiny.ledger), "--targets", "sm_90", "--update"]
    monkeypatch.setenv("KILN_STORE", str(place))
    for name, more in (("--store", ["--store", str(place)]), ("KILN_STORE", [])):
        assert cli.main(["ledger", *words, *more]) == 7
        assert f"kiln: {name}={place} is a file; give a folder" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, EnvironmentProblem("the disk is full")])
def test_nothing_is_left_of_a_run_that_ends_early(tiny, tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    for place in ((cli_ledger, "_with_heap"), (farm, "run"), (FarmOptions, "of")):
        with monkeypatch.context() as broken:
            broken.setattr(*place, fail)
            if place[1] == "run":
                broken.setattr(ledger.Update, "run", fail)
            assert tiny("--update", at="sm_90").code in (7, 130)
        assert not [*(tmp_path / "tmp").iterdir()]


def test_places_of_equal_headings_are_kept_apart():
    one, two = (Place("a/b", "", f"num_warps={n}", "generic") for n in (1, 2))
    assert one.heading == two.heading == "a/b"
    assert len(dict.fromkeys(itertools.chain([one, two]))) == 2
