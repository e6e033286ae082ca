"""A store with a cache behind it: what comes is checked, what is compiled goes, and no server can do harm."""

from __future__ import annotations

import base64
import logging
import socket
import time
from pathlib import Path

import pytest

from cache_server import CacheServer, Faults, poison
from kiln_build.cache import layered
from kiln_build.cache.access import Access
from kiln_build.cache.budget import Budget
from kiln_build.cache.layered import CONNECTIONS, LayeredStore
from kiln_build.cache.remote import Remote
from kiln_build.cache.transport import open_transport
from kiln_build.store.local import LocalStore
from kiln_build.trust import minisign
from kiln_recipe.errors import UsageError
from store_contract import digest, fill, image

KEYS = [digest(number) for number in range(30)]


class Team:
    """Opens stores in folders of their own, all with one cache behind them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def open(self, name: str, url: str, *, judge=lambda info, code: (), pace: float = 0.4, **access) -> LayeredStore:
        self.said.clear()
        opened = Access(**access)

        def remote(said):
            budget = Budget(CONNECTIONS, pace)
            return Remote(open_transport(url, opened, CONNECTIONS), opened, budget, said, judge)

        return LayeredStore(LocalStore(self.folder / name, self.said.append), url, remote, self.said.append)

    def compile(self, name: str, url: str, numbers=range(30), **more) -> None:
        """As workers and the farm do: into the local store, and then announced."""
        store = self.open(name, url, **more)
        fill(store.local, numbers)
        for number in numbers:
            store.share(digest(number))
        store.close()


@pytest.fixture
def team(tmp_path):
    return Team(tmp_path)


@pytest.fixture
def server():
    with CacheServer() as one:
        yield one


def have(store: LayeredStore) -> int:
    """How many of the images it has; each is the right one."""
    store.prefetch(KEYS)
    found = {number: store.get(digest(number)) for number in range(30)}
    for number, stored in found.items():
        if stored is not None:
            assert store.load(stored) == image(number)
            assert (stored.ir, stored.seconds) == (digest(f"ir {number}"), 1.0)
    return sum(stored is not None for stored in found.values())


def test_what_one_compiles_all_have(team, server):
    team.compile("one", server.url)
    assert len(server.of("ac")) == 30 and "30 sent" in team.said[-1]
    store = team.open("two", server.url)
    assert have(store) == 30
    store.close()
    assert len(team.said) == 1 and "30 images fetched (" in team.said[0] and "0 not there, 0 sent" in team.said[0]
    before = server.seen["requests"]
    assert have(team.open("two", server.url)) == 30, "a second look asks nobody"
    assert server.seen["requests"] == before


def test_connections_are_reused(team, server):
    team.compile("one", server.url)
    assert have(team.open("two", server.url)) == 30
    assert server.seen["requests"] >= 180 and server.seen["connections"] <= 2 * CONNECTIONS


def test_a_read_only_cache_gets_nothing(team, server):
    team.compile("one", server.url, is_read_only=True)
    assert server.content == {} and server.seen["PUT"] == 0
    assert "0 sent" in team.said[-1]


def test_every_third_entry_poisoned_is_named_compiled_and_repaired(team, server):
    team.compile("one", server.url)
    damaged = poison(server, 3)
    assert damaged == 10
    store = team.open("two", server.url)
    assert have(store) == 20
    warnings = [text for text in team.said if text.startswith("warning: ")]
    assert len(warnings) == damaged and all("; it is not used" in text for text in warnings)
    for what in (
        "is that of the key",
        "is damaged: it has another digest",
        "is not an ActionResult",
        "is damaged, or is not an entry",
    ):
        assert any(what in text for text in warnings), what
    missing = [number for number in range(30) if store.get(digest(number)) is None]
    fill(store.local, missing)
    for number in missing:
        store.share(digest(number))
    store.close()
    assert "10 unusable" in team.said[-1] and "10 sent" in team.said[-1]
    assert have(team.open("three", server.url)) == 30 and team.said == []


def test_images_that_contradict_their_facts_are_not_used(team, server):
    team.compile("one", server.url)
    store = team.open("two", server.url, judge=lambda info, code: ("is no image",))
    assert have(store) == 0 and "has an image that is no image; it is not used" in team.said[0]
    assert sum(text.startswith("warning") for text in team.said) == 21, "many are not all said"


def test_what_is_forgotten_is_not_fetched_again(team, server):
    team.compile("one", server.url)
    store = team.open("two", server.url)
    store.forget(KEYS[0], store.get(KEYS[0]))
    assert store.get(KEYS[0]) is None
    store.prefetch(KEYS)
    assert store.get(KEYS[0]) is None and store.get(KEYS[1]) is not None


# ---- who signed ----


def key(seed: int) -> minisign.SecretKey:
    return minisign.SecretKey(bytes([seed]) * 8, bytes([seed]) * 32)


def test_signed_entries(team, server):
    mine, other = key(1), key(2)
    team.compile("one", server.url, range(10), key=mine)
    team.compile("two", server.url, range(10, 20), key=other)
    team.compile("three", server.url, range(20, 30))
    assert have(team.open("four", server.url)) == 30, "where no key is asked for, none is looked at"
    store = team.open("five", server.url, trusted=(mine.public,))
    assert have(store) == 10 and all(store.get(digest(number)) for number in range(10))
    assert sum("is not signed by a key that is trusted" in text for text in team.said) in range(1, 11)
    assert sum("is not signed; it is not used" in text for text in team.said) in range(1, 11)
    assert have(team.open("six", server.url, trusted=(mine.public, other.public))) == 20


def test_a_signature_is_of_its_own_entry_alone(team, server):
    mine = key(1)
    team.compile("one", server.url, range(2), key=mine)
    first, second = (server.of("ac")[digest(number)] for number in range(2))
    place = second.index(b"untrusted comment")
    server.set("ac", digest(0), first[: first.index(b"untrusted comment")] + second[place:])
    store = team.open("two", server.url, trusted=(mine.public,))
    assert store.get(digest(0)) is None and store.get(digest(1)) is not None
    assert any("is signed as something else" in text for text in team.said)


# ---- who may ----


@pytest.mark.parametrize(
    ("access", "header"),
    [
        ({"token": "t0p-s3cret"}, "Bearer t0p-s3cret"),
        ({"login": "me:t0p-s3cret"}, f"Basic {base64.b64encode(b'me:t0p-s3cret').decode()}"),
        ({"login": "mé:€ t0p-s3cret"}, f"Basic {base64.b64encode('mé:€ t0p-s3cret'.encode()).decode()}"),
    ],
)
def test_credentials_are_sent_and_never_said(team, server, access, header, caplog):
    server.authorization = header
    with caplog.at_level(logging.DEBUG):
        team.compile("one", server.url, range(3), **access)
        store = team.open("two", server.url, **access)
        assert sum(store.get(digest(number)) is not None for number in range(3)) == 3
        store.close()
        assert "t0p-s3cret" not in "".join(team.said) + repr(store.remote.__dict__) + repr(Access(**access))
        assert have(team.open("three", server.url)) == 0
    assert any("status 401: it wants other credentials" in text for text in team.said)
    assert "t0p-s3cret" not in caplog.text


def test_a_redirection_elsewhere_is_followed_without_credentials(team, server):
    with CacheServer() as other:
        team.compile("one", other.url, range(3))
        other.headers.clear()
        server.faults.redirect = other.url.removesuffix("/kiln")
        store = team.open("two", server.url, token="t0p-s3cret")
        assert store.get(digest(1)) is not None
        assert all("Authorization" not in headers for headers in other.headers) and other.headers
        assert "Bearer t0p-s3cret" in server.headers[0]["Authorization"]
    server.faults.redirect = server.url.removesuffix("/kiln")  # to itself, for ever
    store = team.open("three", server.url)
    began = server.seen["requests"]
    assert store.get(digest(1)) is None and server.seen["requests"] - began <= 5


def test_another_kind_of_cache_is_refused():
    with pytest.raises(
        UsageError, match=r"the cache ftp://x is of an unknown kind; give an address with http, https, s3"
    ):
        open_transport("ftp://x", Access(), 1)


# ---- what fails ----


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


FAULTS = {
    "500": Faults(status=500),
    "403": Faults(status=403),
    "cut": Faults(cut=True),
    "dies": Faults(dies=True),
    "dies half way": Faults(dies=True, after=30),
    "500 half way": Faults(status=500, after=30),
    "10 s a reply": Faults(delay=10),
    "1 s a byte": Faults(drip=1.0),
    "compressed again": Faults(encoding="gzip"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_server_that_fails_costs_little_and_is_said_once(team, server, name):
    team.compile("one", server.url)
    server.faults = FAULTS[name]
    server.seen.clear()
    store = team.open("two", server.url)
    began = time.monotonic()
    found = have(store)
    fill(store.local, range(30))
    for number in range(30):
        store.share(digest(number))
    store.close()
    assert time.monotonic() - began < 60 and (found == 0 or "half way" in name)
    left_alone = [text for text in team.said if "is not asked any more: " in text]
    assert len(left_alone) == 1 and not any(text.startswith("warning") for text in team.said)
    assert have(team.open("two", server.url)) == 30, "the build has what it compiled"


def test_a_cache_that_is_not_there(team):
    store = team.open("one", f"http://127.0.0.1:{free_port()}/kiln")
    began = time.monotonic()
    assert have(store) == 0 and time.monotonic() - began < 60
    said = [text for text in team.said if "is not asked any more" in text and "Connection refused" in text]
    assert len(said) == 1 and "Watched" not in said[0], said


def test_a_cache_whose_images_come_more_slowly_than_they_are_compiled():
    budget = Budget(16, pace=2.0)
    budget.gave(0, 0, 9.0)
    budget.gave(25, 25, 20.0)
    assert not budget.slow
    budget.gave(15, 40, 20.0)
    assert budget.slow == "15 images, of 40 asked for, in 20 s is slower than compiling them" and not budget.is_spent


def test_an_empty_cache_that_answers_soon_is_asked_to_the_end():
    budget = Budget(16, pace=25.0)
    for second in range(10, 300):
        budget.gave(0, 800 * second, float(second))
    assert not budget.slow
    budget.gave(0, 100 * 60, 60.0)
    assert budget.slow, "asking takes a fifth of what compiling does"


def test_what_is_compiled_goes_to_a_cache_that_is_too_slow_to_be_asked(team, server):
    store = team.open("one", server.url)
    store.remote.budget.slow = "0 images, of 40 asked for, in 20 s is slower than compiling them"
    assert have(store) == 0 and server.seen["GET"] == 0
    fill(store.local, range(30))
    for number in range(30):
        store.share(digest(number))
    store.close()
    assert len(server.of("ac")) == 30
    assert sum("is not asked any more: 0 images, of 40" in text for text in team.said) == 1


def test_what_does_not_go_to_a_cache_that_is_left_alone_is_counted(team):
    store = team.open("one", f"http://127.0.0.1:{free_port()}/kiln")
    assert have(store) == 0
    fill(store.local, range(30))
    for number in range(30):
        store.share(digest(number))
    store.close()
    assert "30 not sent: `kiln store push` sends them" in team.said[-1]


def test_what_has_not_gone_is_not_waited_for_when_all_ends_at_once(team, monkeypatch):
    monkeypatch.setattr(layered, "_FLUSH", 1e6)
    with CacheServer(faults=Faults(delay=3.0)) as server:
        store = team.open("one", server.url)
        fill(store.local, range(30))
        for number in range(30):
            store.share(digest(number))
        store.close(at_once=True)
        assert len(server.of("ac")) < 30 and "not sent: `kiln store push` sends them" in team.said[-1]


def test_failures_between_answers_may_cost_so_much_and_no_more():
    budget = Budget(1, 1.0)
    for _ in range(4):
        budget.failed("status 503", 2.0)
        budget.succeeded()
    assert not budget.is_spent
    budget.failed("status 503", 2.5)
    assert budget.why == "5 requests failed and took 10 s, the last by status 503"


@pytest.mark.parametrize("is_stated", [True, False])
def test_bodies_that_are_too_large_are_not_read(team, server, is_stated):
    team.compile("one", server.url, range(1))
    server.set("ac", digest(0), bytes(1 << 22))
    server.faults.unsized = not is_stated
    store = team.open("two", server.url)
    assert store.get(digest(0)) is None
    assert store.remote.counts["bytes in"] == 0 and store.remote.budget.failures == 1


def test_a_length_that_no_number_can_have_is_a_failure_of_the_cache(team, server, monkeypatch):
    team.compile("one", server.url, range(1))
    store = team.open("two", server.url)
    transport = store.remote._transport
    ask = transport._ask

    def lying(*words):
        response = ask(*words)
        response.headers = {"Content-Length": "9" * 5000}
        return response

    monkeypatch.setattr(transport, "_ask", lying)
    assert store.get(digest(0)) is None and store.remote.budget.failures == 1
    monkeypatch.setattr(transport, "_ask", lambda *_: 1 / 0)  # whatever a library makes of an answer
    assert store.get(digest(1)) is None and store.remote.budget.failures == 2
