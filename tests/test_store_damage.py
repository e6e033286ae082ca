"""Damage to a store's files, of every kind: seen, named, never trusted, never waited for, and made whole again."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from damages import DAMAGES, bind, exchange, forge, rows_of, sparse
from kiln_build.store import upkeep as store_upkeep
from kiln_build.store.files import find_store
from kiln_build.store.local import LocalStore
from kiln_recipe.errors import ArtifactError
from test_store import INFO, digest, fill, image, run_python, the_object, verify


def entry(store: LocalStore, number: int, kind: str = "index") -> Path:
    name = digest(number) if kind == "index" else digest(f"ir {number}")
    return store.root / kind / name[:2] / name


@pytest.fixture
def warned() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path, warned) -> LocalStore:
    store = LocalStore(tmp_path / "a store", warned.append)
    fill(store, [1, 2])
    return store


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_a_miss_and_is_named(store, warned, name):
    damage, said = DAMAGES[name]
    for kind in ("index", "ir"):
        damage(entry(store, 1, kind))
    assert store.get(digest(1)) is None and store.get_ir(digest("ir 1")) is None
    assert store.alias(digest(3), digest("ir 1")) is None
    assert len(warned) == 2 and f"entry {digest(1)} of the store {store.root}" in warned[0]
    assert_said(warned, said)
    made_whole(store, warned)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_object_is_not_served_and_is_named(store, warned, name):
    damage, said = DAMAGES[name]
    stored = store.get(digest(1))
    damage(the_object(store.root, stored.digest))
    try:
        assert store.get(digest(1)) is None
    except AssertionError:  # the same size: only reading tells
        with pytest.raises(ArtifactError, match="build again"):
            store.read(stored.digest)
        assert store.get(digest(1)) is None
    assert len(warned) == 1 and f"object {stored.digest} of the store {store.root}" in warned[0]
    assert_said(warned, said)
    made_whole(store, warned)


@pytest.mark.parametrize("name", DAMAGES)
def test_put_replaces_what_is_damaged(store, warned, name):
    stored = store.get(digest(1))
    DAMAGES[name][0](the_object(store.root, stored.digest))
    fill(store, [1])
    assert store.load(store.get(digest(1))) == image(1)
    assert_said(warned, DAMAGES[name][1])


@pytest.mark.parametrize("name", DAMAGES)
def test_verify_and_gc_see_it(store, warned, name):
    stored = store.get(digest(2))
    DAMAGES[name][0](entry(store, 1))
    DAMAGES[name][0](the_object(store.root, stored.digest))
    copy = store.root.with_name("copy")
    shutil.copytree(store.root, copy, symlinks=True, copy_function=copy_anything)
    found = verify(store)
    assert found.removed_objects == (stored.digest,)
    assert set(found.removed_entries) == {
        f"index/{digest(1)}", f"index/{digest(2)}", f"ir/{digest('ir 2')}",
    }  # fmt: skip
    assert_said(warned, DAMAGES[name][1])
    whole = verify(store)
    assert not whole.removed_objects and not whole.removed_entries and whole.entries == 1
    told: list[str] = []
    other = LocalStore(copy, told.append)
    store_upkeep.collect(other.files, 1 << 40)
    assert len(told) == 2 and f"entry {digest(1)}" in told[0] + told[1]
    made_whole(other, told)
    store_upkeep.collect(other.files, 0)


def copy_anything(source: str, to: str) -> None:
    """As shutil.copytree's own, but for what cannot be read."""
    if Path(source).is_fifo():
        os.mkfifo(to)
    elif Path(source).is_socket():
        bind(Path(to))
    elif os.stat(source).st_size > 1 << 30:
        sparse(Path(to))
    else:
        shutil.copy2(source, to)


def assert_said(warned: list[str], said: str) -> None:
    assert warned and all(any(one in text for one in said.split("|")) for text in warned), warned
    assert all(text.endswith(": removed; it will be compiled again") for text in warned)


def made_whole(store: LocalStore, warned: list[str]) -> None:
    """After the images have been put again nothing is wrong, and nothing is in the way."""
    warned.clear()
    fill(store, [1, 2])
    assert [store.load(store.get(digest(n))) for n in (1, 2)] == [image(1), image(2)]
    found = verify(store)
    assert not found.removed_entries and not found.removed_objects and not warned


