"""Stands for the worker of `kiln verify-device`: answers as the name of a configuration says.

verify_fake_worker.py LOG, then what the worker takes; each start and each task is a line in LOG.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

LOG = Path(sys.argv[1])
DEVICE = {"vendor": 2, "ordinal": 0, "multiprocessors": 304, "warp_size": 64, "name": "MI300X", "id": "0000:c1:00.0",
          "target": "gfx942", "refusal": None}  # fmt: skip
CONFIGURATIONS = json.loads(os.environ["KILN_FAKE_CONFIGURATIONS"])


def log(line: str) -> None:
    with LOG.open("a") as file:
        file.write(line + "\n")


def variant(number: int, configuration: str) -> dict:
    return {
        "key": f"{number:064x}", "target": "gfx942", "operation": "flash.attn_fwd", "kernel": f"attn_fwd.{number % 2}",
        "functional": "dtype=bf16 head_dim=64", "configuration": f"BEHAVES={configuration}",
        "specialization": "aligned",
        "registers": 128, "shared_bytes": 0, "spill_bytes": 0,
    }  # fmt: skip


log("start")
if "refuses" in CONFIGURATIONS:
    print(json.dumps({"refused": "there is no device 0 of amd's, only 0 of them", "code": 7}), flush=True)
    sys.exit()
if "lists nothing" in CONFIGURATIONS and sys.argv[-1] == "list":
    print(json.dumps({"refused": "sm_90: nvidia-sm_90.pack is corrupt", "code": 7}), flush=True)
    sys.exit()
if "damaged" in CONFIGURATIONS:
    print(json.dumps({"refused": "kiln/include lacks the headers", "code": 6}), flush=True)
    sys.exit()
variants = [variant(number, how) for number, how in enumerate(CONFIGURATIONS)]
print(json.dumps({"device": DEVICE, "version": "0.1.0b", "variants": variants}), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    how = task["configuration"].partition("=")[2]
    log(how)
    if how == "dies":
        os.abort()
    if how == "hangs":
        time.sleep(600)
    answer: dict = {"call": "causal=True", "shares": {"out": 0.5}, "draws": 1, "wrong": [], "seconds": 0.1}
    if how == "wrong":
        answer |= {"shares": {"out": 3.0}, "wrong": ["out: errors of 1 at most"]}
    if how == "infinite":
        answer |= {"shares": {"out": float("inf")}, "wrong": ["out: errors of nan at most"]}
    if how == "fails":
        answer |= {"wrong": ["hipModuleLaunchKernel: the HIP runtime returned hipErrorLaunchFailure (719)"],
                   "is_broken": True}  # fmt: skip
    print(json.dumps({"unreached": "none of 12 calls can run it", "seconds": 0.1} if how == "unreached" else answer),
          flush=True)  # fmt: skip
