"""Every transport of a cache keeps the contract of kiln_build/cache/transport.py."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import sys
import threading
import time

import pytest
import urllib3

from cache_server import CacheServer, Faults
from kiln_build.cache.access import Access
from kiln_build.cache.transport import AC, CAS, Failed, open_transport
from kiln_recipe.errors import EnvironmentProblem, UsageError


@contextlib.contextmanager
def over_http():
    with CacheServer() as server:
        yield open_transport(server.url, Access(), 4)


@contextlib.contextmanager
def nobody_over_http():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))  # and does not listen
        yield open_transport(f"http://127.0.0.1:{one.getsockname()[1]}/kiln", Access(), 4)


@contextlib.contextmanager
def over_s3(is_there: bool = True):
    pytest.importorskip("obstore", reason="obstore is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        urllib3.PoolManager().request("PUT", f"{url}/images")
        if not is_there:
            server.stop()
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("AWS_ENDPOINT_URL", url)
            environment.setenv("AWS_REGION", "us-east-1")
            yield open_transport("s3://images/kiln", Access(login="id:secret"), 4)
    finally:
        if is_there:
            server.stop()


def nobody_over_s3():
    return over_s3(is_there=False)


# To add an implementation is to add a line: what opens an empty cache, and one that cannot be reached.
TRANSPORTS = {"http": (over_http, nobody_over_http), "s3": (over_s3, nobody_over_s3)}


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    with TRANSPORTS[request.param][0]() as one:
        yield one
        one.close()


def name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_what_was_put_is_there_and_nothing_else(transport):
    assert transport.get(AC, name("a"), 100) is None
    for kind, data in ((AC, b"entry"), (CAS, b""), (CAS, bytes(range(256)) * 4000)):
        transport.put(kind, name("a"), data)
        assert transport.get(kind, name("a"), len(data)) == data
    assert transport.get(AC, name("a"), 100) == b"entry", "entries and blobs are apart"
    assert transport.get(CAS, name("b"), 100) is None


def test_what_is_put_again_is_replaced(transport):
    for data in (b"long and wrong", b"right"):
        transport.put(CAS, name("a"), data)
        assert transport.get(CAS, name("a"), 100) == data


def test_more_than_the_limit_is_a_failure(transport):
    transport.put(CAS, name("a"), bytes(1000))
    assert transport.get(CAS, name("a"), 1000) == bytes(1000)
    with pytest.raises(Failed, match="999"):
        transport.get(CAS, name("a"), 999)
    assert transport.get(CAS, name("a"), 1000) == bytes(1000)


def test_threads_use_it_at_once(transport):
    wrong: list[int] = []

    def use(number: int) -> None:
        for turn in range(10):
            data = bytes([number, turn]) * 5000
            transport.put(CAS, name(f"{number} {turn}"), data)
            if transport.get(CAS, name(f"{number} {turn}"), len(data)) != data:
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_what_cannot_be_reached_fails_within_seconds(kind):
    with TRANSPORTS[kind][1]() as one:
        for call in (
            lambda: one.get(AC, name("a"), 10), lambda: one.put(AC, name("a"), b"x")
        ):  # fmt: skip
            began = time.monotonic()
            with pytest.raises(Failed):
                call()
            assert time.monotonic() - began < 60


def test_s3_takes_no_token():
    pytest.importorskip("obstore", reason="obstore is not installed")
    with pytest.raises(UsageError, match="takes no token and no certificates; S3 has AWS_... or a login"):
        open_transport("s3://images/kiln", Access(token="t"), 1)


def test_s3_without_its_package_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(EnvironmentProblem, match=r"s3://images/kiln needs the package obstore, which is not installed"):
        open_transport("s3://images/kiln", Access(), 1)


@pytest.mark.parametrize("faults", [Faults(status=500), Faults(cut=True), Faults(dies=True)], ids=str)
def test_http_that_fails(faults):
    with CacheServer() as server:
        one = open_transport(server.url, Access(), 4)
        one.put(CAS, name("a"), bytes(1000))
        server.faults = faults
        with pytest.raises(Failed):
            one.get(CAS, name("a"), 1000)