# ---- what was believed before ----


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0), bit=st.integers(0, 7), kind=st.sampled_from(["index", "ir"]))
def test_no_flipped_bit_of_an_entry_is_believed(tmp_path_factory, place, bit, kind):
    warned: list[str] = []
    store = LocalStore(tmp_path_factory.mktemp("store"), warned.append)
    fill(store, [1])
    path = entry(store, 1, kind)
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    assert (store.get(digest(1)) if kind == "index" else store.get_ir(digest("ir 1"))) is None
    assert len(warned) == 1 and path.name in warned[0] and not path.exists()


def test_facts_that_were_edited(store, warned):
    path = entry(store, 1)
    data = path.read_bytes()
    flipped = b'"shared":49152', b'"shared":12384'
    assert flipped[0] in data and INFO.shared == 49152
    path.write_bytes(data.replace(*flipped))
    assert store.get(digest(1)) is None and "is corrupt: removed" in warned[0]


def test_exchanged_entries(store, warned):
    one, two = entry(store, 1), entry(store, 2)
    exchange(one, two)
    assert store.get(digest(1)) is store.get(digest(2)) is None
    assert [f"entry {digest(n)} of the store {store.root} is that of index/" in warned[n - 1] for n in (1, 2)]
    assert digest(2) in warned[0] and digest(1) in warned[1]
    made_whole(store, warned)


def test_an_entry_of_another_kind(store, warned):
    """The entry of an IR says the same of the image; it is another entry all the same."""
    entry(store, 1).write_bytes(entry(store, 1, "ir").read_bytes())
    assert store.get(digest(1)) is None and f"is that of ir/{digest('ir 1')[:2]}/" in warned[0]


def test_exchanged_objects(store, warned):
    names = [store.get(digest(n)).digest for n in (1, 2)]
    one, two = (the_object(store.root, name) for name in names)
    exchange(one, two)
    for name in names:
        with pytest.raises(ArtifactError, match="is corrupt; build again"):
            store.read(name)
    assert len(warned) == 2
    made_whole(store, warned)


def test_an_entry_with_another_schema_and_a_right_digest(store, warned):
    """As a later Kiln may write it."""
    path = entry(store, 1)
    forge(path, lambda rows: rows["image"]["info"].pop("registers"))
    assert store.get(digest(1)) is None and "is of another version: removed" in warned[0]


def test_a_folder_of_the_store_that_is_none(store, warned):
    for path in (entry(store, 1).parent, the_object(store.root, store.get(digest(1)).digest).parent):
        shutil.rmtree(path)
        os.mkfifo(path)
    shutil.rmtree(store.root / "ir")
    (store.root / "ir").symlink_to("nowhere")
    assert store.get(digest(1)) is None and store.get_ir(digest("ir 1")) is None
    fill(store, [1, 2])
    assert [text.count("is not a folder: removed") for text in warned] == [1, 1, 1]
    made_whole(store, warned)
    shutil.rmtree(entry(store, 1).parent)
    entry(store, 1).parent.write_text("")
    assert verify(store).removed_entries == (f"index/{digest(1)[:2]}",)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_store_that_does_not_say_its_format(store, warned, damage):
    damage(store.root / "format")
    again = LocalStore(store.root, warned.append)
    assert warned == [f"the store {store.root} has lost its format file; it is read as kiln-store 2"]
    assert again.get(digest(1)) is not None and find_store(store.root) == store.root
    fill(again, [9])
    assert (store.root / "format").read_bytes() == b"kiln-store 2\n"
    LocalStore(store.root, warned.append)
    assert len(warned) == 1


def test_a_file_that_may_not_be_read(tmp_path):
    """Without capabilities modes count for root too."""
    code = """
import ctypes
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
warned = []
store = LocalStore(Path(sys.argv[1]), warned.append)
fill(store, [1])
stored = store.get(digest(1))
os.chmod(store.root / "index" / digest(1)[:2] / digest(1), 0)
os.chmod(the_object(store.root, stored.ptx), 0)
assert store.get(digest(1)) is None
fill(store, [1])
assert store.load(store.get(digest(1))) == image(1)
print(*warned, sep="\\n")
"""
    process = run_python(code, tmp_path / "store")
    said = process.communicate(timeout=30)[0].splitlines()
    assert process.returncode == 0 and len(said) == 2
    assert all("cannot be read (Permission denied): removed" in text for text in said)


# ---- others at work ----


