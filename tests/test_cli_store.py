"""`kiln store`, as users run it."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import replace

import pytest

from kiln_build.cli import main
from kiln_build.cli.store import parse_size
from kiln_build.store import upkeep as store_upkeep
from kiln_build.store.local import LocalStore
from kiln_recipe.console import spelling
from kiln_recipe.errors import UsageError
from kiln_recipe.images import elf
from kiln_recipe.images.image import Image, ImageInfo
from small_release import images, info_of

INFO = ImageInfo("hsaco", "kernel", 256, 0, 64, 0, 0, 4, 0, 1, 0, 1, 5, "")


@pytest.fixture
def store(tmp_path, monkeypatch) -> LocalStore:
    monkeypatch.delenv("KILN_STORE", raising=False)
    store = LocalStore(tmp_path / "workspace" / "store")
    for number in range(3):
        key = f"{number:064x}"
        store.put(key, Image(os.urandom(50_000), INFO), key, 1.0)
    return store


def test_info(store, capsys, monkeypatch):
    assert main(["store", "info", "--store", str(store.root)]) == 0
    assert "3 variants and 3 IRs in 3 objects, 150" in capsys.readouterr().out
    monkeypatch.setenv("KILN_STORE", str(store.root))
    assert main(["store", "info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variants"] == 3


def test_a_workspace_names_its_store(store, capsys):
    assert main(["store", "info", "--store", str(store.root.parent)]) == 0
    assert str(store.root) in capsys.readouterr().out


def test_the_current_folder_may_be_a_store_or_a_workspace(store, capsys, monkeypatch):
    for folder in (store.root, store.root.parent):
        monkeypatch.chdir(folder)
        assert main(["store"]) == 0
        assert f"{store.root}: 3 variants" in capsys.readouterr().out


def test_gc(store, capsys):
    for path in store.root.rglob("*"):
        os.utime(path, (1000, 1000))
    assert main(["store", "gc", "--store", str(store.root), "--max-size", "120K", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed_images"] == 1
    assert main(["store", "gc", "--store", str(store.root), "--max-size", "0"]) == 0
    assert "2 images removed" in capsys.readouterr().out
    assert store_upkeep.info(store.files).bytes == 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_verify(tmp_path, capsys):
    store = LocalStore(tmp_path / "store")
    names = sorted(path for path in images().iterdir() if path.name.endswith(("-fp16", "-bf16")))
    for number, path in enumerate(names):
        code = elf.strip(path.read_bytes())
        store.put(f"{number:064x}", Image(code, info_of(code)), f"{number:064x}", 1.0)
    words = ["store", "verify", "--store", str(store.root)]
    assert main(words) == 0
    assert "8 objects and 16 entries read: all whole" in capsys.readouterr().out
    path = next((store.root / "objects").rglob("*.zst"))
    path.write_bytes(path.read_bytes()[:-1])
    assert main(words) == 6
    output = capsys.readouterr()
    assert "3 were broken and are removed" in output.out
    assert output.err.count("\n") == 1 and f"{path.stem} of the store {store.root} is truncated" in output.err
    assert main(words) == 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", ["sm_90-256-fp16", "gfx942-256-fp16"])
def test_verify_reads_the_facts_off_the_image(tmp_path, capsys, name):
    """An entry of our own making is whole, and wrong all the same."""
    code = elf.strip((images() / name).read_bytes())
    right = info_of(code)
    wrong = [
        replace(right, registers=right.registers + 8), replace(right, threads=64), replace(right, parameters=9),
        replace(right, stack=16), replace(right, symbol="other"), replace(right, abi=6), replace(right, shared=-1),
    ]  # fmt: skip
    store = LocalStore(tmp_path / "store")
    for number, info in enumerate([right, *wrong]):
        store.put(f"{number:064x}", Image(code, info), f"{number:064x}", 1.0)
    assert main(["store", "verify", "--store", str(store.root), "--json"]) == 6
    output = capsys.readouterr()
    removed = {f"{kind}/{number:064x}" for kind in ("index", "ir") for number in range(1, 8)}
    assert set(json.loads(output.out)["removed_entries"]) == removed
    assert (
        f"does not match its image, which says registers {right.registers}, where {right.registers + 8} is stated"
        in output.err
    )
    assert output.err.count("\n") == 14
    assert main(["store", "verify", "--store", str(store.root)]) == 0


@pytest.mark.parametrize(
    "words, code, sentence",
    [
        (["info"], 2, "no store given; name it, or a build's workspace, with --store FOLDER or KILN_STORE"),
        ([], 2, "no store given"),
        (["info", "--store", "/nowhere"], 7, "/nowhere is not a store"),
        (["info", "--store", "s3://images"], 2, "the store s3://images is of an unknown kind, 's3'; give a folder"),
        (
            ["gc", "--store", "/nowhere"],
            2,
            "needs the size that the store may keep; give --max-size SIZE, for example 20G",
        ),
        (["info", "--store", "/nowhere", "--max-size", "1G"], 2, "--max-size is only for `kiln store gc`"),
        (["gc", "--max-size", "ten", "--store", "/nowhere"], 2, "'ten' is not a size"),
        (["gc", "--max-size", "-5", "--store", "/nowhere"], 2, "'-5' is not a size"),
        (["inf"], 2, "unknown action 'inf'; did you mean 'info'? the actions are info, verify, gc"),
    ],
)
def test_mistakes_are_one_sentence(words, code, sentence, capsys, monkeypatch):
    monkeypatch.delenv("KILN_STORE", raising=False)
    assert main(["store", *words]) == code
    errors = capsys.readouterr().err
    assert errors.startswith("kiln: ") and sentence in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    "word, size",
    [
        ("0", 0),
        ("10G", 10 << 30),
        ("1.5GiB", 3 << 29),
        ("500m", 500 << 20),
        ("7", 7),
        (" 2 kb ", 2048),
        ("1T", 1 << 40),
    ],
)
def test_sizes(word, size):
    assert parse_size(word) == size


@pytest.mark.parametrize("word", ["", "G", "-1", "1e3", "10 X", "1.G", "٣"])
def test_words_that_are_no_sizes(word):
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(word)


def test_spell_size():
    spelled = [spelling.spell_size(number) for number in (0, 1023, 1536, 10 << 30)]
    assert spelled == ["0 bytes", "1023 bytes", "1.5 KiB", "10.0 GiB"]
