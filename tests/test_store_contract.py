"""Every store keeps the contract; and the contract's checks find stores that do not."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from cache_server import CacheServer
from kiln_build.cache.access import Access
from kiln_build.cache.layered import open_layered
from kiln_build.store import upkeep
from kiln_build.store.local import LocalStore
from kiln_recipe.images.image import Image
from store_contract import CHECKS, digest


class InFolder:
    """Opens a `LocalStore`, or what is derived of it, in a folder."""

    def __init__(self, folder: Path, kind=LocalStore) -> None:
        self.folder, self.kind = folder, kind

    def __call__(self, *words):
        return self.kind(self.folder / "a store", *words)

    def damage(self, store: LocalStore, name: str) -> None:
        """Changes a byte of an object."""
        path = store.files.path("objects", name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


class BeforeACache(InFolder):
    """A `LocalStore` with a cache behind it, which has other images alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = CacheServer()

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *words) -> None:
        self.server.__exit__(*words)

    def __call__(self, *words):
        said = words[0] if words else print
        return open_layered(super().__call__(*words), self.server.url, Access(), 2, said)

    def damage(self, store, name: str) -> None:
        super().damage(store.local, name)


class BeforeADeadCache(BeforeACache):
    """The same with a cache that answers nothing."""

    def __enter__(self):
        self.server.faults.dies = True
        return super().__enter__()


# To add an implementation is to add a line: what, given a folder, opens a store there.
STORES = {
    "local": InFolder,
    "with a cache": BeforeACache,
    "with a dead cache": BeforeADeadCache,
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("store", STORES)
def test_contract(store, name, tmp_path):
    opened = STORES[store](tmp_path)
    with opened if isinstance(opened, BeforeACache) else contextlib.nullcontext():
        CHECKS[name](opened)


# ---- wrong ones, and the check that finds each ----


class Remembers(LocalStore):
    """Keeps what was put in this object, unseen by others."""

    def __init__(self, *words):
        super().__init__(*words)
        self.mine = {}

    def get(self, key):
        return self.mine.get(key)

    def put(self, key, image, ir, seconds):
        self.mine[key] = super().put(digest("nobody asks for it"), image, ir, seconds)
        return self.mine[key]


class LosesPtx(LocalStore):
    def load(self, stored):
        return Image(self.read(stored.digest), stored.info, None)


class LocksNothing(LocalStore):
    def claim(self, ir, waiting=contextlib.nullcontext):
        return contextlib.nullcontext()


class ProtectsNothing(LocalStore):
    def in_use(self):
        return contextlib.nullcontext()


class AliasesNothing(LocalStore):
    def alias(self, key, ir):
        return self.get_ir(ir)


class ForgetsTheKeyAlone(LocalStore):
    def forget(self, key, stored):
        self.files.remove_entry(self.files.path("index", key))


class MarksNoUse(LocalStore):
    """A look-up is no use: what is used again and again is removed as what is not."""

    def _get(self, path):
        entry = self.files.entry(path)
        return entry.image if entry else None


class ChecksNothing(LocalStore):
    def read(self, digest):
        return self.files.path("objects", digest).read_bytes()


class BelievesWhatIsStated(LocalStore):
    def verify(self):
        return upkeep.verify(self.files, lambda info, code: ())


WRONG = {
    Remembers: ("finds_in_every_process_what_one_has_put", "another process does not find it"),
    LosesPtx: ("gives_back_what_was_put", "the image comes back whole"),
    LocksNothing: ("a_claim_holds_off_other_processes", "a claim does not hold off others"),
    ProtectsNothing: ("keeps_what_a_running_build_uses", "an image of a running build has gone"),
    AliasesNothing: ("gives_an_image_another_key", "an alias is kept"),
    ForgetsTheKeyAlone: ("forgets_an_image", "what was forgotten is found"),
    MarksNoUse: ("collects_what_was_used_least_recently", "another image than the least recently used one"),
    ChecksNothing: ("believes_nothing_that_is_damaged", "DID NOT RAISE"),
    BelievesWhatIsStated: ("verifies_all", "contradicts what is stated of it stays"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_store_is_found(kind, tmp_path):
    name, words = WRONG[kind]
    with pytest.raises((AssertionError, pytest.fail.Exception), match=words):
        CHECKS[name](InFolder(tmp_path, kind))
