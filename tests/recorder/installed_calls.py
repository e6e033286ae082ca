"""Random calls of attention forward on a device of each vendor, by a release that was installed in parts.

    python installed_calls.py <prefix> <the fake driver> <number of calls>

It prints JSON: `targets`, those that have variants; `launched`, by target how many calls have launched something;
`refused`, by target the sentences of calls that failed, each once. A process of its own, since the loader gives all
that ask for libkiln.so.0 the first that was loaded."""

from __future__ import annotations

import ctypes
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import drawn_calls
import entries
import ffi

_DEVICES = {"sm_90": (ffi.NVIDIA, 0), "gfx942": (ffi.AMD, 4)}


def main(prefix: Path, driver: Path, count: int) -> None:
    fake, library = ffi.Fake(driver), ffi.Library(prefix / "lib")
    fake.reset()
    flash = ctypes.CDLL(str(prefix / "lib/libkiln_flash.so"))
    flash.kiln_flash_family.restype = ctypes.c_void_p
    kiln = ffi.Kiln(library, fake)
    kiln.register(flash, "flash")
    refused: dict[str, dict[str, None]] = {target: {} for target in _DEVICES}
    launched = dict.fromkeys(_DEVICES, 0)
    for seed in range(count):
        parameters = entries.parameters("attn_fwd", drawn_calls.attn_fwd(random.Random(seed)).fields)
        for target, (vendor, device) in _DEVICES.items():
            fake.set_current(device if vendor == ffi.AMD else fake.context(device), vendor)
            queue = ffi.Queue(ctypes.sizeof(ffi.Queue), vendor, -1, None)
            before = len(fake.launches())
            if flash.kiln_attn_fwd(kiln.handle, ctypes.byref(queue), ctypes.byref(parameters)):
                refused[target][library.error()] = None
            launched[target] += len(fake.launches()) > before
    targets = sorted({variant["target"].decode() for variant in kiln.variants()})
    sentences = {target: [*found] for target, found in refused.items()}
    print(json.dumps({"targets": targets, "launched": launched, "refused": sentences}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
