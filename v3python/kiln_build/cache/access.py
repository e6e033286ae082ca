"""How one gets at a cache: its address, what it may do, and the secrets that open it, which are read here and are in no
text, log or manifest."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass

from kiln_build.options.variables import BuildVariables
from kiln_build.trust import minisign, secret
from kiln_build.trust.minisign import PublicKey, SecretKey
from kiln_recipe.console.files import read_given
from kiln_recipe.errors import EnvironmentProblem, UsageError


@dataclass(frozen=True, repr=False)
class Access:
    """What opens a cache.

    Attributes:
        token: for "Authorization: Bearer"; "" for none.
        login: "user:password"; "" for none.
        certificate: a PEM file with a client's certificate and its key, or None.
        authorities: a PEM file of certificates to believe in place of the system's, or None.
        key: signs what goes, or None.
        trusted: the keys by one of which an entry must be signed; empty: any entry will do. Whoever signs trusts that
            key too: what came unsigned would else go back with its signature.
        is_read_only: nothing goes.
    """

    token: str = ""
    login: str = ""
    certificate: str | None = None
    authorities: str | None = None
    key: SecretKey | None = None
    trusted: tuple[PublicKey, ...] = ()
    is_read_only: bool = False


def read_access(asked: BuildVariables) -> Access:
    """Reads all that is asked for.

    Raises:
        EnvironmentProblem: a secret or a key is not there.
        UsageError: one is not what it should be, or a PEM file holds something else.
    """
    token = _secret(asked.cache_token, "the token of the cache") if asked.cache_token else ""
    login = _secret(asked.cache_login, "the login of the cache") if asked.cache_login else ""
    if token and not re.fullmatch(r"[!-~]+", token):
        raise UsageError("the token of the cache has something else than printable characters; give the token alone")
    if login and not re.fullmatch(r"[^:\r\n]+:[^\r\n]*", login):
        raise UsageError("the login of the cache is not a name and a password with ':' between; give both, in one line")
    key = secret.read_key(asked.cache_key, asked.cache_password, "KILN_CACHE_PASSWORD") if asked.cache_key else None
    trusted = [*map(_public_key, asked.cache_trust), *([key.public] if key else [])]
    _check_certificates(asked)
    return Access(
        token, login, asked.cache_certificate, asked.cache_authorities, key, tuple(trusted),
        asked.cache_mode == "read-only",
    )  # fmt: skip


def _check_certificates(asked: BuildVariables) -> None:
    """Here, since connections would read the files one by one, and ask a terminal for a key's password."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    loads = (
        ("CERTIFICATE", asked.cache_certificate, lambda file: context.load_cert_chain(file, password=lambda: ""),
         "a certificate and its key, without a password"),
        ("CA", asked.cache_authorities, context.load_verify_locations, "certificates"),
    )  # fmt: skip
    for name, file, load, what in loads:
        try:
            if file is not None:
                load(file)
        except ssl.SSLError as error:
            raise UsageError(f"KILN_CACHE_{name}={file} is not a PEM file with {what}; give one") from error
        except OSError as error:
            raise EnvironmentProblem(
                f"KILN_CACHE_{name}={file} cannot be read ({error.strerror}); give a PEM file with {what}"
            ) from error


def _secret(word: str, what: str) -> str:
    return secret.read_text(word, what).decode(errors="replace").strip()


def _public_key(word: str) -> PublicKey:
    try:
        data = read_given(word, minisign.LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(
            f"the public key {word} cannot be read ({error.strerror}); give a .pub file of minisign's"
        ) from None
    return minisign.read_public_key(data, word)
