"""A cache in a bucket of S3, or of what speaks its protocol, by the package obstore, which only this needs."""

from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import urlsplit

from kiln_build.cache.access import Access
from kiln_build.cache.transport import Failed
from kiln_recipe.errors import EnvironmentProblem, UsageError

_CONNECT, _WHOLE = 3, 8  # seconds until a connection stands, and of a whole request
_RETRIES = 1


class S3Transport:
    """A cache at s3://bucket/prefix. Region, endpoint and credentials are those of the variables AWS_..., as for other
    programs that use S3, or a login: "access-key-id:secret-access-key".

    Raises:
        EnvironmentProblem: obstore is not installed.
        UsageError: a token or a certificate is given, which S3 has no use for; or obstore refuses the settings.
    """

    def __init__(self, address: str, access: Access, connections: int) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        except ImportError:
            raise EnvironmentProblem(
                f"the cache {address} needs the package obstore, which is not installed; install it where Kiln runs: "
                "pip install obstore"
            ) from None
        if access.token or access.certificate or access.authorities:
            raise UsageError(f"the cache {address} takes no token and no certificates; S3 has AWS_... or a login")
        parts = urlsplit(address)
        settings: dict[str, Any] = {}
        if access.login:
            settings["access_key_id"], _, settings["secret_access_key"] = access.login.partition(":")
        self._errors, self._io = (BaseError, OSError), obstore
        seconds = datetime.timedelta(seconds=_WHOLE)
        try:
            self._store = S3Store(
                parts.netloc,
                prefix=parts.path.strip("/") or None,
                client_options={
                    "connect_timeout": f"{_CONNECT}s", "timeout": f"{_WHOLE}s", "allow_http": True,
                    "pool_max_idle_per_host": str(connections),
                },
                retry_config={"max_retries": _RETRIES, "retry_timeout": seconds},
                **settings,
            )  # fmt: skip
        except (BaseError, ValueError) as error:
            raise UsageError(f"the cache {address} cannot be opened: {_first_line(error)}") from None

    def get(self, kind: str, name: str, limit: int) -> bytes | None:
        try:
            found = self._io.get(self._store, f"{kind}/{name}")
            if (size := found.meta["size"]) > limit:
                raise Failed(f"it has {size} bytes, where at most {limit} are expected")
            return bytes(found.bytes())
        except FileNotFoundError:
            return None
        except self._errors as error:
            raise Failed(_first_line(error)) from None

    def put(self, kind: str, name: str, data: bytes) -> None:
        try:
            self._io.put(self._store, f"{kind}/{name}", data, use_multipart=False)
        except self._errors as error:
            raise Failed(_first_line(error)) from None

    def close(self) -> None:
        """Its connections end with it."""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"[:200]
