"""Cases for the readers of what others made: seeded, each a small change of something real, deep enough to be read.

Run as `python -m fuzz_readers FOLDER FIRST COUNT`: takes COUNT cases from number FIRST on, in one process, each through
the command line; prints a line for each that ends otherwise than it may, and the number of cases in the end.

A case may end with success, where what was changed is for a file to say, or with a documented exit code and one
printable sentence. It may not raise, may take no more than MOST_SECONDS of the processor, and no other tarball is
called whole.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import hashlib
import io
import json
import random
import shutil
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from kiln_build.artifacts import manifest_model, pack
from kiln_build.base import tar
from kiln_build.cli import main

MOST_SECONDS = 20.0
CODES = {0, 2, 3, 5, 6, 7}
_NUMBERS = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_VALUES = (None, True, False, 0, -1, 1 << 31, 1 << 64, 10**4000, 1.5, float("nan"), "", "x", "\x1b[2J", "\u202e",
           "../x", "x" * 5000, [], [[]], {}, {"a": 1}, ["a"] * 50, "0" * 64, "a\nb", "\ud800")  # fmt: skip
_YAML = ("[", "]", "{", "}", ": ", "- ", "&a ", "*a", "!!int ", "!!binary ", "<<: ", "? ", "|\n", ">\n", "'", '"',
         "\t", "#", "---\n", "0x" + "f" * 500, "1e999", ".nan", "\x00", "\x1b", "[" * 100, "  ", "\n", "%YAML 9\n",
         "@", "2001-99-99", "=", "\ud800")  # fmt: skip
_COMMANDS = (("inspect",), ("inspect", "--verify"), ("inspect", "--verify"), ("list",), ("list", "--json"))


def bytes_of(data: bytes, source: random.Random, places: int = 0) -> bytes:
    """Bytes changed, taken out or put in, in the first `places` of them if those are given."""
    bad = bytearray(data)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(min(places or len(bad), len(bad)) or 1)
        kind = source.randrange(6)
        if kind < 3:
            bad[at : at + 1] = bytes([source.randrange(256)])
        elif kind == 3:
            bad[at : at + 4] = struct.pack("<I", source.choice(_NUMBERS))
        elif kind == 4:
            del bad[at : at + source.randint(1, 600)]
        else:
            bad[at:at] = source.randbytes(source.randint(1, 600))
    return bytes(bad)


class Cases:
    """What cases are made of: a small release's files, as `corpus` has left them in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stage, self.work = folder / "stage", folder / "work"
        self.tarball = (folder / "release.tar.gz").read_bytes()
        self.plain = gzip.decompress(self.tarball)
        self.manifest = (self.stage / manifest_model.PATH).read_bytes()
        self.packs = sorted((self.stage / manifest_model.IMAGES).glob("*.pack"))
        self.images = sorted(path for path in (folder / "images").iterdir() if path.suffix != ".ptx")
        self.bundle = (folder / "bundle.tar").read_bytes()
        self.recipe = (folder / "recipe.yaml").read_text()

    def put(self, name: str, data: bytes) -> Path:
        (self.work / name).write_bytes(data)
        return self.work / name

    def command(self, path: Path, source: random.Random) -> list[str]:
        words = source.choice(
            (["inspect"], ["inspect", "--verify"], ["inspect", "--verify"], ["list"], ["list", "--json"])
        )
        more = ["--html", str(self.work / "page.html")] if words == ["inspect"] and source.random() < 0.3 else []
        return [words[0], str(path), *words[1:], *more]

    def tar_bytes(self, source: random.Random) -> list[str]:
        """An archive's headers, and what is behind it."""
        bad = bytearray(self.plain)
        heads = [at for at in range(0, len(bad), 512) if bad[at + 257 : at + 262] == b"ustar"]
        for _ in range(source.randint(1, 3)):
            at = source.choice(heads) + source.randrange(512)
            bad[at] = source.randrange(256)
        if source.random() < 0.5:  # with the checksum that it should have
            at = source.choice(heads)
            bad[at + 148 : at + 156] = b" " * 8
            bad[at + 148 : at + 156] = b"%06o\0 " % sum(bad[at : at + 512])
        return self.command(self.put("x.tar.gz", squeezed(bytes(bad))), source)

    def tar_members(self, source: random.Random) -> list[str]:
        """Members exchanged, doubled, left out, or others put between."""
        pieces, at = [], 0
        while self.plain[at : at + 512].strip(b"\0"):
            size = int(self.plain[at + 124 : at + 135], 8)
            pieces.append(self.plain[at : at + 512 + size + -size % 512])
            at += len(pieces[-1])
        for _ in range(source.randint(1, 2)):
            one, other = source.randrange(len(pieces)), source.randrange(len(pieces))
            kind = source.randrange(4)
            if kind == 0:
                pieces[one], pieces[other] = pieces[other], pieces[one]
            elif kind == 1:
                pieces.insert(one, pieces[other])
            elif kind == 2:
                del pieces[one]
            else:
                name = source.choice(("kiln/lib/z", "kiln/../z", "kiln/lib/libkiln.so", "/z", "z", "kiln/share/kiln/a"))
                block = bytearray(512)
                block[: len(name)] = name.encode()
                block[100:156] = pieces[-1][100:124] + b"%011o\0" % 0 + pieces[-1][136:156]
                block[156:157] = source.choice((b"0", b"1", b"2", b"5", b"L", b"x", b"g", b"S"))
                link = source.choice((b"libkiln.so", b"../../etc/", b"kiln/lib/libkiln.so.0", b"kiln/lib", b""))
                block[157 : 157 + len(link)] = link
                block[257:265] = b"ustar\x0000"
                block[148:156] = b" " * 8
                block[148:156] = b"%06o\0 " % sum(block)
                pieces.insert(one, bytes(block))
        data = b"".join(pieces)
        return self.command(self.put("x.tar.gz", squeezed(data + tar.end(len(data)))), source)

    def gzip_bytes(self, source: random.Random) -> list[str]:
        """The compressed bytes themselves."""
        where = source.choice((30, 0, 0))
        return self.command(self.put("x.tar.gz", bytes_of(self.tarball, source, where)), source)

    def manifest_text(self, source: random.Random) -> list[str]:
        return self.with_manifest(bytes_of(self.manifest, source), source)

    def manifest_values(self, source: random.Random) -> list[str]:
        """Values of other types, fields that are missing or new, rows doubled; in the spelling that it should have."""
        document = json.loads(self.manifest)
        for _ in range(source.randint(1, 3)):
            place: object = document
            while isinstance(place, (dict, list)) and place:
                key = source.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
                if not isinstance(place[key], (dict, list)) or not place[key] or source.random() < 0.2:
                    kind = source.randrange(8)
                    if kind == 0:
                        del place[key]
                    elif kind == 1 and isinstance(place, dict):
                        place[source.choice(("x", "", "\x1b", "bytes", "link"))] = copy.deepcopy(source.choice(_VALUES))
                    elif kind == 2 and isinstance(place, list):
                        place.append(place[key])
                    else:
                        place[key] = copy.deepcopy(source.choice(_VALUES))
                    break
                place = place[key]
        text = "".join(f"{line}\n" for line in manifest_model._lines(document))
        return self.with_manifest(text.encode("utf-8", "surrogatepass"), source)

    def with_manifest(self, data: bytes, source: random.Random) -> list[str]:
        """In the folder of a release, whose other files are links to the real ones' bytes."""
        if not (self.work / "kiln").exists():
            shutil.copytree(self.stage, self.work / "kiln", symlinks=True)
        (self.work / "kiln" / manifest_model.PATH).write_bytes(data)
        return self.command(self.work / "kiln", source)

    def pack_index(self, source: random.Random) -> list[str]:
        """Words of an index; its digest is right again."""
        data = source.choice(self.packs).read_bytes()
        size = struct.unpack_from("<Q", data, 16)[0]
        index = bytearray(data[64 : 64 + size])
        for _ in range(source.randint(1, 3)):
            at = 4 * source.randrange(len(index) // 4)
            (old,) = struct.unpack_from("<I", index, at)
            value = source.choice((*_NUMBERS, old + 1, old - 1, old ^ 1 << source.randrange(32))) & 0xFFFFFFFF
            struct.pack_into("<I", index, at, value)
        if source.random() < 0.3:
            index = bytearray(bytes_of(bytes(index), source))
        head = pack.HEADER.pack(pack.MAGIC, 1, 64, len(index), hashlib.sha256(index).digest(), 0)
        return self.command(self.put("x.pack", head + index + data[64 + size :]), source)

    def pack_group(self, source: random.Random) -> list[str]:
        """A group's frame or its compressed bytes; all digests above it are right again."""
        import zstandard

        path = source.choice(self.packs)
        data = path.read_bytes()
        found = pack.read_pack(path)
        stored = [data[group.offset : group.offset + group.stored] for group in found.groups]
        number = source.randrange(len(stored))
        if source.random() < 0.8:
            frame = zstandard.ZstdDecompressor().decompress(stored[number])
            frame = bytes_of(frame, source, source.choice((12, 300, 0)))
            stored[number] = zstandard.ZstdCompressor(level=1).compress(frame)
        else:
            stored[number] = bytes_of(stored[number], source, source.choice((16, 0)))
        return self.command(self.put("x.pack", resealed(data, stored)), source)

    def pack_image(self, source: random.Random) -> list[str]:
        """An image within a pack, of the same size, all digests right: only what it says of itself is wrong."""
        import zstandard

        path = source.choice(self.packs)
        data = path.read_bytes()
        found = pack.read_pack(path)
        stored = [data[group.offset : group.offset + group.stored] for group in found.groups]
        image = source.choice(found.images)
        raw = bytearray(pack.decode_group(stored[image.group], found.groups[image.group], "p"))
        for _ in range(source.randint(1, 4)):
            raw[image.offset + source.randrange(image.bytes)] = source.randrange(256)
        frame = struct.pack("<3I256s", 0, 0, 0, bytes([4] * 256)) + raw
        stored[image.group] = zstandard.ZstdCompressor(level=1).compress(frame)
        bad = bytearray(resealed(data, stored))
        row = 64 + pack.COUNTS.size + pack.GROUP_ROW.size * len(stored)
        row += pack.IMAGE_ROW.size * found.images.index(image) + 64
        digest = hashlib.sha256(raw[image.offset : image.offset + image.bytes]).digest()
        bad[row : row + 32] = digest
        size = struct.unpack_from("<Q", bad, 16)[0]
        bad[24:56] = hashlib.sha256(bad[64 : 64 + size]).digest()
        return self.command(self.put("x.pack", bytes(bad)), source)

    def elf(self, source: random.Random) -> list[str]:
        """Headers, sections and notes of an image."""
        data = bytearray(source.choice(self.images).read_bytes())
        start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
        for _ in range(source.randint(1, 4)):
            kind = source.randrange(4)
            if kind == 0:
                data[source.randrange(64)] = source.randrange(256)
            elif kind == 1 and start + 64 * count <= len(data):
                struct.pack_into("<I", data, start + 4 * source.randrange(16 * count), source.choice(_NUMBERS))
            elif kind == 2:
                data[source.randrange(len(data))] = source.randrange(256)
            else:
                at = 4 * source.randrange(len(data) // 4)
                struct.pack_into("<I", data, at, source.choice(_NUMBERS))
        return self.command(self.put("image", bytes(data)), source)

    def bundle_bytes(self, source: random.Random) -> list[str]:
        shutil.rmtree(self.work / "input", ignore_errors=True)
        (self.work / "input").mkdir()
        path = self.put("x.tar", bytes_of(self.bundle, source, source.choice((512, 2000, 0))))
        return ["fetch", "--input", str(self.work / "input"), "--unbundle", str(path)]

    def lock_text(self, source: random.Random) -> list[str]:
        """The lock as somebody has edited it."""
        size = int(self.bundle[124:135], 8)
        text = spelled_badly(self.bundle[512 : 512 + size].decode(), source).encode("utf-8", "surrogatepass")
        shutil.rmtree(self.work / "input", ignore_errors=True)
        (self.work / "input").mkdir()
        self.put("input/toolchain.lock.yaml", text)
        return ["fetch", "--input", str(self.work / "input"), "--verify"]

    def recipe_text(self, source: random.Random) -> list[str]:
        text = spelled_badly(self.recipe, source)
        return ["recipes", str(self.put("recipe.yaml", text.encode("utf-8", "surrogatepass")))]


def spelled_badly(text: str, source: random.Random) -> str:
    for _ in range(source.randint(1, 3)):
        at, end = sorted((source.randrange(len(text)), source.randrange(len(text))))
        kind = source.randrange(4)
        if kind == 0:
            text = text[:at] + source.choice(_YAML) + text[at:]
        elif kind == 1:
            text = text[:at] + source.choice(_YAML) * source.choice((1, 50, 2000)) + text[at + 1 :]
        elif kind == 2:
            text = text[:at] + text[min(end, at + 200) :] or "x"
        else:
            text = text[:at] + text[at : min(end, at + 200)] + text[at:]
    return text


def squeezed(plain: bytes) -> bytes:
    import deflate

    return bytes(deflate.gzip_compress(plain, 1))[:8] + b"\0\xff" + bytes(deflate.gzip_compress(plain, 1))[10:]


def resealed(data: bytes, stored: list[bytes]) -> bytes:
    """A pack with other groups, its index and digests as they should be."""
    size = struct.unpack_from("<Q", data, 16)[0]
    index = bytearray(data[64 : 64 + size])
    offset = 64 + size
    for number, group in enumerate(stored):
        at = pack.COUNTS.size + pack.GROUP_ROW.size * number
        struct.pack_into("<QI", index, at, offset, len(group))
        index[at + 16 : at + 48] = hashlib.sha256(group).digest()
        offset += len(group)
    head = pack.HEADER.pack(pack.MAGIC, 1, 64, size, hashlib.sha256(index).digest(), 0)
    return head + bytes(index) + b"".join(stored)


KINDS = ("tar_bytes", "tar_members", "gzip_bytes", "manifest_text", "manifest_values", "pack_index", "pack_group",
         "pack_image", "elf", "bundle_bytes", "lock_text", "recipe_text")  # fmt: skip


def ends_well(words: list[str], plain: bytes) -> str:
    """Runs a command; what is wrong with how it ended, or "". `plain`: what a tarball must hold to be called whole."""
    out, err = io.StringIO(), io.StringIO()
    began = time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    except BaseException:  # noqa: BLE001 - whatever leaves is a finding
        return "raised: " + traceback.format_exc()
    taken = time.process_time() - began
    lines = err.getvalue().splitlines()
    said = "\n".join(line for line in lines if not line.startswith(("unbundle ", "verify ")))  # how far it has come
    if taken > MOST_SECONDS:
        return f"took {taken:.1f} s"
    if code not in CODES:
        return f"ended with {code}: {said[:300]}"
    if "\x1b" in out.getvalue() or not out.getvalue().replace("\n", "").isprintable():
        return "printed what is not printable"
    if code and "fetch" in words and "--verify" in words and not said:
        return ""  # the names of what is wrong are its output
    if code and (len(said.splitlines()) != 1 or not said.isprintable() or not said.startswith("kiln: ")):
        return f"said {said[:300]!r}"
    path = Path(words[1])
    if code == 0 and "--verify" in words and path.name == "x.tar.gz" and gzip.decompress(path.read_bytes()) != plain:
        return "was called whole"
    return ""


def corpus(folder: Path) -> None:
    """Puts what cases are made of into a folder."""
    import small_recipe
    from kiln_build.fetch.bundle import write_bundle
    from kiln_recipe.compile.lock import LOCK_NAME, write_lock
    from kiln_recipe.console.progress import Progress
    from small_release import linked_release
    from test_fetch import make_files, make_lock

    made = linked_release()
    shutil.copytree(made.stage, folder / "stage", symlinks=True)
    shutil.copytree(made.images, folder / "images", ignore=shutil.ignore_patterns("*.py", "cache", "__pycache__"))
    shutil.copy(made.tarball, folder / "release.tar.gz")
    files = make_files("alpha", "beta", size=900)
    lock = make_lock(files)
    (folder / "input/cache").mkdir(parents=True)
    (folder / "input" / LOCK_NAME).write_text(write_lock(lock, "# a test's"))
    for name, (_, data) in files.items():
        (folder / "input/cache" / name).write_bytes(data)
    write_bundle(folder / "bundle.tar", folder / "input", lock, lock.every_file(), Progress())
    (folder / "family").mkdir()
    shutil.copy(small_recipe.write(folder / "family", small_recipe.RECIPE), folder / "recipe.yaml")
    (folder / "work").mkdir()
    for source in (folder / "family").glob("*.py"):
        shutil.copy(source, folder / "work")


def run(folder: Path, first: int, count: int, say: Callable[[str], object] = print) -> int:
    """Takes the cases; the number of those that end otherwise than they may."""
    cases, findings = Cases(folder), 0
    for number in range(first, first + count):
        source = random.Random(number)
        kind = KINDS[number % len(KINDS)]
        words = getattr(cases, kind)(source)
        if problem := ends_well(words, cases.plain):
            findings += 1
            say(f"case {number}, {kind}, kiln {' '.join(words)}: {problem}")
    return findings


if __name__ == "__main__":
    place, begin, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    found = run(place, begin, size)
    print(f"{size} cases, {found} findings", flush=True)
    sys.exit(1 if found else 0)
