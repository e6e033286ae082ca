"""Turns the results of a run of the GPU suite that passed into what the manifest's `verified` is made from.

    python3 tests/gpu/verified.py RESULTS 580.95.05    (the folder given as --kiln-results; the driver's version)

writes docs/measurements/verified/<device>-<by>.json. A key stands for source, configuration and
toolchain, so the next release says of exactly these images that they were run. Of what was executed on the emulator the
images' digests are written too: a variant whose image has another does not count.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs/measurements/verified"
PER_LINE = 8  # keys, or digests


def main(results: Path, driver: str, folder: Path = FOLDER) -> list[Path]:
    """Writes the files; returns their paths.

    Raises:
        SystemExit: the results have no device, or an image that was wrong: then nothing counts.
    """
    rows = [json.loads(line) for path in sorted(results.glob("*.jsonl")) for line in path.read_text().splitlines()]
    devices = {row["name"] for row in rows if row["kind"] == "device"}
    images = [row for row in rows if row["kind"] == "image"]
    if len(devices) != 1 or not images:
        sys.exit(f"{results} has results of {len(devices)} devices and {len(images)} images; it must be one whole run")
    wrong = [row["key"] for row in images if not row["worst_share_of_limit"] <= 1]  # NaN is wrong
    if wrong:
        sys.exit(f"{len(wrong)} of {len(images)} images gave wrong results, {wrong[0]} first; nothing is written")
    (device,) = devices
    found = paths(images, device, folder)
    folder.mkdir(parents=True, exist_ok=True)
    for by, path in found.items():
        rows = [row for row in images if how(row) == by]
        keys, digests = {row["key"] for row in rows}, {digest for row in rows for digest in row.get("executed", ())}
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(spelled(device, driver, by, sorted(keys), sorted(digests)))
        os.replace(temporary, path)
    return list(found.values())


def spelled(device: str, driver: str, by: str, keys: list[str], images: list[str]) -> str:
    """The document, with several keys on a line. `images`: digests of what was executed, where that is known."""
    head = json.dumps({"device": device, "driver": driver, "by": by})[:-1]
    lists = {"keys": keys} | ({"images": images} if images else {})
    return head + "".join(f', "{name}": [\n{_lines(words)}\n]' for name, words in lists.items()) + "}\n"


def _lines(words: list[str]) -> str:
    quoted = [f'"{word}"' for word in words]
    return ",\n".join(", ".join(quoted[i : i + PER_LINE]) for i in range(0, len(words), PER_LINE))


def how(row: dict) -> str:
    """By what an image ran."""
    return {"PTX": "ptx", "emulator": "emulator"}.get(row["by"], "image")


def paths(images: list[dict], device: str, folder: Path = FOLDER) -> dict[str, Path]:
    """By "image", "ptx" and "emulator" the file of the keys that ran so, of those that did."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower())
    there = {how(row) for row in images}
    return {by: folder / f"{name}-{by}.json" for by in ("image", "ptx", "emulator") if by in there}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: verified.py RESULTS DRIVER")
    print(*main(Path(sys.argv[1]), sys.argv[2]), sep="\n")
