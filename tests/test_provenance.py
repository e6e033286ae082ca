"""The provenance beside a tarball: what in-toto's and DSSE's own libraries say of it; what `kiln sign` and
`kiln verify` make of it, whole and changed."""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement as InToto
from packageurl import PackageURL
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

import minisign_keys
import shared
from kiln_build.cli import main
from kiln_build.options import options
from kiln_build.origin import provenance
from kiln_build.origin.timeline import Timeline
from kiln_build.release import release
from kiln_build.trust import minisign, statement
from kiln_build.trust import provenance as reading
from kiln_build.trust.statement import Statement
from kiln_recipe import digests
from kiln_recipe.compile import lock
from kiln_recipe.errors import ArtifactError, KilnError, TrustError, UsageError
from kiln_recipe.read import recipe
from small_release import ROOT, VERSION, small_release

NAME = release.tarball_name(VERSION)
STEM = NAME.removesuffix(".tar.gz")
FILE, ENVELOPE = f"{STEM}.provenance.json", f"{STEM}.intoto.jsonl"
BUILDER = "https://ci.example.org/kiln/release"


def run_of(folder: Path, **asked: str) -> provenance.Run:
    """A build of the small release, as build.py describes one."""
    source = small_release().inputs.source
    words = [str(ROOT / "input"), str(folder / "work"), str(folder / "out"), VERSION, "sm_90;gfx942"]
    made = options.make_options(
        words, options.read_build_variables(asked), ROOT, folder, commit=source.commit, dirty=source.dirty, site=folder
    )
    the_lock = lock.read_lock(ROOT / "input" / lock.LOCK_NAME)
    added = [recipe.load(ROOT / "tritonsrc/flash/recipe.yaml")]
    return provenance.Run(
        made, the_lock, ["toy", "flash"], added, small_release().stage, 1_800_000_000.0, 1_800_000_060.5
    )


@functools.cache
def signed() -> Path:
    """A folder with the small release, its provenance, and signatures of both."""
    return shared.once("release with provenance", _make)


def _make(folder: Path) -> None:
    small = small_release()
    for path in (small.tarball, statement.checksum_of(small.tarball)):
        shutil.copy(path, folder)
    provenance.write(run_of(folder, KILN_BUILDER=BUILDER), folder / NAME)
    keys = minisign_keys.make(folder)
    minisign_keys.make(folder, "other")
    assert main(["sign", str(folder / NAME), "--key", str(keys.secret)]) == 0


@pytest.fixture
def place(tmp_path) -> Path:
    return Path(shutil.copytree(signed(), tmp_path / "there"))


def document() -> dict:
    return json.loads((signed() / FILE).read_bytes())


def verify(place: Path, capsys, *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["verify", str(place / NAME), "--key", str(place / "kiln.pub"), *words])
    out, err = capsys.readouterr()
    assert (code == 0) == (err == "")
    return code, out or err


def put(place: Path, data: bytes, name: str = "kiln") -> None:
    """A provenance with signatures as whoever has the key could make them."""
    key = minisign.read_secret_key((place / f"{name}.key").read_bytes(), b"", name)
    (place / FILE).write_bytes(data)
    made = minisign.sign(key, [data], Statement("provenance", VERSION, FILE).spell())
    (place / f"{FILE}.minisig").write_bytes(made.spell())
    (place / ENVELOPE).write_bytes(reading.envelope(data, key))


# ---- what others say -------------------------------------------------------------------------------------------------


def test_in_toto_accepts_it():
    text = (signed() / FILE).read_text()
    found = InToto.copy_from_pb(json_format.Parse(text, statement_pb2.Statement()))  # no field that it does not know
    found.validate()
    assert [(one.name, dict(one.digest)) for one in found.pb.subject] == [
        (NAME, {"sha256": digests.of_file(signed() / NAME)})
    ]
    assert found.pb.predicate_type == "https://slsa.dev/provenance/v1"
    predicate = json.dumps(document()["predicate"])
    slsa = json_format.Parse(predicate, provenance_pb2.Provenance())
    for one in (*slsa.build_definition.resolved_dependencies, *slsa.run_details.byproducts):
        ResourceDescriptor.copy_from_pb(one).validate()
        if one.uri:
            PackageURL.from_string(one.uri)
    assert slsa.run_details.builder.id == BUILDER
    began, ended = slsa.run_details.metadata.started_on, slsa.run_details.metadata.finished_on
    assert (began.seconds, ended.seconds - began.seconds) == (1_800_000_000, 60)
    with pytest.raises(json_format.ParseError):
        json_format.Parse(text.replace('"buildType"', '"buildTypo"').replace('"subject"', '"subjekt"'),
                          statement_pb2.Statement())  # fmt: skip


