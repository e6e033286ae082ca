"""The code objects of a release, by their digests, with the variants that they serve.

python3 images.py PREFIX FOLDER    (an unpacked release, .../kiln; writes FOLDER/<target>/<key>.hsaco)
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kiln_build.artifacts import pack as packs

OF_AMD = "gfx"


@dataclass(frozen=True)
class Image:
    """A code object, and the first variant that is it.

    Attributes:
        key: of that variant. name: "attn_fwd.main bf16 ... [configuration] specialization".
        operation: "attn_fwd". symbol: of its kernel.
        keys: of all variants that are this image.
    """

    target: str
    digest: str
    code: bytes
    symbol: str
    operation: str
    key: str
    name: str
    keys: tuple[str, ...]


def targets(prefix: Path) -> list[str]:
    """AMD's targets of an unpacked release, in the order of their names."""
    return sorted(path.stem.partition("-")[2] for path in (prefix / "lib/kiln.images").glob(f"*-{OF_AMD}*.pack"))


def pack_of(prefix: Path, target: str) -> Path:
    """The path of a target's pack.

    Raises:
        SystemExit: the release has no such target.
    """
    found = list((prefix / "lib/kiln.images").glob(f"*-{target}.pack"))
    if not found:
        sys.exit(f"{prefix} has no images of {target}; it has those of {', '.join(targets(prefix)) or 'no AMD target'}")
    return found[0]


def images(prefix: Path, target: str) -> Iterator[Image]:
    """The images of a target, in the order of the dispatch tables.

    Raises:
        SystemExit: the release has no such target.
    """
    path = pack_of(prefix, target)
    the_pack = packs.read_pack(path)
    codes = _codes(the_pack, path)
    keys: dict[str, list[str]] = {}
    first: dict[str, tuple[str, str]] = {}
    for kernel in the_pack.kernels:
        names = itertools.product(kernel.functionals, kernel.configurations, kernel.specializations)
        for slot, (functional, configuration, specialization) in zip(kernel.slots, names):
            if slot.image is not None:
                name = f"{kernel.kernel} {functional} [{configuration}] {specialization}"
                keys.setdefault(slot.image, []).append(slot.key)
                first.setdefault(slot.image, (kernel.operation, name))
    for digest, (operation, name) in first.items():
        code, symbol = codes[digest]
        yield Image(target, digest, code, symbol, operation, keys[digest][0], name, tuple(keys[digest]))


def reasons(prefix: Path, target: str) -> set[str]:
    """Why slots of a target's pack are empty."""
    kernels = packs.read_pack(pack_of(prefix, target)).kernels
    return {slot.reason for kernel in kernels for slot in kernel.slots if slot.reason}


def _codes(the_pack: packs.Pack, path: Path) -> dict[str, tuple[bytes, str]]:
    """By digest a code object and the name of its kernel."""
    groups = []
    with path.open("rb") as file:
        for group in the_pack.groups:
            file.seek(group.offset)
            groups.append(packs.decode_group(file.read(group.stored), group, str(path)))
    result = {}
    for image in the_pack.images:
        code = groups[image.group][image.offset : image.offset + image.bytes]
        assert hashlib.sha256(code).hexdigest() == image.digest, f"{path}: an image does not have its digest"
        result[image.digest] = (code, image.info.symbol)
    return result


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: images.py PREFIX FOLDER")
    prefix, folder = map(Path, sys.argv[1:])
    for target in targets(prefix):
        (folder / target).mkdir(parents=True, exist_ok=True)
        count = 0
        for image in images(prefix, target):
            (folder / target / f"{image.key}.hsaco").write_bytes(image.code)
            count += 1
        print(f"{target}: {count} images")


if __name__ == "__main__":
    main()
