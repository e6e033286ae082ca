"""The cache on a real nginx, set up as examples/cache/nginx.conf is: with passwords, and with client certificates."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kiln_build.cache.access import read_access
from kiln_build.options.options import read_build_variables
from kiln_recipe.errors import UsageError
from store_contract import digest
from test_cache import Team, free_port, have

CONFIGURATION = Path(__file__).resolve().parents[1] / "examples" / "cache" / "nginx.conf"

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


@dataclass
class Nginx:
    """A server: `plain` is open to readers, `tls` to who has a certificate; `files` is where it keeps what it has."""

    plain: str
    tls: str
    files: Path
    certificates: Path


def make_certificates(folder: Path) -> None:
    """An authority, and by it a server's certificate and a client's, each with its key in one file."""
    now = datetime.datetime.now(datetime.timezone.utc)

    def made(name: str, issuer=None):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer, by = issuer or (key, subject)
        builder = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(by).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(1))
            .not_valid_after(now + datetime.timedelta(2))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        )  # fmt: skip
        one = builder.sign(signer, hashes.SHA256())
        form = serialization.Encoding.PEM
        private = key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / f"{name}.pem").write_bytes(one.public_bytes(form) + (b"" if issuer is None else private))
        return key, subject

    authority = made("authority")
    made("server", authority)
    made("client", authority)


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nginx")
    make_certificates(folder)
    ports = [free_port(), free_port()]
    password = subprocess.run(
        ["openssl", "passwd", "-apr1", "secret"], capture_output=True, text=True, check=True
    ).stdout.strip()
    (folder / "writers").write_text(f"farm:{password}\n")
    text = CONFIGURATION.read_text()
    for old, new in {
        "www-data": "root",
        "/run/kiln-cache.pid": f"{folder}/pid",
        "/var/log/nginx/kiln-cache.log": f"{folder}/log",
        "/opt/kiln-cache": f"{folder}/files",
        "/etc/nginx/kiln-writers": f"{folder}/writers",
        "/etc/nginx/kiln-server.pem": f"{folder}/server.pem",
        "/etc/nginx/kiln-clients.pem": f"{folder}/authority.pem",
        "listen 8080": f"listen 127.0.0.1:{ports[0]}",
        "listen 8443": f"listen 127.0.0.1:{ports[1]}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    if os.getuid():
        text = re.sub("(?m)^user .*$", "", text)
    (folder / "nginx.conf").write_text(text)
    (folder / "files").mkdir()
    server = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"])
    try:
        for port in ports:
            wait_for(port)
        yield Nginx(f"http://127.0.0.1:{ports[0]}/kiln", f"https://127.0.0.1:{ports[1]}/kiln", folder / "files", folder)
    finally:
        server.terminate()
        server.wait()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "nginx does not start"
            time.sleep(0.05)


@pytest.fixture
def team(tmp_path):
    return Team(tmp_path)


def test_writers_have_a_password_and_readers_need_none(nginx, team):
    team.compile("one", nginx.plain)
    assert any("answered PUT with status 401" in text for text in team.said)
    assert have(team.open("two", nginx.plain)) == 0
    team.compile("one", nginx.plain, login="farm:secret")
    assert "30 sent" in team.said[-1]
    assert have(team.open("three", nginx.plain)) == 30
    kept = {
        path.relative_to(nginx.files / "kiln").parts[0] for path in (nginx.files / "kiln").rglob("*") if path.is_file()
    }
    assert kept == {"ac", "cas"}


def test_what_is_damaged_on_its_disk_is_repaired(nginx, team):
    team.compile("one", nginx.plain, login="farm:secret")
    for number in range(0, 30, 10):
        path = nginx.files / "kiln" / "ac" / digest(number)
        path.write_bytes(path.read_bytes()[:-40])
    store = team.open("two", nginx.plain)
    assert have(store) == 27
    team.compile("one", nginx.plain, [0, 10, 20], login="farm:secret")
    assert have(team.open("three", nginx.plain)) == 30 and team.said == []


def test_client_certificates(nginx, team):
    mine = {
        "certificate": str(nginx.certificates / "client.pem"), "authorities": str(nginx.certificates / "authority.pem")
    }  # fmt: skip
    team.compile("one", nginx.tls, **mine)
    assert "30 sent" in team.said[-1]
    assert have(team.open("two", nginx.tls, **mine)) == 30
    assert have(team.open("three", nginx.tls, authorities=mine["authorities"])) == 0
    assert any("status 400" in text for text in team.said), "nginx refuses who has no certificate"
    assert have(team.open("four", nginx.tls)) == 0
    assert any("certificate verify failed" in text.lower() for text in team.said), "an unknown authority is believed"


def test_files_without_certificates_are_refused_before_anything_is_asked(tmp_path):
    def read(**variables: str) -> None:
        read_access(read_build_variables({"KILN_CACHE": "https://127.0.0.1:1/kiln", **variables}))

    make_certificates(tmp_path)
    authority, client, other = str(tmp_path / "authority.pem"), str(tmp_path / "client.pem"), tmp_path / "other.pem"
    read(KILN_CACHE_CERTIFICATE=client, KILN_CACHE_CA=authority)
    other.write_text("root:x:0:0\n")
    with pytest.raises(UsageError, match=rf"KILN_CACHE_CA={other} is not a PEM file with certificates; give one"):
        read(KILN_CACHE_CA=str(other))
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    locked = tmp_path / "locked.pem"  # whose password OpenSSL would ask a terminal for, in each connection
    locked.write_bytes(Path(authority).read_bytes() + key)
    for wrong in (other, locked, authority):
        with pytest.raises(UsageError, match=rf"KILN_CACHE_CERTIFICATE={wrong} is not a PEM file with a certificate"):
            read(KILN_CACHE_CERTIFICATE=str(wrong))
