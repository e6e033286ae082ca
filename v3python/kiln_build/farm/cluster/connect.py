"""The cluster that a scheduler's address names, as something that starts executors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import distributed

from kiln_build.farm.cluster.client import DaskExecutor
from kiln_build.farm.executor import StartExecutor
from kiln_recipe.errors import EnvironmentProblem, UsageError

_FILES = {"tls-ca-file": "ca.pem", "tls-client-cert": "cert.pem", "tls-client-key": "key.pem"}


def cluster(address: str, tls: str | None = None) -> StartExecutor:
    """
    Args:
        address: of the scheduler: tcp://host:8786, tls://host:8786.
        tls: a folder with ca.pem, cert.pem and key.pem, for a tls:// address; None: Dask's own configuration names
            such files.

    Raises:
        UsageError: certificates for an address that asks for none.
        EnvironmentProblem: one of them is not there, or cannot be used; or no such files are named.
    """
    files = certificates(address, tls)
    if not address.startswith("tls://"):
        return partial(DaskExecutor, address)
    return partial(DaskExecutor, address, security=_security(files))


def certificates(address: str, tls: str | None, role: str = "client") -> dict[str, str]:
    """Paths of the certificates, by what Dask calls them; errors as `cluster`.

    Args:
        role: of Dask's configuration, where `tls` is None: client or worker.
    """
    if tls and not address.startswith("tls://"):
        raise UsageError(f"KILN_SCHEDULER_TLS is for a tls:// address, and the scheduler's is {address}")
    files = {}
    for name, file in _FILES.items() if tls else ():
        path = Path(str(tls), file)
        if not path.is_file():
            raise EnvironmentProblem(
                f"KILN_SCHEDULER_TLS={tls} has no {file}; give a folder with {', '.join(_FILES.values())}"
            )
        files[name] = str(path)
    if address.startswith("tls://"):
        try:
            context = _security(files).get_connection_args("client" if files else role)["ssl_context"]
        except OSError as error:  # ssl's own too
            named = f"of KILN_SCHEDULER_TLS={tls}" if tls else "that Dask's configuration names"
            raise EnvironmentProblem(
                f"the certificates {named} cannot be used ({error.strerror or error}); "
                f"{', '.join(_FILES.values())} must be in PEM form, and the key that of the certificate"
            ) from error
        if context is None:
            raise EnvironmentProblem(
                f"no certificates are there for the scheduler {address}; set KILN_SCHEDULER_TLS to a folder with "
                f"{', '.join(_FILES.values())}, or name them in Dask's configuration"
            )
    return files


def _security(files: Mapping[str, str]) -> distributed.Security:
    return distributed.Security(
        require_encryption=True, **{name.replace("-", "_"): path for name, path in files.items()}
    )
