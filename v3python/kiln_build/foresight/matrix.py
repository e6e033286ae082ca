"""A described matrix: so many images of each kernel, and how long their compiles take, where no recipe has them.

    name: A library's own matrix
    targets: 14                     # images are divided evenly among so many
    kernels:
      - name: forward
        images: 120000              # on all targets together
        seconds: 1.06               # of one core, the mean
        spread: 0.6                 # standard deviation of its logarithm; default 0: all take the same
        memory: 256                 # MiB at the peak; default 256

Seconds follow a log-normal distribution, as those of Kiln's own kernels do nearly. What an image takes is drawn by the
names of the matrix and of the kernel: the same file gives the same images everywhere.
"""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from kiln_recipe.documents import document

if TYPE_CHECKING:
    from kiln_build.foresight.simulate import Work

AOTRITON = Path(__file__).with_name("aotriton.yaml")
MOST = 2_000_000  # images: a simulation of more takes longer than one waits for it


class Kernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of images that are alike in what they take."""

    name: str
    images: Annotated[int, Meta(ge=1, le=MOST)]
    seconds: float
    spread: float = 0.0
    memory: Annotated[int, Meta(ge=1, le=1 << 20)] = 256


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file describes."""

    name: str
    targets: Annotated[int, Meta(ge=1, le=1000)]
    kernels: list[Kernel]

    def works(self) -> list[Work]:
        """The images, target by target within each kernel."""
        from kiln_build.foresight.simulate import Work  # here: a file is judged where what this needs is not installed

        works = []
        for kernel in self.kernels:
            dice = random.Random(f"{self.name} {kernel.name}")
            middle = math.log(kernel.seconds) - kernel.spread**2 / 2  # so that the mean is as stated
            for number in range(kernel.images):
                name = f"{kernel.name}[{number // self.targets}]@target{number % self.targets + 1}"
                seconds = round(math.exp(dice.gauss(middle, kernel.spread)), 4)
                works.append(Work(name, seconds, kernel.memory << 20))
        return works


def read(path: Path) -> Matrix:
    """
    Raises:
        EnvironmentProblem: the file cannot be read.
        RecipeError: it describes no matrix; the sentence begins with file:line.
    """
    found = document.read(path, Matrix)
    matrix = found.value
    if not matrix.kernels:
        found.fail(("kernels",), "there is no kernel; give at least one, with its name, images and seconds")
    names = [(("name",), matrix.name), *((("kernels", n, "name"), one.name) for n, one in enumerate(matrix.kernels))]
    for where, name in names:
        if not name.strip() or not name.isprintable():
            found.fail(where, f"name: {name!r} is invalid; expected a line of text")
    if sum(kernel.images for kernel in matrix.kernels) > MOST:
        found.fail(("kernels",), f"these are more than {MOST} images; a simulation takes at most so many")
    for place, kernel in enumerate(matrix.kernels):
        for key, value, least, most in (("seconds", kernel.seconds, 0.001, 86400), ("spread", kernel.spread, 0, 3)):
            if not least <= value <= most:
                found.fail(("kernels", place, key), f"{key}: {value:g} is invalid; expected {least:g} to {most:g}")
    for (_, first), (place, second) in itertools.combinations(enumerate(matrix.kernels), 2):
        if first.name == second.name:
            found.fail(("kernels", place, "name"), f"{second.name!r} is a second kernel of that name; give another")
    return matrix
