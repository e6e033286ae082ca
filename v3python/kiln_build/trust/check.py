"""Whether an artifact is what somebody signed, from the outside in: a signature is checked before what it covers is
read, and a digest before what has it is parsed.

    tarball   the signature of its .sha256; the .sha256; the tarball's digest; the archive's manifest; the signatures
              beside it, and what the provenance says; the archive
    folder    the signature of share/kiln/manifest.json; the manifest; every file; signatures of packs that lie there
    wheels    the signature of the list; the list; each wheel's digest
    package   the signature of its .sha256; the .sha256; the package's digest
    a pack or kiln-inspect-<release>.pyz: its signature; the pack

Standard library only, but for the images in packs (artifacts/verify.py).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln_build.artifacts import manifest_model, reader, verify
from kiln_build.base import tar, tarball
from kiln_build.trust import minisign, provenance, statement
from kiln_build.trust.minisign import PublicKey
from kiln_build.trust.provenance import Provenance
from kiln_build.trust.statement import Statement
from kiln_recipe import digests
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, TrustError, UsageError

WHAT = "give a release's tarball, the folder that it was unpacked to, a folder of wheels, a wheel, a pack or the .pyz"
_LARGEST_INSPECTOR = 64 << 20
_LARGEST_LIST = 1 << 20
_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_][A-Za-z0-9_.+!-]*)")


@dataclass(frozen=True)
class Signed:
    """A signature that holds: the file with it, what it is about, and the key's number."""

    signature: str
    statement: Statement
    key: str


@dataclass
class Outcome:
    """What was found of an artifact whose every signature holds.

    Attributes:
        release: what it is: the manifest's `kiln`, or the wheels' version.
        signed: its signatures.
        report: of what they cover.
        provenance: what the one beside a tarball says, if one is there.
    """

    release: str
    signed: list[Signed]
    report: verify.Report = field(default_factory=verify.Report)
    provenance: Provenance | None = None


def check(path: Path, keys: Sequence[PublicKey], release: str = "", signature: Path | None = None) -> Outcome:
    """Checks whatever `path` is.

    Args:
        keys: those that one trusts.
        release: what it has to be, "0.1.0b+full"; "": whatever its signature says.
        signature: where the signature is, if not where `kiln sign` puts it.

    Raises:
        TrustError: a signature is missing or wrong, by another key, or of something else.
        ArtifactError: what is signed is not what is there.
        EnvironmentProblem: it cannot be read.
        UsageError: it is something that has no signature.
    """
    trust = _Trust(keys, release, signature)
    if path.is_dir():
        for root in (path, path / "kiln"):
            if (root / manifest_model.PATH).is_file():
                return _folder(root, trust)
            if parts := reader.manifests_in(root):
                names = ", ".join(Path(one).parent.name for one in parts)
                raise UsageError(
                    f"{path} has parts of a release ({names}) without its part {manifest_model.RUNTIME}, which has the "
                    "manifest that is signed; install that too, or verify the tarballs of the parts"
                )
        return _wheels(path, None, trust)
    if path.suffix == ".whl":
        return _wheels(path.parent, path.name, trust)
    if path.suffix == ".pack":
        return _pack(path, trust)
    if path.suffix == ".pyz":
        data = read_file(path, _LARGEST_INSPECTOR)
        found = trust.need(path, statement.signature_of(path), data, "inspector")
        return Outcome(found.statement.release, [found])
    if not path.exists():
        raise EnvironmentProblem(f"{path} cannot be read (No such file or directory); {WHAT}")
    if statement.release_of_package(path.name):
        return _package(path, trust)
    if path.name.endswith(".tar.gz"):
        return _tarball(path, trust)
    raise UsageError(f"{path} is not of a kind that is signed, by its name; {WHAT}")


