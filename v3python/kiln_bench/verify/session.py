"""The images of a release one after another, by a process that is started anew where it fails; and the file of what
was found, from which a run goes on."""

from __future__ import annotations

import json
import os
import platform
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_bench import kept, state
from kiln_recipe.console.appear import write_whole
from kiln_recipe.console.spelling import say
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, NotServed
from kiln_recipe.plain_json import nulled

if TYPE_CHECKING:
    from kiln_bench.release.places import Place
    from kiln_recipe.console.progress import Progress

MADE_BY, FORMAT = "kiln verify-device", 1
RIGHT = f"what `{MADE_BY}` kept"  # to give
BEGIN = f'{{\n "made_by": "{MADE_BY}"'.encode()
LIST = "list"  # in place of a device's number
WORKER = (sys.executable, "-m", "kiln_bench.verify.worker")
TIMEOUT = 240.0  # seconds of one image, loading it and the host's formula included
_BETWEEN_SAVES = 2.0
_MOST_LOSSES = 5  # of processes one after another: then the device is gone, and not an image wrong
_REFUSALS = {kind.exit_code: kind for kind in (ArtifactError, NotServed)}
_OF_VARIANT = ("key", "operation", "kernel", "functional", "configuration", "specialization", "registers",
               "shared_bytes", "spill_bytes")  # fmt: skip


