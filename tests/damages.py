"""What can happen to the files of a store: done to one file at a time, or to many files of a real store at once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path


def bind(path: Path) -> None:
    """A socket; its address may only have 108 bytes."""
    here = os.getcwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("s")
    os.rename("s", path)
    os.chdir(here)


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def folder_with_something(path: Path) -> None:
    (path / "more").mkdir(parents=True)
    (path / "more" / "file").write_text("something")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def link_to_its_own_copy(path: Path) -> None:
    shutil.copy(path, path.with_name(".copy"))
    path.unlink()
    path.symlink_to(".copy")


# What is done to a file, and what is said of it.
DAMAGES = {
    "empty": (lambda path: path.write_bytes(b""), "is corrupt|is truncated"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-7]), "is corrupt|is truncated"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "is corrupt"),
    "noise": (lambda path: path.write_bytes(os.urandom(300)), "is corrupt"),
    "a pipe": (instead(os.mkfifo), "is a pipe instead of a file"),
    "a folder": (instead(Path.mkdir), "is a folder instead of a file"),
    "a folder with something": (instead(folder_with_something), "is a folder instead of a file"),
    "a link": (link_to_its_own_copy, "is a link instead of a file"),
    "a dangling link": (instead(lambda path: path.symlink_to("nowhere")), "is a link instead of a file"),
    "a link to itself": (instead(lambda path: path.symlink_to(path.name)), "is a link instead of a file"),
    "a socket": (instead(bind), "is a socket instead of a file"),
    "a terabyte": (sparse, "has 1099511627776 bytes, which is too many"),
}


def rows_of(entry: Path) -> dict:
    """What an entry says."""
    return json.loads(entry.read_bytes().partition(b"\n")[2])


def forge(entry: Path, change: Callable[[dict], object]) -> None:
    """Changes what an entry says, and makes its digest right again."""
    rows = rows_of(entry)
    change(rows)
    content = json.dumps(rows, separators=(",", ":")).encode()
    entry.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def exchange(one: Path, two: Path) -> None:
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def flip_shared(entry: Path) -> None:
    """One bit of a number that only the compiler knows."""
    data = entry.read_bytes()
    place = data.index(b'"shared":') + len(b'"shared":')
    entry.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])


def sow(store: Path, keys: Collection[str]) -> Iterator[tuple[str, str]]:
    """Damages a store, each time other files: what was done, and the name of the file, which a build that needs `keys`
    and `kiln store verify` must name."""
    images = {path: rows_of(path)["image"] for path in sorted(store.glob("index/*/*"))}
    uses = Counter(image["digest"] for image in images.values())
    irs = Counter(image["ir"] for image in images.values())

    def code(entry: Path) -> Path:
        digest = images[entry]["digest"]
        return store / "objects" / digest[:2] / f"{digest}.zst"

    entries = sorted(images, key=lambda path: code(path).stat().st_size)  # small ones are soon compiled again
    single = [p for p in entries if p.name in keys and uses[images[p]["digest"]] == irs[images[p]["ir"]] == 1]
    cubin = next(path for path in single if images[path]["info"]["kind"] == "cubin")
    alone = (path for path in single if path != cubin)

    def ir(entry: Path) -> Path:
        digest = rows_of(entry)["image"]["ir"]
        return store / "ir" / digest[:2] / digest

    flip_shared(cubin)
    yield "entry: one bit of its shared memory", cubin.name
    for name, (damage, _) in DAMAGES.items():
        one = next(alone)
        damage(one)
        yield f"entry: {name}", one.name
    one, two = next(alone), next(alone)
    exchange(one, two)
    yield "entries: exchanged", one.name
    yield "entries: exchanged", two.name
    one = next(alone)
    for path in (ir(one), one):  # what is compiled again would take the image by its IR
        forge(path, lambda rows: rows["image"]["info"].update(registers=200))
    yield "entry: registers edited, digest made right", one.name
    one = next(alone)
    damaged = ir(one)
    DAMAGES["truncated"][0](damaged)
    one.unlink()
    yield "entry of an IR: truncated, and that of the key gone", damaged.name
    for name, (damage, _) in DAMAGES.items():
        one = code(next(alone))
        damage(one)
        yield f"object: {name}", one.stem
    one, two = code(next(alone)), code(next(alone))
    exchange(one, two)
    yield "objects: exchanged", one.stem
    yield "objects: exchanged", two.stem
    one = code(next(alone))
    one.unlink()
    yield "object: gone, its digest dangles", one.stem
