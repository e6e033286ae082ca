"""What a signature says that it is about, and what it is called. The trusted comment, which the signature covers, is

    statement = "kiln " kind " " release " " file (" " digest)?
    kind      = "tarball"     ; of the tarball's .sha256, from which the digest of every byte hangs
              / "manifest"    ; of share/kiln/manifest.json, for a release that was unpacked
              / "inspector"   ; of kiln-inspect-<release>.pyz beside the tarball
              / "provenance"  ; of <tarball's name>.provenance.json beside the tarball
              / "package"     ; of the .sha256 of a part's deb, rpm or conda package
              / "wheels"      ; of a list of the wheels' digests
              / "pack"        ; of a pack: `digest` is its index's, and all that the runtime needs
    release   = "0.1.0b+full" ; the manifest's `kiln`; of wheels their version, "0.1.0b0+full"
    file      = the signed file's name, without folders

so that what was signed under one name, or as one thing, does not pass as another. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kiln_build.artifacts import manifest_model
from kiln_recipe.errors import TrustError

_FILE = "[A-Za-z0-9_][A-Za-z0-9_.+!-]*"
_RELEASE = r"[0-9][0-9a-z.+]*"
_FORM = re.compile(
    rf"kiln (tarball|manifest|inspector|provenance|package|wheels|pack) ({_RELEASE}) ({_FILE})(?: ([0-9a-f]{{64}}))?"
)
_TARBALL = ".tar.gz"
_PACKAGE = re.compile(r"kiln-[a-z0-9-]+?[_-]([0-9]+[.][0-9][0-9a-z.+]*)[_-][A-Za-z0-9_.-]+[.](deb|rpm|conda)")
_WHEELS = re.compile(rf"kiln-({_RELEASE})-wheels[.]sha256")


@dataclass(frozen=True)
class Statement:
    """`kind`, `release`, `file` and, of a pack alone, `digest`, as the grammar above has them."""

    kind: str
    release: str
    file: str
    digest: str = ""

    def spell(self) -> str:
        """The trusted comment."""
        return " ".join(filter(None, ("kiln", self.kind, self.release, self.file, self.digest)))


def read(comment: bytes, name: str) -> Statement:
    """
    Args:
        name: the signature's, for the sentence.

    Raises:
        TrustError: the comment is not such a statement.
    """
    found = _FORM.fullmatch(comment.decode("ascii"))
    if found is None or (found[1] == "pack") != (found[4] is not None):
        raise TrustError(
            f"{name}: its trusted comment {comment.decode('ascii')!r} does not say which file of which release it is "
            "of; `kiln sign` writes one that does"
        )
    return Statement(found[1], found[2], found[3], found[4] or "")


def signature_of(path: Path) -> Path:
    """Where minisign, and `kiln sign`, put a file's signature."""
    return path.with_name(f"{path.name}{manifest_model.SIGNATURE}")


def checksum_of(tarball: Path) -> Path:
    """The file beside a tarball with its digest."""
    return tarball.with_name(f"{tarball.name}.sha256")


def manifest_signature_of(tarball: Path) -> Path:
    """The signature of the tarball's manifest, beside the tarball: for whoever unpacks it."""
    return _called_after(tarball, f".{Path(manifest_model.PATH).name}{manifest_model.SIGNATURE}")


def provenance_of(tarball: Path) -> Path:
    """What its builder says of how the tarball came about (provenance.py)."""
    return _called_after(tarball, ".provenance.json")


def timeline_of(tarball: Path) -> Path:
    """When the build of the tarball did what (origin/timeline_file.py); nobody signs it."""
    return _called_after(tarball, ".timeline.json")


def costs_of(tarball: Path) -> Path:
    """What the build of the tarball took of processors (origin/costs.py); nobody signs it."""
    return _called_after(tarball, ".costs.json")


def envelope_of(tarball: Path) -> Path:
    """The same, signed as in-toto's tools read it."""
    return _called_after(tarball, ".intoto.jsonl")


def inspector_of(tarball: Path, release: str) -> Path:
    """The release's kiln-inspect.pyz as a file of its own, beside the tarball."""
    return tarball.with_name(f"kiln-inspect-{release}.pyz")


def list_of_wheels(folder: Path, version: str) -> Path:
    """The list of the digests of a build's wheels, in their folder."""
    return folder / f"kiln-{version}-wheels.sha256"


def version_of_list(name: str) -> str | None:
    """The version that a list of wheels has in its name; None for another file."""
    found = _WHEELS.fullmatch(name)
    return found[1] if found else None


def release_of_package(name: str) -> str | None:
    """The release that a deb, rpm or conda package of a part has in its file's name; None for another file."""
    found = _PACKAGE.fullmatch(name)
    return found[1] if found else None


def beside(tarball: Path, release: str) -> tuple[Path, ...]:
    """All but its digest that builds and `kiln sign` put beside a tarball."""
    inspector, provenance = inspector_of(tarball, release), provenance_of(tarball)
    signed = (checksum_of(tarball), inspector, provenance)
    signatures = (*map(signature_of, signed), manifest_signature_of(tarball), envelope_of(tarball))
    return (inspector, provenance, timeline_of(tarball), *signatures)


def _called_after(tarball: Path, end: str) -> Path:
    name = tarball.name[: -len(_TARBALL)] if tarball.name.endswith(_TARBALL) else tarball.name
    return tarball.with_name(f"{name}{end}")
