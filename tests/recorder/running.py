"""Calls of a runtime on the recording driver, each compared with what it must be."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import entries
import ffi
import oracle
from ffi import AMD, NVIDIA
from oracle import Expected, Oracle, observed

from kiln_recipe.call.evaluate import Given, Refusal

VENDORS = {"sm_90": NVIDIA, "gfx942": AMD}
DEVICES = (0, 4)  # of the fake driver, those with these targets
STATUSES = {"ARGUMENT": ffi.ARGUMENT, "UNSUPPORTED": ffi.UNSUPPORTED, "RANGE": ffi.RANGE}
WORKSPACE = 0x7000_0000_0000

Fields = Mapping[str, object]


class Runner:
    """A kiln_t on a target's device."""

    def __init__(self, library: ffi.Library, flash: ctypes.CDLL, fake: ffi.Fake, judge: Oracle) -> None:
        self.library, self.flash, self.fake, self.judge = library, flash, fake, judge
        self.vendor = VENDORS[judge.target]
        self.kiln = ffi.Kiln(library, fake)
        self.kiln.register(flash, "flash")
        self.left: list[str] = []  # what is not given back by the failure of a driver alone

    def expected(
        self, name: str, given: Sequence[Given], workspace: int = WORKSPACE, forced: Mapping[str, int] | None = None
    ) -> Expected | Refusal:
        """What a call of an operation ("flash.attn_fwd") with these arguments must do."""
        try:
            return self.judge.expected(name, given, workspace, forced)
        except Refusal as refusal:
            return refusal

    def queue(self, stream: int | None, device: int = -1) -> ffi.Queue:
        return ffi.Queue(ctypes.sizeof(ffi.Queue), self.vendor, device, stream)

    def entry(self, name: str, queue: ffi.Queue, fields: Fields, *more: object, suffix: str = "") -> int:
        """The status of kiln_<name><suffix>."""
        parameters = entries.parameters(name, fields)
        function = getattr(self.flash, f"kiln_{name}{suffix}")
        return function(self.kiln.handle, ctypes.byref(queue), ctypes.byref(parameters), *more)

    def generic(self, name: str, queue: ffi.Queue, given: Sequence[Given], *more: object, **room: int) -> int:
        """The status of kiln_launch; with a place for the size, of kiln_workspace_size."""
        place = {"vendor": self.vendor, "device": queue.device, "stream": queue.stream}
        call = entries.call_of(self.kiln, name, oracle.operation(name), given, **place, **room)
        function = self.library.c.kiln_workspace_size if more else self.library.c.kiln_launch
        return function(ctypes.byref(call), *more)

    def make_current(self, device: int) -> int:
        """The context or device that is current then."""
        what = device if self.vendor == AMD else self.fake.context(device)
        self.fake.set_current(what, self.vendor)
        return what

    def check_status(self, status: int, wanted: Expected | Refusal) -> None:
        sentence = self.library.error() if status else ""
        if isinstance(wanted, Refusal):
            whole = str(wanted)
            if "grid dimension" in whole:  # how many blocks fit depends on the image's threads too
                whole, sentence = whole.partition("; ")[0], sentence.partition("; ")[0]
            assert (status, sentence) == (STATUSES[wanted.status], whole)
        else:
            assert (status, sentence) == (ffi.OK, "")

    def check(self, name: str, fields: Fields, rng: random.Random) -> bool:
        """One call, by its entry or by kiln_launch; whether it launched something."""
        given = entries.arguments(oracle.operation(f"flash.{name}"), fields)
        if not rng.randrange(4):
            return self.check_generic(f"flash.{name}", given, rng)
        if not entries.SUFFIXES[name]:  # nor fields for a workspace
            return self._check(f"flash.{name}", given, lambda queue, *_, **__: self.entry(name, queue, fields), rng)

        def run(queue: ffi.Queue, *more: object, **room: int) -> int:
            return self.entry(name, queue, {**fields, **room}, *more, suffix="_workspace" if more else "")

        return self._check(f"flash.{name}", given, run, rng)

    def check_generic(self, name: str, given: Sequence[Given], rng: random.Random) -> bool:
        """One call by kiln_launch; whether it launched something."""

        def run(queue: ffi.Queue, *more: object, **room: int) -> int:
            return self.generic(name, queue, given, *more, **room)

        return self._check(name, given, run, rng)

    def _check(self, name: str, given: Sequence[Given], run: Callable[..., int], rng: random.Random) -> bool:
        """One call on some stream.

        Args:
            run: makes it, or with a place for the size asks for its workspace.
        """
        fake, device = self.fake, rng.choice(DEVICES)
        stream = rng.choice([None, *(fake.stream(self.vendor, device, n) for n in range(3))])
        current = self.make_current(device if stream is None else rng.choice((0, 1, device)))
        queue, workspace = self.queue(stream, rng.choice((-1, device))), 256 * rng.randrange(1, 1 << 40)
        wanted, room = self.expected(name, given, workspace), {}
        before = len(fake.record().steps)
        if oracle.operation(name).workspaces:
            needed = ctypes.c_uint64()
            self.check_status(run(queue, ctypes.byref(needed)), wanted)
            assert needed.value == (wanted.workspace if isinstance(wanted, Expected) else 0)
            room = {"workspace": workspace, "workspace_bytes": needed.value}
        self.check_status(run(queue, **room), wanted)
        steps = wanted.steps if isinstance(wanted, Expected) else ()
        assert observed(fake.record(), before, stream, device) == steps
        assert (fake.current(self.vendor) or 0) == current and fake.last_error == 0
        return bool(steps)


@contextlib.contextmanager
def opened(libraries: tuple[ffi.Library, ctypes.CDLL], fake: ffi.Fake, judge: Oracle) -> Iterator[Runner]:
    """A Runner; afterwards everything is given back."""
    runner = Runner(*libraries, fake, judge)
    try:
        yield runner
    finally:
        runner.kiln.close()
    assert fake.record().leaks() == runner.left and fake.loaded == 0