def test_dsse_accepts_the_envelope():
    text = (signed() / ENVELOPE).read_text()
    assert text.count("\n") == 1
    found = Envelope.from_dict(json.loads(text))
    assert found.payload == (signed() / FILE).read_bytes() and found.payload_type == "application/vnd.in-toto+json"

    def key(name: str) -> SSlibKey:
        public = minisign.read_public_key((signed() / f"{name}.pub").read_bytes(), "")
        ours = minisign.read_public_key((signed() / "kiln.pub").read_bytes(), "")
        return SSlibKey(ours.name, "ed25519", "ed25519", {"public": public.key.hex()})

    assert found.verify([key("kiln")], 1)
    with pytest.raises(VerificationError):
        found.verify([key("other")], 1)


def test_a_key_as_other_tools_take_it():
    """The command of docs/trust.md."""
    page = (ROOT / "docs/trust.md").read_text()
    (command,) = [line for line in page.splitlines() if "kiln.pem" in line and line.startswith("(echo")]
    subprocess.run(["bash", "-c", command], cwd=signed(), check=True)
    pem = load_pem_public_key((signed() / "kiln.pem").read_bytes())
    assert pem.public_bytes_raw() == minisign.read_public_key((signed() / "kiln.pub").read_bytes(), "").key


def test_minisign_accepts_it():
    minisign_keys.need_minisign()
    assert minisign_keys.accepted(signed() / "kiln.pub", signed() / FILE, signed() / f"{FILE}.minisig")


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_materials():
    definition = document()["predicate"]["buildDefinition"]
    found = {one["name"]: one["digest"] for one in definition["resolvedDependencies"]}
    assert found.pop("source") == {"gitCommit": small_release().inputs.source.commit}
    assert found.pop(f"input/{lock.LOCK_NAME}") == {"sha256": digests.of_file(ROOT / "input" / lock.LOCK_NAME)}
    assert found.pop("flash/recipe.yaml") and found.pop("flash/attn_fwd.py")
    the_lock = lock.read_lock(ROOT / "input" / lock.LOCK_NAME)
    wanted = the_lock.wanted((lock.running_python(),), ("front", "build"))
    assert {name: row for name, row in found.items() if not name.startswith("flash/")} == {
        one.name: {"sha256": one.sha256} for one in wanted
    }
    asked = definition["externalParameters"]
    assert (asked["version"], asked["targets"], asked["profile"]) == (VERSION, ["gfx942", "sm_90"], "core")
    assert asked["families"] == ["toy", "flash"] and "selection" not in asked
    assert definition["internalParameters"]["host"] == os.uname().nodename
    inside = {one["name"]: one["digest"]["sha256"] for one in document()["predicate"]["runDetails"]["byproducts"]}
    assert inside == {"share/kiln/manifest.json": digests.of_file(small_release().stage / "share/kiln/manifest.json")}


def test_who_builds():
    assert options.read_build_variables({"KILN_BUILDER": BUILDER}).builder == BUILDER
    with pytest.raises(UsageError, match=r"KILN_BUILDER=me is not an address; expected for example https://"):
        options.read_build_variables({"KILN_BUILDER": "me"})


def test_nobody_in_particular(tmp_path):
    tarball = Path(shutil.copy(small_release().tarball, tmp_path))
    made = provenance.document(run_of(tmp_path), tarball)
    assert made["predicate"]["runDetails"]["builder"]["id"] == "urn:kiln:builder:local"


def test_the_first_one_stays(place):
    """A second build of equal bytes leaves what may be signed."""
    before = (place / FILE).read_bytes()
    assert provenance.write(run_of(place), place / NAME) == place / FILE
    assert (place / FILE).read_bytes() == before
    (place / FILE).unlink()
    provenance.write(run_of(place), place / NAME)
    assert (place / FILE).read_bytes() != before


def test_it_goes_with_its_tarball(place):
    Timeline().write(VERSION, place / NAME)
    assert {path.name for path in statement.beside(place / NAME, VERSION)} == {
        path.name for path in place.iterdir() if path.name.startswith("kiln-")
    } - {NAME, f"{NAME}.sha256"}


# ---- kiln verify -----------------------------------------------------------------------------------------------------


def test_whole(place, capsys):
    code, said = verify(place, capsys)
    assert code == 0, said
    commit = small_release().inputs.source.commit
    assert said.splitlines()[1] == f"built from commit {commit} by {BUILDER}, 2027-01-15T08:01:00Z"
    assert [line.split()[:2] for line in said.splitlines() if "provenance" in line] == [
        [f"{FILE}.minisig", "provenance"], [ENVELOPE, "provenance"],
    ]  # fmt: skip
    made = json.loads(verify(place, capsys, "--json")[1])
    assert made["provenance"]["builder"] == BUILDER and len(made["signed"]) == 5
    (place / ENVELOPE).unlink()
    assert verify(place, capsys)[0] == 0, "the envelope is for other tools"
    for name in (FILE, f"{FILE}.minisig"):
        (place / name).unlink()
    code, said = verify(place, capsys)
    assert code == 0 and "built from" not in said