def test_what_another_process_has_made_whole_stays(store, warned, monkeypatch):
    """It is found damaged, and before it is removed another has replaced it."""
    path = entry(store, 1)
    whole = path.read_bytes()
    path.write_bytes(b"broken")
    original = store.files.folder.remove_same

    def late(path: Path, status: os.stat_result) -> bool:
        store.files.folder.write(path, whole)
        return original(path, status)

    monkeypatch.setattr(store.files.folder, "remove_same", late)
    assert store.get(digest(1)) is None and warned == []
    assert path.read_bytes() == whole and store.get(digest(1)) is not None


def test_damage_under_many_hands(tmp_path):
    """Threads that look up, put, collect and damage at once: an image that is found is the right one."""
    stop, wrong, right = threading.Event(), [], []

    def work() -> None:
        store = LocalStore(tmp_path / "store", lambda text: None)
        while not stop.is_set():
            for number in range(6):
                try:
                    stored = store.get(digest(number))
                    if stored is None:
                        fill(store, [number])
                    else:
                        (right if store.load(stored) == image(number) else wrong).append(number)
                except ArtifactError:
                    pass
                except Exception as error:  # noqa: BLE001  (whatever damage makes of it is told)
                    wrong.append(repr(error))

    def collect() -> None:
        store = LocalStore(tmp_path / "store", lambda text: None)
        while not stop.is_set():
            try:
                store_upkeep.collect(store.files, 3000)
                verify(store)
            except Exception as error:  # noqa: BLE001  (whatever damage makes of it is told)
                wrong.append(repr(error))

    fill(LocalStore(tmp_path / "store"), range(6))
    threads = [threading.Thread(target=target) for target in (work, work, collect)]
    for thread in threads:
        thread.start()
    store = LocalStore(tmp_path / "store")
    for turn in range(150):
        name = list(DAMAGES)[turn % 4]
        try:
            path = entry(store, turn % 6, ("index", "ir")[turn % 2])
            fresh = path.with_name(f".damaged-{turn}")
            shutil.copy(path, fresh)
            DAMAGES[name][0](fresh)
            os.replace(fresh, path)
        except OSError:
            continue
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not wrong, wrong[:5]
    assert right and not any(thread.is_alive() for thread in threads)


# ---- the rest of the store ----


def test_nothing_waits_for_a_pipe(store, warned):
    for name in ("durations", "gc"):
        (store.root / name).unlink(missing_ok=True)
        os.mkfifo(store.root / name)
    os.mkfifo(store.root / "builds" / "one") if (store.root / "builds").is_dir() else None
    assert store.durations() == {}
    (said,) = warned
    assert said.startswith(f"{store.root}/durations is a pipe instead of a file: nothing is known of")
    store.record_duration("a", 1.0)
    with store.in_use(), store.claim(digest("ir")):
        store_upkeep.collect(store.files, 1 << 40)
        store_upkeep.info(store.files)
    (store.root / "format").unlink()
    os.mkfifo(store.root / "format")
    with pytest.raises(ArtifactError, match="format is a pipe instead of a file; remove that file"):
        LocalStore(store.root)


# ---- earlier formats ----


def test_entries_of_format_1_are_no_noise(store, warned):
    """Their keys are no longer asked for: no warning names them; gc takes them, in time."""
    (store.root / "format").write_text("kiln-store 1\n")
    for number in (1, 2):
        for kind in ("index", "ir"):
            path = entry(store, number, kind)
            rows = rows_of(path)
            del rows["name"]
            path.write_text(json.dumps(rows))
    again = LocalStore(store.root, warned.append)
    assert again.get(digest(1)) is None and entry(store, 1).exists()
    found = verify(again)
    assert found.earlier == 4 and not found.removed_entries and not warned
    fill(again, [1])
    assert again.load(again.get(digest(1))) == image(1)
    assert (store.root / "format").read_text() == "kiln-store 2\n"
    store_upkeep.collect(again.files, 1 << 40)
    assert not entry(store, 2).exists() and again.get(digest(1)) and not warned


def test_an_earlier_kilns_running_build_keeps_its_entries(store):
    path = entry(store, 2)
    rows = rows_of(path)
    held = the_object(store.root, rows["image"]["digest"])
    del rows["name"]
    entry(store, 2, "ir").unlink()
    long_ago = held.stat().st_mtime - 7200
    os.utime(held, (long_ago, long_ago))  # what no entry needs is removed at that age
    with store.in_use():
        path.write_text(json.dumps(rows))
        store_upkeep.collect(store.files, 0)
        assert path.exists() and held.exists()
