"""The store: round trips, damage, kills, locks, many processes, and gc beside running builds."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln_build.base.folder import SharedFolder
from kiln_build.store import upkeep as store_upkeep
from kiln_build.store.local import LocalStore
from kiln_build.store.store import Took
from kiln_recipe.errors import ArtifactError, EnvironmentProblem
from kiln_recipe.images.image import DescriptorInfo, Image
from store_contract import INFO, digest, fill, image


def verify(store: LocalStore) -> store_upkeep.Verified:
    """These images are none: they say nothing of themselves."""
    return store_upkeep.verify(store.files, lambda info, code: ())


def the_object(root: Path, name: str) -> Path:
    return root / "objects" / name[:2] / f"{name}.zst"


@pytest.fixture
def warned() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path, warned) -> LocalStore:
    return LocalStore(tmp_path / "a store", warned.append)


def run_python(code: str, *arguments: object, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; from pathlib import Path; from test_store import *\n" + code]
        + [str(a) for a in arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@settings(max_examples=30, deadline=None)
@given(code=st.binary(max_size=3000), ptx=st.none() | st.text(max_size=500), seconds=st.floats(0, 1e6))
def test_round_trip(tmp_path_factory, code, ptx, seconds):
    store = LocalStore(tmp_path_factory.mktemp("store"))
    stored = store.put(digest(1), Image(code, INFO, ptx), digest("ir"), seconds)
    again = LocalStore(store.root)
    assert again.get(digest(1)) == again.get_ir(digest("ir")) == stored
    assert again.load(stored) == Image(code, INFO, ptx)
    assert abs(stored.seconds - seconds) < 1e-3


def test_descriptors_are_kept_and_entries_without_any_are_as_before(store):
    info = replace(INFO, descriptors=(DescriptorInfo(9, 3, (128, 64)), DescriptorInfo(6, 0, (8,))))
    for number, facts in enumerate((INFO, info)):
        stored = store.put(digest(number), Image(b"code", facts, None), digest(f"ir {number}"), 1.0)
        assert LocalStore(store.root).get(digest(number)) == stored and stored.info == facts
        path = store.root / "index" / digest(number)[:2] / digest(number)
        assert (b"descriptors" in path.read_bytes()) == bool(number)


def test_nothing_is_written_before_the_first_put(store):
    assert store.get(digest(1)) is None
    assert store.durations() == {}
    assert not store.root.exists()


@pytest.mark.parametrize("damage", [lambda data: data[:20], lambda data: b"", None])
def test_a_truncated_or_missing_object_is_a_miss(store, warned, damage):
    fill(store, [1, 2])
    name = store.get(digest(1)).digest
    path = the_object(store.root, name)
    path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
    assert store.get(digest(1)) is None
    assert len(warned) == 1 and name in warned[0] and "compiled again" in warned[0]
    assert ("is truncated" if damage else "is missing") in warned[0]
    assert store.get(digest(1)) is None and store.get_ir(digest("ir 1")) is None
    assert store.get(digest(2)) is not None
    fill(store, [1])
    assert store.load(store.get(digest(1))) == image(1)


def test_a_flipped_bit_is_found_on_reading(store, warned):
    fill(store, [1])
    stored = store.get(digest(1))
    path = the_object(store.root, stored.digest)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="corrupt; build again"):
        store.read(stored.digest)
    assert not path.exists() and len(warned) == 1
    assert store.get(digest(1)) is None
    with pytest.raises(ArtifactError, match="missing"):
        store.read(stored.digest)


def test_a_truncated_entry_is_a_miss(store, warned):
    fill(store, [1])
    path = store.root / "index" / digest(1)[:2] / digest(1)
    path.write_bytes(path.read_bytes()[:-5])
    assert store.get(digest(1)) is None and not path.exists() and digest(1) in warned[0]


def test_a_frame_that_claims_gigabytes_is_not_believed(store):
    fill(store, [1])
    name = store.get(digest(1)).digest
    frame_of_4_gib = bytes.fromhex("28b52ffde00000000001000000010000")
    the_object(store.root, name).write_bytes(frame_of_4_gib)
    with pytest.raises(ArtifactError, match="corrupt"):
        store.read(name)


def test_put_repairs_a_damaged_object_and_accepts_another_compressor(store, warned):
    import zstandard

    fill(store, [1, 2])
    first, second = (store.get(digest(n)).digest for n in (1, 2))
    the_object(store.root, first).write_bytes(b"broken")
    the_object(store.root, second).write_bytes(
        zstandard.ZstdCompressor(level=1, write_checksum=True).compress(image(2).code)
    )
    fill(store, [1, 2])
    assert store.load(store.get(digest(1))) == image(1)
    assert store.get(digest(2)) is not None
    assert len(warned) == 1 and f"object {first} of the store {store.root} is corrupt: removed" in warned[0]


def test_verify_finds_all_damage(store):
    fill(store, range(6))
    names = [store.get(digest(n)).digest for n in range(6)]
    the_object(store.root, names[0]).write_bytes(b"")
    path = the_object(store.root, names[1])
    path.write_bytes(path.read_bytes()[:-4] + b"abcd")
    (store.root / "index" / digest(2)[:2] / digest(2)).write_bytes(b"{}")
    found = verify(store)
    assert set(found.removed_objects) == {names[0], names[1]}
    assert set(found.removed_entries) == {
        *(f"index/{digest(n)}" for n in range(3)),
        *(f"ir/{digest(f'ir {n}')}" for n in range(2)),
    }
    again = verify(store)
    assert not again.removed_objects and not again.removed_entries
    assert [store.get(digest(n)) is not None for n in range(6)] == [False, False, False, True, True, True]


def test_a_look_up_opens_one_file(store, monkeypatch):
    """Of thousands, in a build that finds everything: the objects are only looked at."""
    fill(store, range(3))
    opened, real = [], os.open

    def counted(path, *arguments, **options):
        opened.append(Path(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", counted)
    fresh = LocalStore(store.root)
    assert all(fresh.get(digest(number)) for number in range(3))
    assert opened == [store.root / "format", *(store.files.path("index", digest(number)) for number in range(3))]


# ---- folders that are no store ----


def test_another_format_and_another_folder_are_refused(tmp_path):
    (tmp_path / "format").write_text("kiln-store 9\n")
    with pytest.raises(ArtifactError, match=r"another format.*kiln-store 9"):
        LocalStore(tmp_path)
    (tmp_path / "format").rename(tmp_path / "letters")
    with pytest.raises(EnvironmentProblem, match="is not a store: it holds 'letters'"):
        LocalStore(tmp_path)
    with pytest.raises(EnvironmentProblem, match="letters"):
        LocalStore(tmp_path / "letters")


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    code = """
store = LocalStore(Path(sys.argv[1])); fill(store, [1])
import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try: store.put(digest(2), image(2, 100_000), digest("ir 2"), 1.0)
except EnvironmentProblem as error: print(error)
"""
    process = run_python(code, tmp_path / "store")
    assert "File too large" in process.communicate(timeout=30)[0]
    store = LocalStore(tmp_path / "store")
    assert store.get(digest(1)) and store.get(digest(2)) is None
    assert not list(store.root.rglob(".*"))


def test_a_store_that_one_may_only_read(tmp_path):
    store = LocalStore(tmp_path / "store")
    fill(store, [1])
    for folder, _, files in os.walk(store.root, topdown=False):
        for name in files:
            os.chmod(os.path.join(folder, name), 0o444)
        os.chmod(folder, 0o555)
    code = """
