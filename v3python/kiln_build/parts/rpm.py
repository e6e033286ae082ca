"""A part as an RPM package, which rpmbuild writes: the format is rpm's own, and no other writer of it is as well kept.
The same rpmbuild writes the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from kiln_build.base import tarball
from kiln_build.parts.package import Package
from kiln_build.release.release import put
from kiln_recipe.errors import EnvironmentProblem

ARCHITECTURE = "x86_64"
_RELEASE = "1"

# Nothing of what rpmbuild does to the programs of a distribution is done to these files: their digests are stated.
_SPEC = """\
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
%global source_date_epoch_from_changelog 0
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global _buildhost localhost
%global _binary_payload w6.gzdio
Name: {name}
Version: {version}
Release: {release}
Summary: {summary}
License: {licence}
Packager: {maintainer}
AutoReqProv: no
{relations}

%description
{description}

%files
%defattr(-,root,root,-)
{files}
"""


def check() -> None:
    """
    Raises:
        EnvironmentProblem: there is no rpmbuild.
    """
    if not shutil.which("rpmbuild"):
        raise EnvironmentProblem(
            "--format rpm needs rpmbuild, which is not installed; install it (Fedora: rpm-build, Debian: rpm), or give "
            "--format tar, deb or conda"
        )


def write(package: Package, output: Path, prefix: str, maintainer: str) -> Path:
    """Writes <name>-<version>-1.x86_64.rpm, and its .sha256. In the file's name, the version is the release's.

    Args:
        prefix: the folder in which it installs, "/opt/kiln".
        maintainer: "Name <mail@example.org>".

    Raises:
        InTheWay: another one of that name is there, and stays.
        EnvironmentProblem: it cannot be written.
    """
    check()
    # Not in `output`, whose path may have a space, which rpmbuild's scripts do not bear.
    with tempfile.TemporaryDirectory(prefix="kiln-rpm-") as word:
        folder = Path(word)
        root = folder / "root"
        place = root / prefix.strip("/")
        place.parent.mkdir(parents=True)
        files = _lay_out(package, place, prefix.rstrip("/"))
        spec = folder / "package.spec"
        spec.write_text(_spec(package, files, maintainer))
        made = folder / "made"
        command = [
            "rpmbuild", "-bb", "--quiet", "--nodebuginfo", "--target", ARCHITECTURE, "--buildroot", str(root),
            "--define", f"_topdir {folder / 'top'}", "--define", f"_rpmdir {made}", "--define", "_rpmfilename made.rpm",
            "--define", f"_tmppath {folder}", "--define", "__spec_install_pre %{nil}",
            "--define", "__spec_clean_body %{nil}", str(spec),
        ]  # fmt: skip
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(tarball.TIME), "LC_ALL": "C", "HOME": str(folder)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
        if done.returncode or not (made / "made.rpm").is_file():
            said = " ".join((done.stderr or done.stdout).split())[-500:]
            raise EnvironmentProblem(f"rpmbuild cannot write {package.name} ({said})")
        data = (made / "made.rpm").read_bytes()
    return put(output / f"{package.name}-{package.release}-{_RELEASE}.{ARCHITECTURE}.rpm", iter([data]))


def _lay_out(package: Package, place: Path, prefix: str) -> list[str]:
    """Puts the part below a root; gives the lines of %files."""
    lines = [f"%dir {prefix}"]
    place.mkdir(parents=True)
    for member, path in tarball.staged(package.part.stage):
        to = place / member.name
        if member.kind == "folder":
            to.mkdir()
            lines.append(f"%dir {prefix}/{member.name}")
            continue
        if member.kind == "link":
            to.symlink_to(member.link)
        elif member.kind == "hard link":
            os.link(place / member.link, to)
        else:
            shutil.copyfile(path, to)
            to.chmod(tarball.mode_of(member))
        lines.append(f"{prefix}/{member.name}")
    for path in (place, *place.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    return lines


def _spec(package: Package, files: list[str], maintainer: str) -> str:
    release = f"kiln-release({package.token})"
    if package.is_runtime:
        relations = ["Requires: glibc >= 2.28", f"Provides: {release}"]
    else:
        relations = [f"Requires: kiln-runtime = {package.version}-{_RELEASE}", f"Requires: {release}"]
    return _SPEC.format(
        name=package.name, version=package.version, release=_RELEASE, summary=package.summary, licence=package.licence,
        maintainer=maintainer, relations="\n".join(relations), description="\n".join(package.description),
        files="\n".join(files),
    )  # fmt: skip
