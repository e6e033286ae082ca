"""The figures of many images: by several processes, and kept for the next time by the digest of the code."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

from kiln_build.amd_model import disassembly, figures
from kiln_build.amd_model.figures import ImageFigures, LoopFigures
from kiln_build.amd_model.images import Image
from kiln_recipe import plain_json
from kiln_recipe.console.appear import appear
from kiln_recipe.console.progress import Progress

FOLDER = "model"  # of a workspace


def figures_of(
    images: Sequence[Image], jobs: int, progress: Progress, kept: Path | None = None, main_alone: bool = False
) -> list[ImageFigures]:
    """The figures of images, in their order.

    Args:
        jobs: processes. kept: the folder of results, which need not be there yet; None: nothing is kept.
        main_alone: see `figures.model`; such results are not kept.

    Raises:
        EnvironmentProblem: there is no disassembler.
        UsageError, ArtifactError: as `figures.model`.
    """
    shelf = _Shelf(kept) if kept and not main_alone else None
    found: dict[tuple, ImageFigures] = {}
    new: dict[tuple, Image] = {}
    for image in images:
        known = shelf.get(image) if shelf else None
        (found if known else new)[_place(image)] = known or image  # type: ignore[assignment]
    if not new:
        return [found[_place(image)] for image in images]
    model = partial(_timed, tool=disassembly.find_tool(), main_alone=main_alone)
    progress.start(len(new), title="modelling", unit="image")
    try:
        for image, its, seconds in _modelled(list(new.values()), model, jobs):
            found[_place(image)] = its
            if shelf:
                shelf.put(image, its)
            progress.done(image.digest[:12], seconds, "modelled")
    finally:
        progress.close()
    return [found[_place(image)] for image in images]


def _modelled(
    images: list[Image], model: Callable[[Image], tuple[ImageFigures, float]], jobs: int
) -> Iterator[tuple[Image, ImageFigures, float]]:
    if jobs == 1 or len(images) == 1:
        for image in images:
            yield image, *model(image)
        return
    # A fresh process has no threads of ours, and none of our locks.
    pool = ProcessPoolExecutor(min(jobs, len(images)), multiprocessing.get_context("spawn"))
    try:
        running: dict[Future, Image] = {pool.submit(model, image): image for image in images}
        for future in as_completed(running):
            yield running[future], *future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _timed(image: Image, tool: str, main_alone: bool) -> tuple[ImageFigures, float]:
    began = time.monotonic()
    its = figures.model(image.code, image.target, image.facts, tool, main_alone)
    return its, time.monotonic() - began


def _place(image: Image) -> tuple:
    return image.target, image.digest, image.facts


class _Shelf:
    """Results in a folder: a folder for each state of the model, of which the last alone stays; in it a file for each
    image and what a block of it takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / identity()
        if folder.is_dir():
            for other in folder.iterdir():
                if other.name != self._folder.name:
                    shutil.rmtree(other, ignore_errors=True)

    def _path(self, image: Image) -> Path:
        facts = "-".join(map(str, asdict(image.facts).values()))
        return self._folder / f"{image.target}-{image.digest}-{facts}.json"

    def get(self, image: Image) -> ImageFigures | None:
        try:
            return read(plain_json.read(self._path(image).read_bytes()))
        except (OSError, ValueError, TypeError, KeyError):  # not there, or not whole: it is modelled again
            return None

    def put(self, image: Image, its: ImageFigures) -> None:
        with contextlib.suppress(OSError):  # a folder that cannot be written: it is modelled again the next time
            self._folder.mkdir(parents=True, exist_ok=True)
            with appear(self._path(image)) as fresh:
                fresh.write_text(json.dumps(asdict(its)))


def read(document: dict) -> ImageFigures:
    """The figures whose `asdict` a document is, from JSON."""
    loops = []
    for row in document.pop("loops"):
        row["clocks"] = {int(latency): clocks for latency, clocks in row["clocks"].items()}
        loops.append(LoopFigures(**row))
    return ImageFigures(loops=tuple(loops), **document)


@cache
def identity() -> str:
    """A digest of all that decides the figures, the disassembler left out: other versions print the same."""
    state = hashlib.sha256()
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.suffix in (".py", ".yaml"):
            state.update(path.read_bytes())
    return state.hexdigest()[:12]