import ctypes
# Without capabilities modes count for root too.
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
store = LocalStore(Path(sys.argv[1]))
assert store.get(digest(1)) is not None
with store.in_use():
    try: fill(store, [2])
    except EnvironmentProblem as error: print(error)
"""
    process = run_python(code, store.root)
    assert "cannot write" in process.communicate(timeout=30)[0] and process.returncode == 0


def test_a_groups_store_may_be_written_by_the_group(tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    os.chmod(root, 0o2770)
    mask = os.umask(0o077)
    try:
        store = LocalStore(root)
        fill(store, [1])
        store.record_duration("a", 1.0)
    finally:
        os.umask(mask)
    for folder, _, files in os.walk(root):
        assert os.stat(folder).st_mode & 0o2070 == 0o2070, folder
        assert all(os.stat(os.path.join(folder, name)).st_mode & 0o060 == 0o060 for name in files)


# ---- many processes ----


@pytest.mark.parametrize("kind", ["index", "ir", "objects"])
def test_a_folder_that_appears_while_one_looks_is_kept(store, warned, monkeypatch, kind):
    is_folder, appeared = SharedFolder.is_folder, []

    def is_folder_but_late(self, path: Path) -> bool:
        answer = is_folder(self, path)
        if path == store.root / kind and not answer:
            appeared.append(path)
            monkeypatch.undo()
            fill(LocalStore(store.root), range(30))  # by another process, between the look and what follows from it
        return answer

    monkeypatch.setattr(SharedFolder, "is_folder", is_folder_but_late)
    fill(store, [1])
    assert appeared and not warned
    assert all(store.load(store.get(digest(number))) == image(number) for number in range(30))


def test_a_file_that_has_the_number_of_a_broken_one_is_kept(store, warned):
    fill(store, [1])
    path = store.files.path("index", digest(1))
    broken = os.lstat(path)
    content = path.read_bytes() + b" "
    with open(path, "wb") as file:  # in place, so that the number stays, as it may for a file made after a removal
        file.write(content)
    assert os.path.samestat(os.lstat(path), broken) and not store.files.folder.remove_same(path, broken)
    assert path.read_bytes() == content


def test_a_kill_leaves_a_whole_store(tmp_path, warned):
    code = "print('ready', flush=True); fill(LocalStore(Path(sys.argv[1])), range(100_000))"
    for round_ in range(3):
        process = run_python(code, tmp_path / "store")
        process.stdout.readline()
        limit = time.monotonic() + 60
        while sum(1 for _ in (tmp_path / "store" / "index").glob("*/*")) < 1 + 60 * round_:
            assert time.monotonic() < limit, "nothing is put"
            time.sleep(0.001)
        process.kill()
        process.communicate()
    store = LocalStore(tmp_path / "store", warned.append)
    found = verify(store)
    assert found.entries > 0 and not found.removed_objects and not found.removed_entries and not warned


def no_locks(descriptor: int, how: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_file_system_without_locks(store, monkeypatch):
    """A build's file tells gc of it all the same, and goes with the build."""
    monkeypatch.setattr("kiln_build.base.folder.fcntl.flock", no_locks)
    fill(store, [1])
    time.sleep(0.02)  # file systems count time in steps of some milliseconds
    with store.in_use(), store.claim(digest("ir 2")):
        fill(store, [2])
        assert store_upkeep.info(store.files).running_builds == 1
        assert store_upkeep.collect(store.files, 0).protected_bytes
    assert store.get(digest(1)) is None and store.get(digest(2)) is not None
    assert store_upkeep.info(store.files).running_builds == 0
    time.sleep(0.02)
    store_upkeep.collect(store.files, 0)
    assert store.get(digest(2)) is None
    assert not [path for kind in ("locks", "builds") for path in (store.root / kind).iterdir()]


