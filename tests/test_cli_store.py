"""`kiln store`, as users run it."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
from dataclasses import replace

import pytest

import minisign_keys
from cache_server import CacheServer
from kiln_build.cache import traffic
from kiln_build.cli import main
from kiln_build.cli.store import parse_size
from kiln_build.store import upkeep as store_upkeep
from kiln_build.store.local import LocalStore
from kiln_recipe.console import spelling
from kiln_recipe.errors import UsageError
from kiln_recipe.images import elf, judge
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
    assert "3 keys and 3 IRs in 3 objects, 150" in capsys.readouterr().out
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
        assert f"{store.root}: 3 keys" in capsys.readouterr().out


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
        (["inf"], 2, "unknown action 'inf'; did you mean 'info'? the actions are info, verify, gc, push, pull, stats"),
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


# ---- a team's cache ----


@pytest.fixture
def cached():
    with CacheServer() as server:
        yield server


def test_push_stats_and_pull(tmp_path, store, cached, capsys, monkeypatch):
    words = ["--store", str(store.root), "--cache", cached.url]
    assert main(["store", "stats", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["there"] == 0
    assert main(["store", "push", *words]) == 0
    assert f"{cached.url}: 3 images, 0 already there, 3 sent (" in capsys.readouterr().out
    monkeypatch.setenv("KILN_CACHE", cached.url)
    assert main(["store", "push", "--store", str(store.root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["images"], told["there"], told["sent"], told["not_sent"], told["problem"]) == (3, 3, 0, 0, "")
    assert main(["store", "stats", "--store", str(store.root)]) == 0
    assert capsys.readouterr().out == f"{cached.url} has 3 of 3 images\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"x {0:064x}, [{1:064x}] and {7:064x}"))
    monkeypatch.setattr(judge, "contradictions", lambda *_: ())
    new = tmp_path / "new"
    assert main(["store", "pull", "--store", str(new), "--keys", "-", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["images"], told["there"], told["fetched"], told["not_fetched"], told["unusable"]) == (3, 0, 2, 1, 0)
    row = '{"image": "%064x", "key": "%064x"}'  # as `kiln list --json` prints it: images have digests of their own
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"[{row % (9, 0)}, {row % (8, 1)}]"))
    assert main(["store", "stats", "--keys", "-", "--store", str(new)]) == 0
    assert capsys.readouterr().out == f"{cached.url} has 2 of 2 images\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff %064x" % 0), "utf-8"))
    assert main(["store", "stats", "--keys", "-", "--store", str(new)]) == 0
    assert capsys.readouterr().out == f"{cached.url} has 1 of 1 image\n"
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["store", "stats", "--keys", "-", "--store", str(new)]) == 7
    assert "--keys - needs standard input, which is closed" in capsys.readouterr().err
    copy = LocalStore(new)
    assert all(copy.load(copy.get(f"{n:064x}")) == store.load(store.get(f"{n:064x}")) for n in (0, 1))


def test_push_opens_the_store_once_a_thread(store, cached, monkeypatch):
    for number in range(3, 40):
        store.put(f"{number:064x}", Image(bytes([number]), INFO), f"{number:064x}", 1.0)
    opened = []
    open_store = traffic.open_store
    monkeypatch.setattr(traffic, "open_store", lambda *words: opened.append(words) or open_store(*words))
    assert main(["store", "push", "--store", str(store.root), "--cache", cached.url]) == 0
    assert len(cached.of("ac")) == 40 and 1 <= len(opened) <= traffic._SENDERS


@pytest.mark.parametrize("action", ["push", "stats", "pull"])
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_cache_that_is_gone_is_a_sentence(tmp_path, store, cached, capsys, action, more):
    url = cached.url
    cached.__exit__(None, None, None)
    (tmp_path / "keys").write_text(f"{0:064x} {7:064x}")
    place = tmp_path / "new" if action == "pull" else store.root
    words = ["--store", str(place), "--cache", url, "--keys", str(tmp_path / "keys"), *more]
    assert main(["store", action, *words]) == 7
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith(f"kiln: the cache {url} did not do all that was asked of it: ")
    assert json.loads(out)["problem"] if more else out.startswith(url) and out.count("\n") == 1


def test_a_new_store_is_called_as_it_was_given(tmp_path, cached, capsys):
    (tmp_path / "keys").write_text(f"{0:064x}")
    (tmp_path / "file").touch()
    words = ["--store", str(tmp_path / "file"), "--cache", cached.url, "--keys", str(tmp_path / "keys")]
    assert main(["store", "pull", *words]) == 7
    assert f"kiln: --store={tmp_path}/file is a file; give a folder" in capsys.readouterr().err


def test_who_signs_believes_nothing_unsigned_and_replaces_it(tmp_path, store, cached, capsys, monkeypatch):
    monkeypatch.setattr(judge, "contradictions", lambda *_: ())
    keys = minisign_keys.make(tmp_path)
    (tmp_path / "keys").write_text(" ".join(f"{n:064x}" for n in range(3)))

    def told(*words: str, code: int = 0) -> dict:
        assert main(["store", *words, "--cache", cached.url, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    here = ("--store", str(store.root))
    assert told("push", *here)["sent"] == 3, "unsigned"
    monkeypatch.setenv("KILN_CACHE_KEY", str(keys.secret))
    assert told("stats", *here)["there"] == 0
    pulled = told("pull", "--store", str(tmp_path / "a"), "--keys", str(tmp_path / "keys"), code=7)
    assert (pulled["fetched"], pulled["not_fetched"], pulled["unusable"]) == (0, 3, 3)
    assert pulled["problem"] == "it has 3 images that nobody should use"
    assert told("push", *here)["sent"] == 3
    assert told("stats", *here)["there"] == 3
    assert told("pull", "--store", str(tmp_path / "b"), "--keys", str(tmp_path / "keys"))["fetched"] == 3


def test_a_cache_that_fails_is_an_exit_code(store, cached, capsys):
    cached.faults.status = 500
    assert main(["store", "push", "--store", str(store.root), "--cache", cached.url]) == 7
    out, err = capsys.readouterr()
    assert "0 sent (0 bytes), 3 not sent" in out and ": 3 requests failed, the last by it answered " in err
    assert main(["store", "stats", "--store", str(store.root), "--cache", cached.url]) == 7
    out, err = capsys.readouterr()
    assert out == f"{cached.url} has 0 of 3 images, and did not answer for 3\n"
    assert f"kiln: the cache {cached.url} did not do all that was asked of it: 3 requests failed" in err


def test_pull_refuses_a_store_that_cannot_be_written(tmp_path, store, cached, capsys, monkeypatch):
    monkeypatch.setattr(LocalStore, "refusal", lambda _: "Read-only file system")
    (tmp_path / "keys").write_text(" ".join(f"{n:064x}" for n in range(4)))
    words = ["store", "pull", "--store", str(store.root), "--cache", cached.url, "--keys"]
    assert main([*words, str(tmp_path / "keys")]) == 7
    told = capsys.readouterr()
    assert f"the store {store.root} cannot be written (Read-only file system), so nothing can be fetched" in told.err
    assert not told.out and not cached.seen, "nothing was asked for"
    (tmp_path / "keys").write_text(" ".join(f"{n:064x}" for n in range(3)))
    assert main([*words, str(tmp_path / "keys")]) == 0, "it has them all"


def test_what_is_broken_in_the_store_is_said_by_push(store, cached, capsys):
    path = next(path for path in (store.root / "objects").rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert main(["store", "push", "--store", str(store.root), "--cache", cached.url]) == 0
    told = capsys.readouterr()
    assert "2 sent (" in told.out and "1 not sent" in told.out
    assert "warning: " in told.err and "cannot be sent: " in told.err


def test_secrets_come_from_a_file_or_a_variable_and_are_not_printed(tmp_path, store, cached, capsys, monkeypatch):
    cached.authorization = "Bearer t0p-s3cret"
    words = ["store", "push", "--store", str(store.root), "--cache", cached.url]
    (tmp_path / "token").write_text("t0p-s3cret\n")
    monkeypatch.setenv("MY_TOKEN", "t0p-s3cret")
    for where in (str(tmp_path / "token"), "env:MY_TOKEN"):
        cached.content.clear()
        monkeypatch.setenv("KILN_CACHE_TOKEN", where)
        assert main(words) == 0 and len(cached.of("ac")) == 3
    monkeypatch.delenv("KILN_CACHE_TOKEN")
    assert main(words) == 7
    output = capsys.readouterr()
    assert "it wants other credentials" in output.err and "t0p-s3cret" not in output.out + output.err


@pytest.mark.parametrize(
    ("words", "variables", "code", "sentence"),
    [
        (["push"], {}, 2, "`kiln store push` needs a cache; name it with --cache ADDRESS or KILN_CACHE"),
        (["pull", "--cache", "http://x"], {}, 2, "`kiln store pull` needs to know of what; give --keys FILE"),
        (
            ["info", "--cache", "http://x"],
            {},
            2,
            "--cache is only for push, pull, stats; `kiln store info` asks",
        ),
        (
            ["push", "--cache", "ftp://x/y"],
            {},
            2,
            "--cache=ftp://x/y is of an unknown kind; give an address",
        ),
        (
            ["push", "--cache", "x/y"],
            {},
            2,
            "--cache=x/y is not the address of a cache; expected",
        ),
        (
            ["push", "--cache", "http://me:pw@x/y"],
            {},
            2,
            "--cache=http://...@x has a login in its address, which logs",
        ),
        (["push", "--cache", "http://x?a=1"], {}, 2, "is not the address of a cache"),
        (["stats", "--cache", "http://x", "--keys", "/nowhere"], {}, 7, "--keys /nowhere cannot be read"),
        (["stats", "--cache", "http://x", "--keys", "/dev/null"], {}, 2, "--keys /dev/null has no key, which has 64"),
        (
            ["push", "--cache", "http://x"],
            {"KILN_CACHE_TOKEN": "/nowhere"},
            7,
            "KILN_CACHE_TOKEN=/nowhere is not a",
        ),
        (
            ["push", "--cache", "http://x"],
            {"KILN_CACHE_TOKEN": "env:NONE"},
            7,
            "in the variable NONE, which is not",
        ),
        (["push", "--cache", "http://x"], {"KILN_CACHE_MODE": "read-only"}, 2, "nothing may go to the cache"),
        (["push", "--cache", "http://x"], {"KILN_CACHE_TRUST": "/dev/null:/no"}, 7, "KILN_CACHE_TRUST=/"),
        (["push", "--cache", "http://x"], {"KILN_CACHE_PASSWORD": "env:A"}, 2, "KILN_CACHE_PASSWORD is that of a key"),
        (
            ["push", "--cache", "http://x"],
            {"KILN_CACHE_TOKEN": "env:A", "KILN_CACHE_LOGIN": "env:A"},
            2,
            "are both set; give the one that the cache asks for",
        ),
    ],
)
def test_mistakes_with_a_cache_are_one_sentence(store, words, variables, code, sentence, capsys, monkeypatch):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert main(["store", *words, "--store", str(store.root)]) == code
    errors = capsys.readouterr().err
    assert sentence in errors and errors.count("\n") == 1 and "pw@" not in errors


def test_keys_are_read_up_to_a_limit(tmp_path, store, cached, capsys):
    words = ["store", "pull", "--store", str(tmp_path / "a"), "--cache", cached.url, "--keys", "/dev/zero"]
    assert main(words) == 2
    assert "--keys /dev/zero has more than 256 MiB; give the keys alone" in capsys.readouterr().err
