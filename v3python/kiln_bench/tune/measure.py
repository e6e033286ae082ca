"""Calls with each image that could run them: checked, then raced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kiln_bench import shapes
from kiln_bench.attention import problem as problems
from kiln_bench.attention import reference
from kiln_bench.attention.problem import CacheProblem, Prepared, Problem
from kiln_bench.release.library import Refused
from kiln_bench.tune import candidates
from kiln_bench.tune.race import STAGES, Figure, Timed, race

if TYPE_CHECKING:
    from kiln_bench.attention.kiln import Kiln
    from kiln_bench.timing import Work
    from kiln_bench.tune.candidates import Images, Name
    from kiln_recipe.model import Kernel


KEY_DIGITS = 12


class Tuner:
    """Measures calls.

    Args:
        kiln: the release.
        kernels: of the family's recipe, by name.
    """

    def __init__(
        self, kiln: Kiln, images: Images, kernels: Mapping[str, Kernel], multiprocessors: int, timed: Timed
    ) -> None:
        self._kiln, self._images, self._kernels = kiln, images, kernels
        self._multiprocessors, self._timed = multiprocessors, timed

    def rows(self, given: Problem | CacheProblem, part: str) -> list[dict[str, Any]]:
        """A row for each kernel of a call that several images could run.

        The time of a call is of all its kernels, of which the others stay the same.

        Raises:
            Refused: the release does not serve the call.
        """
        usual = self._prepare(given, part)
        found = []
        for ran in usual.variants:
            keys = self._images.beside(ran)
            if len(keys) > 1:
                found.append(self._row(given, part, ran, keys))
        return found

    def _prepare(self, given: Problem | CacheProblem, part: str, *keys: str) -> Prepared:
        if isinstance(given, CacheProblem):
            return self._kiln.decoding(given, keys)
        return self._kiln.training(given, part, keys)

    def _first(self, given: Problem | CacheProblem, part: str, keys: Sequence[str]) -> tuple[str, Prepared]:
        """The first image that takes the call.

        Raises:
            Refused: none does.
        """
        for key in keys[:-1]:
            try:
                return key, self._prepare(given, part, key)
            except Refused:
                continue
        return keys[-1], self._prepare(given, part, keys[-1])

    def _row(
        self, given: Problem | CacheProblem, part: str, ran: Mapping[str, Any], keys: Mapping[Name, Sequence[str]]
    ) -> dict[str, Any]:
        works: dict[str, Work] = {}
        names, wrong, refused = dict[str, "Name"](), dict[str, str](), dict[str, str]()
        took: dict[Name, str] = {}
        samples = given.samples(0) if isinstance(given, CacheProblem) else given.samples(part)
        for (kernel, configuration), every in keys.items():
            title = f"{kernel}: {configuration}"
            try:
                took[kernel, configuration], prepared = self._first(given, part, every)
            except Refused as error:  # an implementation that does not serve this call
                refused[title] = str(error)
                continue
            prepared.works[0]()
            off = problems.wrongness(prepared.results(), samples)
            if off <= reference.LARGEST_ERROR:
                works[title], names[title] = prepared.run, (kernel, configuration)
            else:
                wrong[title] = f"its result differs from fp32's by {off:.2g}"
        figures = race(works, self._timed, {title: kernel for title, (kernel, _) in names.items()})
        by_kernel: dict[str, dict[str, Figure]] = {}
        for title, figure in figures.items():
            kernel, configuration = names[title]
            by_kernel.setdefault(kernel, {})[configuration] = figure
        return {
            "part": part, "shape": shapes.as_row(given.shape), "functional": ran["functional"],
            "used": [ran["kernel"], ran["configuration"]], "wrong": wrong, "refused": refused,
            "keys": _shortened(took, names.values()),
            "bins": {k: candidates.bin_of(self._kernels[k], given.shape, self._multiprocessors) for k in by_kernel},
            "microseconds": _each(by_kernel, lambda figure: round(figure.microseconds, 3)),
            "spread": _each(by_kernel, lambda figure: round(figure.spread, 4)),
            "rounds": _each(by_kernel, lambda figure: figure.rounds),
        }  # fmt: skip


def _shortened(keys: Mapping[Name, str], wanted: Iterable[Name]) -> dict[str, dict[str, str]]:
    """By kernel and configuration what pages of measurements and tuning files have of keys."""
    found: dict[str, dict[str, str]] = {}
    for kernel, configuration in wanted:
        found.setdefault(kernel, {})[configuration] = keys[kernel, configuration][:KEY_DIGITS]
    return found


def _each(
    by_kernel: Mapping[str, Mapping[str, Figure]], what: Callable[[Figure], float]
) -> dict[str, dict[str, float]]:
    return {kernel: {name: what(one) for name, one in figures.items()} for kernel, figures in by_kernel.items()}


def loss(row: Mapping[str, Any]) -> float:
    """How much longer the image that a call takes needs than the fastest, as a share; NaN if it is wrong."""
    kernel, configuration = row["used"]
    every = [took for times in row["microseconds"].values() for took in times.values()]
    used = row["microseconds"].get(kernel, {}).get(configuration)
    return used / min(every) - 1 if used else float("nan")


def is_settled(row: Mapping[str, Any], kernel: str) -> bool:
    """Whether the times of a kernel's configurations may become rules: whether its fastest was raced to the end. Times
    that were kept may be of a race in which an implementation far behind another dropped out after its first turns."""
    last = max(one for each in row["rounds"].values() for one in each.values())
    # A race that ends early has one candidate left, the fastest of all.
    is_whole = last == STAGES[-1].rounds or kernel == winner(row)[0]
    return is_whole and max(row["rounds"][kernel].values()) == last


def winner(row: Mapping[str, Any]) -> tuple[str, str]:
    """The fastest kernel and its configuration."""
    every = {(kernel, name): took for kernel, times in row["microseconds"].items() for name, took in times.items()}
    return min(every, key=lambda name: every[name])