def test_a_killed_build_holds_nothing_on_a_file_system_without_locks(store, monkeypatch):
    monkeypatch.setattr("kiln_build.base.folder.fcntl.flock", no_locks)
    code = """
from kiln_build.base import folder
folder.fcntl.flock = no_locks
store = LocalStore(Path(sys.argv[1]))
with store.in_use(), store.claim(digest("ir")): print("held", flush=True); time.sleep(60)
"""
    process = run_python(code, store.root)
    assert process.stdout.readline() == "held\n"
    assert store_upkeep.info(store.files).running_builds == 1
    process.kill()
    process.communicate()
    assert os.listdir(store.root / "builds") and store_upkeep.info(store.files).running_builds == 0
    elsewhere = store.root / "builds" / f"elsewhere-{process.pid}-01234567"
    claim = store.root / "locks" / digest("ir")
    for days, running in ((6, 1), (8, 0)):
        for path in (elsewhere, claim):
            path.touch()
            os.utime(path, (time.time() - days * 86400,) * 2)
        assert store_upkeep.info(store.files).running_builds == running
        store_upkeep.collect(store.files, 0)
        assert elsewhere.exists() == claim.exists() == bool(running)


def test_a_claim_excludes_others_and_dies_with_its_process(store):
    ir = digest("ir")
    code = "with LocalStore(Path(sys.argv[1])).claim(sys.argv[2]): print('held', flush=True); time.sleep(60)"
    fill(store, [1])
    holder = run_python(code, store.root, ir)
    assert holder.stdout.readline() == "held\n"
    entered = threading.Event()

    def wait() -> None:
        with store.claim(ir):
            entered.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    with store.claim(digest("another ir")):
        assert not entered.wait(0.2)
    holder.kill()
    assert entered.wait(60)
    waiter.join()
    holder.communicate()
    assert os.listdir(store.root / "locks") == []