@dataclass(frozen=True)
class _Trust:
    """The arguments of `check`."""

    keys: Sequence[PublicKey]
    release: str
    signature: Path | None

    def need(self, signed: Path, beside: Path, data: Iterable[bytes] | bytes, kind: str) -> Signed:
        """The signature of a file, which holds `data`; `beside` is where it should be.

        Raises:
            TrustError: it does not hold, or is of something else.
        """
        beside = self.signature or beside
        try:
            spelled = read_file(beside, minisign.LARGEST)
        except FileNotFoundError:
            raise TrustError(
                f"{beside.name} is missing, so nothing says who made {signed.name}; get it from where {signed.name} "
                "came from, or name it with --signature"
            ) from None
        found = minisign.read_signature(spelled, beside.name)
        key = next((key for key in self.keys if key.id == found.id), None)
        if key is None:
            ours = ", ".join(key.name for key in self.keys)
            raise TrustError(
                f"{beside.name} is by the key {minisign.name_of(found.id)}, and you trust {ours}; give the key of "
                f"whoever made {signed.name} if you trust that one too"
            )
        if not minisign.is_signed(key, found, [data] if isinstance(data, bytes) else data):
            raise TrustError(
                f"{beside.name} is not the signature of this {signed.name} by the key {key.name}: one was changed"
            )
        said = statement.read(found.comment, beside.name)
        if (said.kind, said.file) != (kind, signed.name):
            raise TrustError(
                f"{beside.name} was made for {said.file} (a {said.kind} of release {said.release}), not for this "
                f"{signed.name} as a {kind}"
            )
        if self.release and said.release != self.release:
            raise TrustError(
                f"{signed.name} is of release {said.release}, and not of {self.release}, which you asked for"
            )
        return Signed(beside.name, said, key.name)


def _sealed(path: Path, kind: str, trust: _Trust) -> tuple[Signed, str]:
    """The signature of the .sha256 beside a file, and the digest in it, which the file has.

    Raises:
        TrustError, ArtifactError: as `check`.
    """
    checksum = statement.checksum_of(path)
    try:
        listed = read_file(checksum, minisign.LARGEST)
    except FileNotFoundError:
        raise TrustError(f"{checksum.name} is missing: what is signed is this file, with the digest of {path.name}")
    first = trust.need(checksum, statement.signature_of(checksum), listed, kind)
    ((digest, name),) = read_list(listed, checksum.name, 1)
    if name != path.name:
        raise TrustError(f"{checksum.name} states the digest of {name}, not of {path.name}")
    if digests.measure(Blocks(path))[0] != digest:
        raise ArtifactError(f"{path.name} does not have the digest that is signed in {checksum.name}")
    return first, digest


def _package(path: Path, trust: _Trust) -> Outcome:
    first, _ = _sealed(path, "package", trust)
    release = first.statement.release
    if statement.release_of_package(path.name) != release:
        raise TrustError(f"{path.name} is not called after the release {release}, of which its signature is")
    note = "what is in it was not read; install it, and `kiln inspect --verify` reads that"
    return Outcome(release, [first], verify.Report(complete=False, notes=[note]))


def _tarball(path: Path, trust: _Trust) -> Outcome:
    first, digest = _sealed(path, "tarball", trust)
    release = first.statement.release
    if not path.name.startswith(f"kiln-{release}-"):
        raise TrustError(f"{path.name} is not called after the release {release}, of which its signature is")
    opened = reader.open_artifact(path, WHAT, takes_part=True)
    if not isinstance(opened, reader.Release) or opened.manifest["kiln"] != release:
        raise TrustError(f"{path.name} holds another release than {release}, of which its signature is")
    outcome = Outcome(release, [first])
    alone = _Trust(trust.keys, release, None)
    rows = {row["path"]: row for row in opened.manifest["files"]}
    beside = statement.manifest_signature_of(path)
    if beside.exists():
        data = reader.file_of(path, manifest_model.PATH)
        if rows.get(manifest_model.PATH, {}).get("sha256", opened.spelled) != hashlib.sha256(data).hexdigest():
            raise ArtifactError(f"{path.name} was changed while it was read")
        outcome.signed.append(alone.need(Path(manifest_model.PATH), beside, data, "manifest"))
    inspector = statement.inspector_of(path, release)
    if inspector.exists() and opened.manifest.get("part", manifest_model.RUNTIME) == manifest_model.RUNTIME:
        data = read_file(inspector, _LARGEST_INSPECTOR)
        outcome.signed.append(alone.need(inspector, statement.signature_of(inspector), data, "inspector"))
        if rows.get(manifest_model.INSPECTOR, {}).get("sha256") != hashlib.sha256(data).hexdigest():
            raise ArtifactError(f"{inspector.name} is not the kiln-inspect.pyz of {path.name}")
    outcome.provenance = _provenance(path, digest, opened, outcome, alone)
    outcome.report = verify.verify(opened, digest)
    return outcome


