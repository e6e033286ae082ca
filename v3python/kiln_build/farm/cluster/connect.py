"""The cluster that a scheduler's address names, as something that starts executors."""

from __future__ import annotations

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
        EnvironmentProblem: one of them is not there.
    """
    files = certificates(address, tls)
    if not address.startswith("tls://"):
        return partial(DaskExecutor, address)
    named = {name.replace("-", "_"): path for name, path in files.items()}
    return partial(DaskExecutor, address, security=distributed.Security(require_encryption=True, **named))


def certificates(address: str, tls: str | None) -> dict[str, str]:
    """Paths of the certificates, by what Dask calls them; errors as `cluster`."""
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
    return files
