"""What the tests of clusters let workers do in place of compiling: each writes down what it makes."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from kiln_recipe.compile.compile import Compiled
from kiln_recipe.images.image import Image, ImageInfo
from worker_tasks import StandInToolchain

IDENTITY = "STAND_IN_TOOLCHAIN"  # of a worker's environment


@dataclass(frozen=True)
class Spec:
    """
    Attributes:
        text: makes the image.
        seconds: that this takes.
        record: the file that the worker adds a line to when it begins.
        source: its text is part of the image.
    """

    text: str
    seconds: float
    record: str
    source: str
    function: str = "k"
    fingerprint: str = "f" * 64
    target: str = "gfx942"

    def key(self, toolchain_identity: str) -> str:
        return hashlib.sha256(f"{toolchain_identity} {self.text}".encode()).hexdigest()


def find() -> StandInToolchain:
    """The toolchain of a worker's machine."""
    return StandInToolchain(os.environ.get(IDENTITY, "1" * 64))


def prepare(_toolchain: StandInToolchain) -> None:
    pass


def image_of(text: str, source: str) -> Image:
    info = ImageInfo("cubin", "k", 128, 0, 32, 0, 0, 3, 0, 1, 0, 1, 7, "8.0")
    return Image(f"{text} {source}".encode() * 100, info, "ptx of it")


def compile_slowly(spec: Spec, toolchain: StandInToolchain, reuse) -> Compiled:
    with reuse(hashlib.sha256(spec.text.encode()).hexdigest()) as known:
        if known is not None:
            return Compiled(known, hashlib.sha256(spec.text.encode()).hexdigest(), shared=True)
        with open(spec.record, "a") as file:
            file.write(f"{spec.text} {os.environ.get('STAND_IN_NAME', '?')}\n")
        time.sleep(spec.seconds)
        source = Path(spec.source).read_text()
        return Compiled(image_of(spec.text, source), hashlib.sha256(spec.text.encode()).hexdigest(), shared=False)


def contradictions(_info: ImageInfo, _code: bytes) -> tuple[str, ...]:
    return ()