def _provenance(path: Path, digest: str, opened: reader.Release, outcome: Outcome, trust: _Trust) -> Provenance | None:
    """What lies beside a tarball of how it came about: its signatures first, then what it says."""
    file, envelope = statement.provenance_of(path), statement.envelope_of(path)
    if not file.exists():
        if envelope.exists():
            raise TrustError(f"{file.name} is missing beside {envelope.name}; get it from where that came from")
        return None
    data = read_file(file, provenance.LARGEST)
    outcome.signed.append(trust.need(file, statement.signature_of(file), data, "provenance"))
    if envelope.exists():
        said = Statement("provenance", outcome.release, file.name)
        keys = {key.name: key for key in trust.keys}
        key = provenance.check_envelope(read_file(envelope, 2 * provenance.LARGEST), envelope.name, data, keys)
        outcome.signed.append(Signed(envelope.name, said, key))
    found = provenance.read(data, file.name, path.name, digest)
    ours = opened.manifest["kiln"], opened.manifest["source"]["commit"]
    if (found.release, found.commit) != ours:
        raise TrustError(
            f"{file.name} says that {path.name} is release {found.release} of commit {found.commit}; its manifest says "
            f"{ours[0]} of {ours[1]}"
        )
    return found


def _folder(root: Path, trust: _Trust) -> Outcome:
    file = root / manifest_model.PATH
    data = read_file(file, manifest_model.LARGEST)
    first = trust.need(file, statement.signature_of(file), data, "manifest")
    opened = reader.unpacked(root, data, str(file))
    if opened.manifest["kiln"] != first.statement.release:
        raise TrustError(
            f"{file} is of release {opened.manifest['kiln']}; its signature says {first.statement.release}"
        )
    outcome = Outcome(first.statement.release, [first], verify.verify(opened, opened.spelled))
    if not outcome.report.problems:  # a pack that is not the manifest's is named by its digest
        outcome.signed += _others(opened, first, trust)
    return outcome


def _others(opened: reader.Release, first: Signed, trust: _Trust) -> Iterator[Signed]:
    """The signatures in an unpacked release besides the one that it was checked by: of its packs, for the runtime, and
    of its manifest where another file with that was named."""
    alone = _Trust(trust.keys, first.statement.release, None)
    file = opened.path / manifest_model.PATH
    beside = statement.signature_of(file)
    if trust.signature is not None and os.path.lexists(beside):
        yield alone.need(file, beside, read_file(file, manifest_model.LARGEST), "manifest")
    for row in opened.manifest["targets"]:
        pack = opened.path / reader.IMAGES / row["pack"] if "pack" in row else None
        if pack and os.path.lexists(beside := statement.signature_of(pack)):
            found = alone.need(pack, beside, Blocks(pack), "pack")
            if found.statement.digest != row["index"]:
                raise TrustError(f"{pack.name} does not have the index that its signature names to the runtime")
            yield found


