"""What a release's provenance says, `<tarball's name>.provenance.json` beside the tarball: an in-toto statement (v1)
whose predicate is SLSA's provenance (v1). What builds write is in origin/provenance.py.

`kiln sign` signs the file as it signs others, and puts the same bytes into a DSSE envelope for in-toto's tools:

    envelope  = '{"payload":"' base64(provenance) '","payloadType":"application/vnd.in-toto+json",'
                '"signatures":[{"keyid":"' key's number '","sig":"' base64(ed25519:byte[64]) '"}]}' "\\n"
                ; of "DSSEv1 28 application/vnd.in-toto+json " length " " provenance

An envelope is read in that one spelling. No message of minisign's begins as one of DSSE's does, so neither signature
passes as the other. Standard library only.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any

from kiln_build.trust import ed25519
from kiln_build.trust.minisign import PublicKey, SecretKey
from kiln_recipe import plain_json, shape
from kiln_recipe.errors import ArtifactError, TrustError

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
LARGEST = 1 << 20  # bytes; a build's has some 10,000
_PAYLOAD = "application/vnd.in-toto+json"
_ENVELOPE = re.compile(
    rb'\{"payload":"([A-Za-z0-9+/]*={0,2})","payloadType":"application/vnd[.]in-toto[+]json",'
    rb'"signatures":\[\{"keyid":"([0-9A-F]{16})","sig":"([A-Za-z0-9+/]{86}==)"\}\]\}\n'
)


@dataclass(frozen=True)
class Provenance:
    """How a tarball came about, as its builder says.

    Attributes:
        release: "0.1.0b+full".
        commit: 40 digits, or "unknown".
        builder: the address that stands for whoever ran the build.
        finished: when, "2026-11-26T10:00:00Z".
    """

    release: str
    commit: str
    builder: str
    finished: str


def read(data: bytes, name: str, tarball: str, sha256: str) -> Provenance:
    """
    Args:
        name: of the file, for the sentences.
        tarball, sha256: what it has to be about.

    Raises:
        ArtifactError: it is not a provenance.
        TrustError: it is another tarball's.
    """
    try:
        document = plain_json.read(data)
        types = document["_type"], document["predicateType"]
        subjects = [(one["name"], one["digest"]["sha256"]) for one in document["subject"]]
        definition, run = document["predicate"]["buildDefinition"], document["predicate"]["runDetails"]
        release = definition["externalParameters"]["version"]
        commits = [one["digest"]["gitCommit"] for one in definition["resolvedDependencies"] if one["name"] == "source"]
        builder, finished = run["builder"]["id"], run["metadata"]["finishedOn"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{name} is not a provenance as builds write it, an in-toto statement of SLSA's") from error
    is_plain = all(map(_is_line, (release, *commits, builder, finished)))
    if types != (STATEMENT, PREDICATE) or len(commits) > 1 or not is_plain:
        raise ArtifactError(f"{name} is not a provenance of the kind that this Kiln knows, SLSA's v1 in in-toto's v1")
    if subjects != [(tarball, sha256)]:
        raise TrustError(f"{name} is the provenance of another file than this {tarball}")
    return Provenance(release, commits[0] if commits else "unknown", builder, finished)


def envelope(provenance: bytes, key: SecretKey) -> bytes:
    """The DSSE envelope of a provenance's file."""
    signature = ed25519.sign(key.seed, _message(provenance))
    if not ed25519.verify(key.public.key, _message(provenance), signature):
        raise ArithmeticError("a signature that was just made is wrong; this host computes wrongly")
    return (
        f'{{"payload":"{base64.b64encode(provenance).decode()}","payloadType":"{_PAYLOAD}",'
        f'"signatures":[{{"keyid":"{key.public.name}","sig":"{base64.b64encode(signature).decode()}"}}]}}\n'
    ).encode()


def check_envelope(data: bytes, name: str, provenance: bytes, keys: dict[str, PublicKey]) -> str:
    """Holds an envelope against the provenance that it should have; returns the number of the key that signed it.

    Args:
        keys: those that one trusts, by number.

    Raises:
        TrustError: it is malformed, by another key, forged, or of another provenance.
    """
    found = _ENVELOPE.fullmatch(data)
    if found is None:
        raise TrustError(f"{name} is not an envelope of DSSE's as `kiln sign` writes it")
    key = keys.get(found[2].decode())
    if key is None:
        raise TrustError(f"{name} is by the key {found[2].decode()}, and you trust {', '.join(keys)}")
    if found[1] != base64.b64encode(provenance):
        raise TrustError(f"{name} does not hold the provenance that lies beside it; `kiln sign` writes both")
    if not ed25519.verify(key.key, _message(provenance), base64.b64decode(found[3])):
        raise TrustError(f"{name} is not signed by the key {key.name}: it was changed")
    return key.name


def _message(payload: bytes) -> bytes:
    """What DSSE signs."""
    return f"DSSEv1 {len(_PAYLOAD)} {_PAYLOAD} {len(payload)} ".encode() + payload


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= shape.LONGEST_TEXT and shape.is_line(value)
