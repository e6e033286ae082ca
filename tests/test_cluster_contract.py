"""The executor of a Dask cluster keeps the contract of executors."""

from __future__ import annotations

import pytest

from executor_contract import CHECKS

dask_cluster = pytest.importorskip("dask_cluster", reason="the package distributed is not installed")

pytestmark = pytest.mark.slow(120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with dask_cluster.running(tmp_path_factory.mktemp("cluster"), "one", slots=2) as cluster:
        yield cluster


@pytest.mark.parametrize("name", CHECKS)
def test_contract(cluster, name, tmp_path, monkeypatch):
    monkeypatch.setenv(dask_cluster.ADDRESS, cluster.address)
    CHECKS[name](dask_cluster.start, tmp_path)