def _wheels(folder: Path, only: str | None, trust: _Trust) -> Outcome:
    """A folder of wheels, or one wheel in it."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise EnvironmentProblem(f"{folder} cannot be read ({error.strerror}); {WHAT}") from error
    lists = [name for name in names if statement.version_of_list(name)]
    if not lists:
        if not any(name.endswith(".whl") for name in names):
            raise UsageError(f"{folder} is neither an unpacked release nor a folder of wheels; {WHAT}")
        raise TrustError(
            f"{folder} has no kiln-<version>-wheels.sha256, which says what the wheels' digests are; "
            "get it, and its signature, from where they came from"
        )
    if len(lists) > 1:
        raise TrustError(f"{folder} has {' and '.join(lists)}; keep the wheels of each build in a folder of its own")
    path = folder / lists[0]
    listed = read_file(path, _LARGEST_LIST)
    first = trust.need(path, statement.signature_of(path), listed, "wheels")
    version = first.statement.release
    rows = {name: digest for digest, name in read_list(listed, path.name)}
    if path.name != statement.list_of_wheels(folder, version).name:
        raise TrustError(f"{path.name} is a list of the wheels of {version}; name it kiln-{version}-wheels.sha256")
    outcome = Outcome(version, [first])
    report, signature = outcome.report, (trust.signature or statement.signature_of(path)).name
    for name in [only] if only is not None else names:
        if name in (path.name, signature):
            continue
        if name not in rows:
            shown = name if tar.is_plain(name) else ascii(name)
            report.problems.append(f"{shown} is in {folder}, but not in {path.name}; pip might install it")
        elif (folder / name).is_symlink() or not (folder / name).is_file():
            report.problems.append(f"{name} is not a file")
        elif digests.of_file(folder / name) != rows[name]:
            report.problems.append(f"{name} does not have the digest that is signed in {path.name}")
        else:
            report.files += 1
    if only is None:
        report.notes += [f"{name} is not here" for name in rows if name not in names]
    return outcome


def _pack(path: Path, trust: _Trust) -> Outcome:
    first = trust.need(path, statement.signature_of(path), Blocks(path), "pack")
    opened = reader.open_artifact(path)
    if not isinstance(opened, reader.PackFile) or opened.pack.index_digest != first.statement.digest:
        raise TrustError(f"{path.name} does not have the index that its signature names to the runtime")
    if opened.pack.release != first.statement.release:
        raise TrustError(
            f"{path.name} is of release {opened.pack.release}; its signature says {first.statement.release}"
        )
    return Outcome(first.statement.release, [first], verify.verify(opened))


class Blocks:
    """What a file holds, in blocks, as often as one asks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        try:
            with tarball.open_file(self._path) as file:
                yield from iter(lambda: file.read(1 << 20), b"")
        except OSError as error:
            raise EnvironmentProblem(f"{self._path} cannot be read ({error.strerror}); {WHAT}") from error


def read_list(data: bytes, name: str, count: int | None = None) -> list[tuple[str, str]]:
    """The digests and names of a list as sha256sum writes it.

    Raises:
        ArtifactError: it is not such a list, or does not have so many lines.
    """
    lines = data.decode("ascii", "replace").split("\n")
    found = [_LINE.fullmatch(line) for line in lines[:-1]]
    rows = [(match[1], match[2]) for match in found if match]
    names = [row[1] for row in rows]
    if lines[-1] or len(rows) != len(found) or count not in (None, len(rows)) or sorted({*names}) != sorted(names):
        raise ArtifactError(f"{name} is signed, but not a list of digests as sha256sum writes it")
    return rows


def read_file(path: Path, limit: int) -> bytes:
    """
    Raises:
        FileNotFoundError: it is not there.
        TrustError: it is larger than any file of its kind.
        EnvironmentProblem: it cannot be read.
    """
    try:
        with tarball.open_file(path) as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); {WHAT}") from error
    if len(data) > limit:
        raise TrustError(f"{path} has more than {limit} bytes, the most of any file of its kind")
    return data