@pytest.mark.parametrize("name", [FILE, f"{FILE}.minisig", ENVELOPE])
def test_a_byte(place, capsys, name):
    whole = (place / name).read_bytes()
    begin = whole.index(b"\n") + 1 if name.endswith("minisig") else 0
    for number in range(begin, len(whole) - 1, max(len(whole) // 40, 1)):
        data = bytearray(whole)
        data[number] ^= 1
        (place / name).write_bytes(data)
        code, said = verify(place, capsys)
        assert code == 12 and STEM in said, (number, said)
    (place / name).write_bytes(whole[:-20])
    assert verify(place, capsys)[0] == 12


def test_nothing_is_parsed_before(place, capsys, monkeypatch):
    def refuse(*_arguments: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(reading, "read", refuse)
    (place / FILE).write_bytes((place / FILE).read_bytes() + b" ")
    code, said = verify(place, capsys)
    assert code == 12 and f"{FILE}.minisig is not the signature of this {FILE}" in said


def test_unsigned_or_half_there(place, capsys):
    (place / f"{FILE}.minisig").unlink()
    code, said = verify(place, capsys)
    assert code == 12 and f"{FILE}.minisig is missing" in said
    (place / FILE).unlink()
    code, said = verify(place, capsys)
    assert code == 12 and f"{FILE} is missing beside {ENVELOPE}" in said


def test_another_key(place, capsys):
    put(place, (place / FILE).read_bytes(), "other")
    code, said = verify(place, capsys)
    assert code == 12 and f"{FILE}.minisig is by the key" in said
    assert verify(place, capsys, "--key", str(place / "other.pub"))[0] == 0
    other = (place / ENVELOPE).read_bytes()
    shutil.copy(signed() / f"{FILE}.minisig", place)
    code, said = verify(place, capsys)
    assert code == 12 and f"{ENVELOPE} is by the key" in said
    ours, theirs = (minisign.read_public_key((place / f"{n}.pub").read_bytes(), "").name for n in ("kiln", "other"))
    (place / ENVELOPE).write_bytes(other.replace(theirs.encode(), ours.encode()))
    code, said = verify(place, capsys)
    assert code == 12 and f"{ENVELOPE} is not signed by the key {ours}" in said


def test_an_envelope_of_another(place, capsys):
    key = minisign.read_secret_key((place / "kiln.key").read_bytes(), b"", "")
    (place / ENVELOPE).write_bytes(reading.envelope(b"{}", key))
    code, said = verify(place, capsys)
    assert code == 12 and f"{ENVELOPE} does not hold the provenance that lies beside it" in said


def changed(change) -> bytes:
    made = document()
    change(made)
    return json.dumps(made).encode()


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda d: d["subject"][0]["digest"].update(sha256="0" * 64), 12, "is the provenance of another file"),
        (lambda d: d["subject"][0].update(name="kiln-9.tar.gz"), 12, "is the provenance of another file"),
        (lambda d: d["subject"].append(d["subject"][0]), 12, "is the provenance of another file"),
        (lambda d: d.update(predicateType="https://slsa.dev/provenance/v9"), 6, "not a provenance of the kind"),
        (lambda d: d.update(_type=3), 6, "not a provenance of the kind"),
        (lambda d: d.pop("predicate"), 6, "is not a provenance as builds write it"),
        (lambda d: d["predicate"]["runDetails"]["builder"].update(id="a\x1b[2J"), 6, "not a provenance of the kind"),
        (lambda d: d["predicate"]["buildDefinition"]["externalParameters"].update(version="9"), 12, "is release 9 of"),
        (lambda d: d["predicate"]["buildDefinition"]["resolvedDependencies"].pop(0), 12, "of commit unknown"),
    ],
)  # fmt: skip
def test_signed_and_wrong(place, capsys, change, code, says):
    """As if the key's owner had been careless."""
    put(place, changed(change))
    found, said = verify(place, capsys)
    assert found == code and FILE in said and says in said, said
    assert main(["sign", str(place / NAME), "--key", str(place / "kiln.key")]) in (6, 12)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"subject": 1}', b'{"_type": []}'])
def test_what_is_no_provenance(data):
    with pytest.raises(ArtifactError):
        reading.read(data, FILE, NAME, "0" * 64)


def test_a_huge_one(place, capsys):
    with (place / FILE).open("ab") as file:
        file.truncate(1 << 40)
    code, said = verify(place, capsys)
    assert code == 12 and "has more than 1048576 bytes" in said


def test_equal_keys_give_equal_signatures(place):
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    assert main(["sign", str(place / NAME), "--key", str(place / "kiln.key")]) == 0
    assert before == {path.name: path.read_bytes() for path in place.iterdir()}


def test_an_envelope_has_one_spelling():
    data, keys = (signed() / FILE).read_bytes(), (signed() / "kiln.pub").read_bytes()
    key = minisign.read_public_key(keys, "")
    whole = (signed() / ENVELOPE).read_bytes()
    assert reading.check_envelope(whole, ENVELOPE, data, {key.name: key}) == key.name
    spare = base64.b64encode(data)
    for other in (whole + b"\n", whole.replace(b":", b": "), b" " + whole, whole.replace(spare, spare + b"="), b""):
        with pytest.raises(KilnError) as caught:
            reading.check_envelope(other, ENVELOPE, data, {key.name: key})
        assert type(caught.value) is TrustError