def test_claims_are_exclusive_under_load(store, tmp_path):
    code = """
store, ir, path = LocalStore(Path(sys.argv[1])), digest("ir"), Path(sys.argv[2])
for _ in range(150):
    with store.claim(ir):
        number = int(path.read_text() or 0)
        path.write_text(str(number + 1))
"""
    counter = tmp_path / "counter"
    counter.write_text("0")
    fill(store, [1])
    processes = [run_python(code, store.root, counter) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert counter.read_text() == "450"


# ---- durations ----


def test_durations_survive_damage_and_the_last_wins(store):
    store.record_duration("a[x=1]@sm_90", 1.0, 0.9)
    store.record_duration("b ü", 2.0)
    with (store.root / "durations").open("ab") as file:
        file.write(b'["torn", 1.\n\xff\xfe\n["c"]\n')
    store.record_duration("a[x=1]@sm_90", 3.0)
    warned: list[str] = []
    store = LocalStore(store.root, warned.append)
    for _ in range(2):
        assert store.durations(tidy=True) == {"a[x=1]@sm_90": Took(3.0), "b ü": Took(2.0)}
    (said,) = warned
    assert said.startswith(f"{store.root}/durations: 3 of 6 lines are damaged: removed; such a variant is expected")


def test_durations_do_not_grow_for_ever(store):
    for number in range(1500):
        store.record_duration("a", number)
    assert store.durations(tidy=True) == {"a": Took(1499.0)}
    assert (store.root / "durations").stat().st_size < 100


def test_durations_of_others_are_kept_while_they_are_written_anew(store):
    """Three processes add records, and this one removes damage from among them all the while."""
    code = """
import sys
from pathlib import Path
from kiln_build.store.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
for number in range(200):
    store.record_duration(f"{sys.argv[2]}-{number}", number)
    with (store.root / "durations").open("ab") as file:
        file.write(b"damaged\\n")
"""
    store.record_duration("first", 1.0)
    quiet = LocalStore(store.root, lambda said: None)
    processes = [run_python(code, store.root, name) for name in "abc"]
    while any(process.poll() is None for process in processes):
        quiet.durations(tidy=True)
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert quiet.durations().keys() == {"first", *(f"{name}-{number}" for name in "abc" for number in range(200))}


def test_a_process_that_stands_still_while_it_adds_a_record_holds_nobody_off(store):
    store.record_duration("a", 1.0)
    with store._adding() as is_held:
        assert is_held
        store.record_duration("b", 2.0)
        with (store.root / "durations").open("ab") as file:
            file.write(b"damaged\n")
        said: list[str] = []
        assert LocalStore(store.root, said.append).durations(tidy=True) == {"a": Took(1.0), "b": Took(2.0)}
        assert "1 of 3 lines are damaged: passed over" in said[0]


def test_looking_changes_nothing(store):
    fill(store, [1])
    (key,) = store.keys()
    store.record_duration("a", 1.0)
    with (store.root / "durations").open("ab") as file:
        file.write(b"damaged\n")
    path = store.files.path("index", key)
    os.utime(path, (1e9, 1e9))
    before = (store.root / "durations").read_bytes()
    quiet = LocalStore(store.root, lambda said: None)
    assert quiet.holds(key) and not quiet.holds(digest("another")) and quiet.durations() == {"a": Took(1.0)}
    assert path.stat().st_mtime == 1e9 and (store.root / "durations").read_bytes() == before
    assert quiet.get(key) is not None and path.stat().st_mtime > 1e9


# ---- whose it is ----


@pytest.mark.parametrize("name", ["index", "index/one", "ir", "objects"])
def test_a_folder_that_is_shut_is_told_in_a_sentence(name):
    """As of a user whose umask is 077: what is in there is not said to be missing, and no variant is said to fail."""
    code = """
import os, pwd
if not os.getuid():
    os.setuid(65534)
for ask in (
    lambda store: store.get(digest(1)), lambda store: store.get_ir(digest("ir")), lambda store: store.holds(digest(1)),
    lambda store: store.put(digest(1), Image(b"other", INFO, None), digest("ir"), 1.0),
    lambda store: list(store.keys()), lambda store: store.info(),
):
    try:
        ask(LocalStore(Path(sys.argv[1])))
    except EnvironmentProblem as problem:
        print(problem)
"""
    with tempfile.TemporaryDirectory() as folder:  # not pytest's, which another run shuts
        os.chmod(folder, 0o755)
        store = LocalStore(Path(folder, "a store"))
        store.put(digest(1), Image(b"code", INFO, None), digest("ir"), 1.0)
        place = store.root / name.replace("one", digest(1)[:2])
        place.chmod(0)
        done = run_python(code, store.root, stderr=subprocess.PIPE)
        out, errors = done.communicate(timeout=120)
        place.chmod(0o755)
    assert not done.returncode, errors
    told = out.splitlines()
    assert sum(f"cannot read {place}" in one for one in told) >= 2
    assert all(one.endswith(": Permission denied; make its folder accessible, or name another") for one in told)


# ---- gc ----


def age(store: LocalStore, number: int, seconds: float) -> None:
    then = time.time() - seconds
    stored = store.get(digest(number))
    for path in (
        store.root / "index" / digest(number)[:2] / digest(number),
        store.root / "ir" / digest(f"ir {number}")[:2] / digest(f"ir {number}"),
        the_object(store.root, stored.digest),
        the_object(store.root, stored.ptx),
    ):
        os.utime(path, (then, then))


def test_gc_removes_what_was_used_longest_ago(store):
    fill(store, range(10))
    for number in range(10):
        age(store, number, 1000 - number)
    assert store.get(digest(0))
    size = store_upkeep.info(store.files).bytes
    collected = store_upkeep.collect(store.files, size // 2)
    left = [number for number in range(10) if store.get(digest(number))]
    assert left == [0, 6, 7, 8, 9] and collected.removed_images == 5
    assert collected.bytes == store_upkeep.info(store.files).bytes <= size // 2
    assert collected.removed_bytes == size - collected.bytes
    assert all(store.load(store.get(digest(number))) == image(number) for number in left)
    age(store, 9, -60)  # later than gc's beginning by any clock, however coarse
    assert store_upkeep.collect(store.files, 0).bytes > 0, "what has been used since gc began stays"


def test_gc_keeps_an_image_that_another_key_uses(store):
    fill(store, [1])
    age(store, 1, 1000)
    store.put(digest("other"), image(1), digest("other ir"), 1.0)
    later = time.time() + 60  # than gc's beginning by any clock, however coarse
    os.utime(store.root / "index" / digest("other")[:2] / digest("other"), (later, later))
    store_upkeep.collect(store.files, 0)
    assert store.load(store.get(digest("other"))) == image(1)


def test_gc_keeps_what_running_builds_use(store):
    fill(store, [1, 2])
    with LocalStore(store.root).in_use():
        time.sleep(0.02)
        assert store.get(digest(1))
        age(store, 2, 1000)
        time.sleep(0.02)
        collected = store_upkeep.collect(store.files, 0)
        assert collected.protected_bytes == collected.bytes > 0
        assert store.get(digest(1)) and store.get(digest(2)) is None
        assert store_upkeep.info(store.files).running_builds == 1
    time.sleep(0.02)
    assert store_upkeep.collect(store.files, 0).bytes == 0
    assert store_upkeep.info(store.files).running_builds == 0


def test_gc_forgets_builds_and_claims_that_were_killed(store):
    fill(store, [1])
    code = """
store = LocalStore(Path(sys.argv[1]))
with store.in_use(), store.claim(digest("ir")): print("held", flush=True); time.sleep(60)
"""
    process = run_python(code, store.root)
    process.stdout.readline()
    process.kill()
    process.communicate()
    assert len(os.listdir(store.root / "builds")) == len(os.listdir(store.root / "locks")) == 1
    leftover = store.root / "objects" / "aa" / ".tmp-old"
    leftover.parent.mkdir(exist_ok=True)
    leftover.write_bytes(b"x")
    os.utime(leftover, (1, 1))
    time.sleep(0.02)
    assert store_upkeep.collect(store.files, 0).bytes == 0
    assert os.listdir(store.root / "builds") == os.listdir(store.root / "locks") == []
    assert not leftover.exists()


def test_gc_beside_a_build_never_takes_what_it_was_given(store):
    """A build looks up, puts and reads while gc empties the store as fast as it can."""
    code = """
store = LocalStore(Path(sys.argv[1])); print("ready", flush=True)
while True: store_upkeep.collect(store.files, 0)
"""
    fill(store, range(40))
    collector = run_python(code, store.root)
    collector.stdout.readline()
    missed = 0
    try:
        for round_ in range(200):
            if round_ >= 8 and missed:
                break
            with store.in_use():
                given = []
                for number in random.Random(round_).sample(range(40), 20):
                    stored = store.get(digest(number))
                    if stored is None:
                        missed += 1
                        stored = store.put(digest(number), image(number), digest(f"ir {number}"), 1.0)
                    given.append((number, stored))
                for number, stored in given:
                    assert store.load(stored) == image(number)
    finally:
        collector.kill()
        collector.communicate()
    assert missed > 0, "gc removed nothing: the test tests nothing"