class Process:
    """A worker, which is started at the first question and after each loss.

    Args:
        place: of the release.
        vendor, ordinal: of the device; or LIST, to learn of the variants of all packs where there need be none.
    """

    def __init__(self, place: Place, vendor: str, ordinal: int | str, timeout: float = TIMEOUT) -> None:
        self._words = [*WORKER, str(place.libraries), str(place.headers), vendor, str(ordinal)]
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def begin(self) -> dict[str, Any]:
        """Starts it; returns what it runs on.

        Raises:
            ArtifactError: the release is damaged.
            EnvironmentProblem, NotServed: it cannot run there.
        """
        own = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self._buffer = b""
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
        )
        found = self._answer()
        if isinstance(found, str):
            raise EnvironmentProblem(f"the process that calls the release {found}, before its first call")
        if "refused" in found:
            self.end()
            raise _REFUSALS.get(found["code"], EnvironmentProblem)(found["refused"])
        return found

    def ask(self, variant: Mapping[str, Any]) -> dict[str, Any]:
        """What came of an image. That the process was lost is an answer as well: it has "is_broken"."""
        if self._process is None:
            self.begin()
        assert self._process is not None and self._process.stdin is not None
        began = time.monotonic()
        found: dict[str, Any] | str
        try:
            self._process.stdin.write(json.dumps(dict(variant)).encode() + b"\n")
            found = self._answer()
        except BrokenPipeError:
            found = "ended"
        if isinstance(found, str):
            found = {"call": "", "shares": {}, "draws": 0, "wrong": [f"the process that made the call {found}"],
                     "is_broken": True, "seconds": round(time.monotonic() - began, 3)}  # fmt: skip
        if found.get("is_broken"):
            self.end()
        return found

    def _answer(self) -> dict[str, Any] | str:
        """An answer; or what became of the process."""
        assert self._process is not None and self._process.stdout is not None
        until = time.monotonic() + self._timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, until - time.monotonic())):
                    self._process.kill()
                    return f"gave no answer in {self._timeout:.0f} s"
                if not (piece := os.read(self._process.stdout.fileno(), 1 << 20)):
                    return f"ended with {self._process.wait()}"
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(nulled(json.loads(line)))

    def end(self) -> None:
        """Ends it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        self._process = None


@dataclass
class Session:
    """What is known of one release's images on one device.

    Attributes:
        about: release, version, pack's sha256, target, device, its id, driver, rule, and what ran it.
        rows: of each image, in the order in which they were run.
        path: the file that it is kept in.
        images: how many the release has for the device.
    """

    about: Mapping[str, Any]
    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    images: int = 0
    date: str = ""
    _saved: float = 0.0

    def add(self, variant: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        self.rows.append({name: variant[name] for name in _OF_VARIANT} | dict(answer))
        self.date = f"{datetime.now(timezone.utc):%Y-%m-%d}"
        if time.monotonic() - self._saved > _BETWEEN_SAVES:
            self.save()

    def save(self) -> None:
        """Writes the file anew."""
        head = {name: value for name, value in self.document().items() if name != "rows"}
        rows = ",\n".join(f"  {json.dumps(row)}" for row in self.rows)
        write_whole(self.path, f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{rows}\n ]\n}}\n')
        self._saved = time.monotonic()

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        counts = Counter(outcome(row) for row in self.rows)
        return {"made_by": MADE_BY, "format": FORMAT, "about": dict(self.about), "date": self.date,
                "images": self.images, "counts": {name: counts[name] for name in OUTCOMES},
                "rows": self.rows}  # fmt: skip


OUTCOMES = ("right", "wrong", "unreached")


def outcome(row: Mapping[str, Any]) -> str:
    """One of OUTCOMES."""
    return "unreached" if "unreached" in row else "wrong" if row["wrong"] else "right"


def begin(about: Mapping[str, Any], path: Path, images: int) -> Session:
    """The session of a run, with the rows of the file if they are of the same images and device."""
    if not path.is_file():
        return Session(about, path, images=images)
    before = read(path)
    differs = [name for name in {**about, **before.about} if about.get(name) != before.about.get(name)]
    if differs:
        say(f"{path} has results of another {' and '.join(differs)}; it is replaced")
        return Session(about, path, images=images)
    return Session(about, path, before.rows, images, before.date)


def read(path: Path) -> Session:
    """What was kept.

    Raises:
        EnvironmentProblem: the file cannot be read.
        ArtifactError: it is not what `kiln verify-device` keeps.
    """
    found = kept.read(path, MADE_BY, FORMAT, RIGHT, f"has no results of `{MADE_BY}`")
    names = ("about", "date", "images", "rows")
    if missing := [name for name in names if name not in found]:
        raise ArtifactError(f"{path} lacks {', '.join(missing)}; give {RIGHT}")
    return Session(found["about"], path, found["rows"], found["images"], found["date"])


def about(place: Place, vendor: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """What a session says of the release and the device; `found`: what the worker began with."""
    import numpy

    from kiln_bench.verify.judge import RULE

    device = found["device"]
    targets = {row["target"] for row in found["variants"]}
    pack = next((its for target in sorted(targets) if (its := place.pack(target))), {"sha256": "", "file": ""})
    return {
        "release": place.name, "version": found["version"], "pack": pack["file"], "pack_sha256": pack["sha256"],
        "target": device["target"], "device": device["name"], "device_id": device["id"],
        "multiprocessors": device["multiprocessors"], "driver": state.driver(vendor), "rule": RULE,
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "numpy": numpy.__version__,
    }  # fmt: skip


def in_rounds(variants: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """In an order whose beginning has some of everything: an image of each kernel, then one of each of its functionals
    in turns, then the second ones."""
    seen: Counter[tuple[str, str]] = Counter()
    functionals: dict[str, dict[str, int]] = {}
    numbered = []
    for variant in variants:
        group = variant["kernel"], variant["functional"]
        known = functionals.setdefault(variant["kernel"], {})
        numbered.append(((seen[group], known.setdefault(variant["functional"], len(known))), variant))
        seen[group] += 1
    return [variant for _, variant in sorted(numbered, key=lambda pair: pair[0])]


def go_on(
    session: Session, process: Process, variants: Sequence[Mapping[str, Any]], seconds: float | None,
    progress: Progress,
) -> int:  # fmt: skip
    """Runs what a session has not; returns how many images no time was left for.

    Raises:
        EnvironmentProblem: the device is lost; what was found before is kept.
    """
    done = {(row["kernel"], row["functional"], row["key"]) for row in session.rows}
    left = [row for row in variants if (row["kernel"], row["functional"], row["key"]) not in done]
    progress.start(len(left), seconds, title="verify-device", unit="image")
    start, losses = time.monotonic(), 0
    try:
        for number, variant in enumerate(left):
            spent = time.monotonic() - start
            if seconds is not None and number and spent >= seconds:
                return len(left) - number
            answer = process.ask(variant)
            losses = losses + 1 if answer.pop("is_broken", False) else 0
            if losses >= _MOST_LOSSES:
                raise EnvironmentProblem(
                    f"{losses} images one after another cost the process that ran them, last since "
                    f"{answer['wrong'][0]}; the device may need a reset; the same command goes on from there"
                )
            session.add(variant, answer)
            row = session.rows[-1]
            name = f"{variant['kernel']}[{variant['functional']}][{variant['configuration']}]"
            progress.done(
                name, answer["seconds"], "failed" if outcome(row) == "wrong" else outcome(row),
                detail="; ".join(row.get("wrong", ())), remaining=(spent / (number or 1)) * (len(left) - number),
            )  # fmt: skip
    finally:
        progress.close()
        session.save()
    return 0
