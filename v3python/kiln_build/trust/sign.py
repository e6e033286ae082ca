"""Signs what was built. Signatures lie beside what they sign and hold no time: equal inputs and an equal key give equal
bytes. Nothing is signed that is not whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kiln_build.artifacts import manifest_model, reader, verify
from kiln_build.trust import check, minisign, provenance, statement
from kiln_build.trust import wheels as contents
from kiln_build.trust.minisign import SecretKey
from kiln_build.trust.statement import Statement
from kiln_recipe import digests
from kiln_recipe.console.appear import write_whole
from kiln_recipe.errors import ArtifactError, UsageError


def sign(path: Path, key: SecretKey) -> list[Path]:
    """Signs a release's tarball, one that was unpacked, a folder of wheels, a package or a pack; returns the files
    that were written, signatures and what they need.

    Raises:
        ArtifactError: it is not whole.
        EnvironmentProblem: it cannot be read, or what is made cannot be written.
        UsageError: it is something else.
    """
    if path.is_dir() and not any((root / manifest_model.PATH).is_file() for root in (path, path / "kiln")):
        return _wheels(path, key)
    if package := statement.release_of_package(path.name):
        checksum, listed = _checksum(path)
        return [_put(checksum, Statement("package", package, checksum.name), [listed], key)]
    opened = reader.open_artifact(path, check.WHAT, takes_part=True)
    if isinstance(opened, reader.ImageFile):
        raise UsageError(f"{path} is an image, which is not signed by itself; {check.WHAT}")
    verify.refuse_problems(verify.verify(opened), str(path))
    if isinstance(opened, reader.PackFile):
        said = Statement("pack", opened.pack.release, path.name, opened.pack.index_digest)
        return [_put(path, said, check.Blocks(path), key)]
    release = str(opened.manifest["kiln"])
    if opened.is_folder:
        if "part" in opened.manifest:
            raise UsageError(f"{path} is a part of a release, unpacked; sign its tarball before")
        file = opened.path / manifest_model.PATH
        return [_put(file, Statement("manifest", release, file.name), [file.read_bytes()], key)]
    return _tarball(opened, release, key)


def _tarball(opened: reader.Release, release: str, key: SecretKey) -> list[Path]:
    path = opened.path
    checksum, listed = _checksum(path)
    if not path.name.startswith(f"kiln-{release}-"):
        raise ArtifactError(f"{path} holds the release {release}; give it the name that it was built with")
    said = Statement("tarball", release, checksum.name)
    # The manifest of a target's part follows from the release's, which its runtime has.
    if opened.manifest.get("part", manifest_model.RUNTIME) != manifest_model.RUNTIME:
        return [_put(checksum, said, [listed], key)]
    manifest, inspector = reader.file_of(path, manifest_model.PATH), statement.inspector_of(path, release)
    program = reader.file_of(path, manifest_model.INSPECTOR)
    write_whole(inspector, program)
    name = Path(manifest_model.PATH).name
    return [
        *_provenance(opened, release, key),
        _put(checksum, said, [listed], key),
        _put(Path(name), Statement("manifest", release, name), [manifest], key, statement.manifest_signature_of(path)),
        inspector,
        _put(inspector, Statement("inspector", release, inspector.name), [program], key),
    ]


def _checksum(path: Path) -> tuple[Path, bytes]:
    """The .sha256 beside a file, and what it holds, which is right."""
    checksum, listed = statement.checksum_of(path), f"{digests.of_file(path)}  {path.name}\n".encode()
    if not checksum.is_file() or checksum.read_bytes() != listed:
        raise ArtifactError(f"{path} has no .sha256 beside it with its digest: no build has finished it")
    return checksum, listed


def _provenance(opened: reader.Release, release: str, key: SecretKey) -> list[Path]:
    """Signs what lies beside a tarball of how it came about, if anything does."""
    path = opened.path
    file, envelope = statement.provenance_of(path), statement.envelope_of(path)
    if not file.exists():
        return []
    data = check.read_file(file, provenance.LARGEST)
    found = provenance.read(data, file.name, path.name, digests.of_file(path))
    if (found.release, found.commit) != (release, opened.manifest["source"]["commit"]):
        raise ArtifactError(f"{file} names another release or commit than the manifest of {path.name}; build it again")
    write_whole(envelope, provenance.envelope(data, key))
    return [_put(file, Statement("provenance", release, file.name), [data], key), envelope]


def _wheels(folder: Path, key: SecretKey) -> list[Path]:
    wheels = sorted(path for path in folder.glob("*.whl") if path.is_file())
    versions = sorted({contents.version_of(path.name) for path in wheels})
    if len(versions) != 1:
        found = f"wheels of {' and '.join(versions)}" if versions else "no wheels"
        raise UsageError(f"{folder} has {found}; give a folder with the wheels of one build")
    for wheel in wheels:
        contents.check(wheel)
    path = statement.list_of_wheels(folder, versions[0])
    listed = "".join(f"{digests.of_file(wheel)}  {wheel.name}\n" for wheel in wheels).encode()
    write_whole(path, listed)
    return [path, _put(path, Statement("wheels", versions[0], path.name), [listed], key)]


def _put(path: Path, said: Statement, blocks: Iterable[bytes], key: SecretKey, to: Path | None = None) -> Path:
    """Writes the signature of a file's content."""
    to = to or statement.signature_of(path)
    write_whole(to, minisign.sign(key, blocks, said.spell()).spell())
    return to
