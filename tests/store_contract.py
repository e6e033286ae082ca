"""What every store promises (kiln_build/store/store.py), as checks: each takes what opens, and damages, a store.

tests/test_store_contract.py runs them on every implementation, and shows that they find wrong ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kiln_build.store.store import Store, Took
from kiln_recipe.errors import ArtifactError
from kiln_recipe.images.image import Image, ImageInfo

# Opens the store of a test: each call gives another object on the same store, as another process would have.
Open = Callable[..., Store]
Check = Callable[[Open], None]
CHECKS: dict[str, Check] = {}

INFO = ImageInfo("cubin", "kernel", 128, 49152, 255, 0, 0, 12, 0, 1, 0, 1, 7, "8.8")


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def digest(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def image(number: int, size: int = 2000) -> Image:
    return Image(random.Random(number).randbytes(size), INFO, f"// PTX {number}\n" * 50)


def fill(store: Store, numbers) -> None:
    for number in numbers:
        store.put(digest(number), image(number), digest(f"ir {number}"), 1.0)


def elsewhere(store: Store, code: str, *words: object) -> subprocess.Popen:
    """Runs code in another process, which has opened the same store by its location."""
    head = "import sys, time; from store_contract import *; from kiln_build.store.stores import open_store\n"
    return subprocess.Popen(
        [sys.executable, "-c", f"{head}store = open_store(sys.argv[1])\n{code}", store.location, *map(str, words)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )


# ---- images ----


@check
def has_nothing_at_first(open_store: Open) -> None:
    store = open_store()
    assert store.get(digest(1)) is None and store.get_ir(digest("ir 1")) is None
    assert store.alias(digest(2), digest("ir 1")) is None
    assert store.durations() == {} and store.info().variants == 0 and store.refusal() == ""
    with pytest.raises(ArtifactError, match="missing"):
        store.read(digest("no such object"))


@check
def gives_back_what_was_put(open_store: Open) -> None:
    for number, one in enumerate((image(1), Image(b"", INFO, None), Image(b"code", INFO, ""))):
        stored = open_store().put(digest(number), one, digest(f"ir {number}"), 1.25)
        assert (stored.info, stored.ir, stored.seconds) == (INFO, digest(f"ir {number}"), 1.25)
        assert stored.digest == hashlib.sha256(one.code).hexdigest()
        again = open_store()
        assert again.get(digest(number)) == again.get_ir(digest(f"ir {number}")) == stored
        assert again.load(stored) == one, "the image comes back whole"
        assert again.read(stored.digest) == one.code


@check
def finds_in_every_process_what_one_has_put(open_store: Open) -> None:
    store = open_store()
    fill(store, [1])
    other = elsewhere(store, "print(store.load(store.get(digest(1))) == image(1)); fill(store, [2])")
    assert other.communicate(timeout=60)[0] == "True\n", "another process does not find it"
    assert store.load(store.get(digest(2))) == image(2)


@check
def takes_the_same_twice(open_store: Open) -> None:
    store = open_store()
    fill(store, [1, 1])
    before = store.info()
    fill(open_store(), [1])
    assert store.info() == before and store.load(store.get(digest(1))) == image(1)


@check
def lists_its_keys(open_store: Open) -> None:
    store = open_store()
    assert list(store.keys()) == []
    fill(store, [1, 2, 3])
    assert sorted(open_store().keys()) == sorted(map(digest, (1, 2, 3)))


@check
def takes_announcements_of_what_is_there_and_what_is_not(open_store: Open) -> None:
    store = open_store()
    fill(store, [1])
    store.prefetch([digest(1), digest(2)])
    store.share(digest(1))
    assert store.load(store.get(digest(1))) == image(1) and store.get(digest(2)) is None
    store.close(at_once=True)
    assert open_store().load(open_store().get(digest(1))) == image(1)


@check
def gives_an_image_another_key(open_store: Open) -> None:
    store = open_store()
    fill(store, [1])
    objects = store.info().objects
    stored = store.alias(digest(2), digest("ir 1"))
    assert stored is not None and stored == open_store().get(digest(2)) == store.get(digest(1)), "an alias is kept"
    assert store.info().variants == 2 and store.info().objects == objects, "an alias copies nothing"


@check
def forgets_an_image(open_store: Open) -> None:
    store = open_store()
    fill(store, [1, 2])
    store.forget(digest(1), store.get(digest(1)))
    for one in (store, open_store()):
        assert one.get(digest(1)) is None and one.get_ir(digest("ir 1")) is None, "what was forgotten is found"
        assert one.get(digest(2)) is not None
    fill(store, [1])
    assert open_store().load(store.get(digest(1))) == image(1)


@check
def takes_digests_alone_for_names(open_store: Open) -> None:
    for name in ("", "../../etc/passwd", "AB" * 32, "a" * 63):
        for look in (open_store().get, open_store().get_ir, open_store().read):
            with pytest.raises(ValueError, match="digest"):
                look(name)


@check
def survives_writers_at_once(open_store: Open) -> None:
    store = open_store()
    code = "fill(store, range(int(sys.argv[2]), int(sys.argv[2]) + 30))"
    writers = [elsewhere(store, code, first) for first in (0, 0, 15)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert all(open_store().load(store.get(digest(n))) == image(n) for n in range(45))
    assert store.info().variants == 45


@check
def a_killed_writer_leaves_whole_images_alone(open_store: Open) -> None:
    store = open_store()
    writer = elsewhere(store, "print('ready', flush=True); fill(store, range(100_000))")
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    time.sleep(0.3)
    writer.kill()
    writer.wait()
    found = [n for n in range(1000) if open_store().get(digest(n)) is not None]
    assert found and all(store.load(store.get(digest(n))) == image(n) for n in found), "half an image is found"
    fill(store, range(len(found) + 1))
    assert store.load(store.get(digest(len(found)))) == image(len(found))


# ---- who works on it ----


@check
def a_claim_holds_off_other_processes(open_store: Open) -> None:
    store = open_store()
    waits = []

    @contextlib.contextmanager
    def waiting():
        waits.append("begun")
        holder.kill()
        yield
        waits.append("over")

    holder = elsewhere(store, "with store.claim(sys.argv[2]): print('held', flush=True); time.sleep(60)", digest("ir"))
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        with store.claim(digest("another"), waiting):
            assert waits == [], "a claim of another IR is held off"
        with store.claim(digest("ir"), waiting):
            assert waits == ["begun", "over"], "a claim does not hold off others, or not within `waiting`"
    finally:
        holder.kill()
        holder.wait()
    with store.claim(digest("ir"), waiting):
        assert len(waits) == 2, "nothing to wait for"


@check
def claims_end_when_they_are_left(open_store: Open) -> None:
    one, two = open_store(), open_store()
    order: list[str] = []

    def second() -> None:
        with two.claim(digest("ir")):
            order.append("second")

    thread = threading.Thread(target=second)
    with contextlib.suppress(KeyError), one.claim(digest("ir")):
        thread.start()
        time.sleep(0.2)
        order.append("first")
        raise KeyError
    thread.join(20)
    assert order == ["first", "second"]


# ---- durations ----


@check
def remembers_durations(open_store: Open) -> None:
    store = open_store()
    for name, seconds, cpu in (("a", 1.5, 1.5), ("b [x=1]@t", 2.25, None), ("a", 3.0, 2.5)):
        store.record_duration(name, seconds, cpu)
    assert open_store().durations() == {"a": Took(3.0, 2.5), "b [x=1]@t": Took(2.25)}


# ---- upkeep ----


def age() -> None:
    """What comes now is used later than what came before: stores may tell times no better than so."""
    time.sleep(0.05)


@check
def collects_what_was_used_least_recently(open_store: Open) -> None:
    store = open_store()
    for number in range(6):
        fill(store, [number])
        age()
    store.get(digest(0))
    age()
    size = store.info().bytes
    collected = store.collect(size // 2)
    kept = [n for n in range(6) if open_store().get(digest(n)) is not None]
    assert collected.bytes <= size // 2 and collected.removed_images == 6 - len(kept)
    assert kept == [0, *range(7 - len(kept), 6)], "another image than the least recently used one has gone"
    assert all(store.load(store.get(digest(n))) == image(n) for n in kept)


@check
def keeps_what_a_running_build_uses(open_store: Open) -> None:
    store = open_store()
    fill(store, [1, 2])
    age()
    with open_store().in_use():
        age()
        assert store.get(digest(1)) is not None
        fill(store, [3])
        collected = store.collect(0)
        assert all(open_store().get(digest(n)) for n in (1, 3)), "an image of a running build has gone"
        assert open_store().get(digest(2)) is None
        assert collected.protected_bytes > 0 and store.info().running_builds == 1
    assert store.info().running_builds == 0
    build = elsewhere(store, "with store.in_use(): print('in use', flush=True); time.sleep(60)")
    assert build.stdout is not None and build.stdout.readline() == "in use\n"
    assert store.get(digest(1)) is not None and store.info().running_builds == 1
    build.kill()
    build.wait()
    age()
    assert store.collect(0).bytes == 0, "what a dead build used stays"


@check
def verifies_all(open_store: Open) -> None:
    """These images are none, and say nothing of themselves: each contradicts its facts."""
    store = open_store()
    assert store.verify().entries == 0
    fill(store, [1])
    verified = store.verify()
    assert verified.objects == 2 and verified.entries == 2
    assert len(verified.removed_entries) == 2, "an image that contradicts what is stated of it stays"
    assert store.get(digest(1)) is None


# ---- damage ----


@check
def believes_nothing_that_is_damaged(open_store: Open) -> None:
    warned: list[str] = []
    store = open_store(warned.append)
    fill(store, [1, 2])
    stored = store.get(digest(1))
    open_store.damage(store, stored.digest)  # type: ignore[attr-defined]
    with pytest.raises(ArtifactError, match="build again"):
        open_store(warned.append).read(stored.digest)
    assert any(stored.digest in text for text in warned), "nothing is said of damage"
    assert store.get(digest(1)) is None, "a damaged image is found"
    assert store.load(store.get(digest(2))) == image(2)
    fill(store, [1])
    assert store.load(store.get(digest(1))) == image(1)
