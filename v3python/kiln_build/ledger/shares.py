"""The modelled shares of a ledger's images: of AMD targets, from the images that a store has."""

from __future__ import annotations

from collections.abc import Mapping

from kiln_build.amd_model import architectures, many
from kiln_build.amd_model.figures import Facts as Taken
from kiln_build.amd_model.figures import ImageFigures
from kiln_build.amd_model.images import Image
from kiln_build.amd_model.products import needed_operations
from kiln_build.artifacts.reader import settings_of
from kiln_build.difference.images import Place
from kiln_build.store.store import Store, StoredImage
from kiln_recipe.console.progress import Progress
from kiln_recipe.targets import Target


def is_modelled(target: Target) -> bool:
    """Whether a target's ledger has shares."""
    return target.vendor == "amd"


def shares_of(
    wanted: Mapping[str, tuple[str, str, Place, StoredImage]], store: Store, jobs: int, progress: Progress
) -> dict[str, int]:
    """Thousandths of the matrix peak by the name of a variant; 0 of images that multiply no matrices.

    Args:
        wanted: (family, target, place, image) by the variant's name.
        jobs: processes.

    Raises:
        EnvironmentProblem: there is no disassembler.
        ArtifactError: the model cannot read an image.
    """
    codes: dict[str, bytes] = {}
    images = []
    for _, target, _, stored in wanted.values():
        if stored.digest not in codes:
            codes[stored.digest] = store.read(stored.digest)
        taken = Taken(stored.info.registers, stored.info.shared, stored.info.threads)
        images.append(Image(target, stored.digest, codes[stored.digest], taken, ()))
    figures = many.figures_of(images, jobs, progress, main_alone=True)
    return {
        name: _share(family, target, place, its)
        for (name, (family, target, place, _)), its in zip(wanted.items(), figures)
    }


def _share(family: str, target: str, place: Place, its: ImageFigures) -> int:
    if not its.loops or not its.loops[0].operations:
        return 0
    kernel = f"{family}.{place.kernel}"
    operations = needed_operations(kernel, settings_of({**place._asdict(), "kernel": kernel}))
    loop = its.loops[0]
    share = loop.share(loop.needed(operations, its.warps), architectures.by_name(target).usual_latency)
    return max(1, round(1000 * (share or 0)))
