"""Downloads against a server that cuts, refuses, ignores ranges and lies; `kiln fetch` as users run it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from faulty_server import Faults, FaultyIndex
from kiln_build.fetch import download
from kiln_build.fetch.download import Patience
from kiln_build.fetch.fetch import fetch_files, verify_cache
from kiln_build.fetch.registry import ClientConfiguration, Registry
from kiln_recipe.compile.lock import LOCK_NAME, Lock, LockedAddress, LockedFile, Package, running_python, write_lock
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import EnvironmentProblem, ToolchainError

SOURCE = Path(__file__).resolve().parents[1] / "v3python"
QUICK = Patience(attempts=5, first_pause=0.01)


def data_of(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


def wheel(package: str) -> str:
    return f"{package}-1.0-py3-none-any.whl"


def make_files(*packages: str, size: int = 700_000) -> dict[str, tuple[str, bytes]]:
    return {wheel(package): (package, data_of(package, size)) for package in packages}


def make_lock(wheels: dict[str, tuple[str, bytes]], **changes) -> Lock:
    packages = tuple(
        Package(
            name=package,
            version="1.0",
            licence="MIT",
            use="build",
            files=(
                LockedFile(
                    name=name, pythons=(running_python(),), size=len(data), sha256=hashlib.sha256(data).hexdigest()
                ),
            ),
        )
        for name, (package, data) in wheels.items()
    )
    return Lock(**{"format": 1, "pythons": (running_python(),), "packages": packages, **changes})


def registry_of(index: FaultyIndex) -> Registry:
    return Registry(ClientConfiguration(indexes=(index.url,), find_links=()), timeout=10)


class Meter(Progress):
    """What the bar would show."""

    def __init__(self) -> None:
        self.total = self.count = self.highest = 0

    def start(self, total, estimate=None, *, title="", unit="job") -> None:
        self.total = total

    def advance(self, amount: int) -> None:
        self.count += amount
        self.highest = max(self.highest, self.count)


def bring(lock: Lock, cache: Path, index: FaultyIndex, meter: Progress | None = None, **more) -> list[str]:
    more = {"patience": QUICK, **more}
    return fetch_files(lock, lock.every_file(), cache, lambda: registry_of(index), meter or Progress(), **more)


def assert_complete(cache: Path, files: dict[str, tuple[str, bytes]]) -> None:
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == {n: data for n, (_, data) in files.items()}


@pytest.mark.parametrize("html", [False, True])
def test_cuts_503_an_ignored_range_and_wrong_bytes_all_at_once(tmp_path, html):
    files = make_files("alpha", "beta", "gamma", "delta", "epsilon")
    names = list(files)
    faults = Faults(
        cuts=Counter(dict.fromkeys(names, 3)),
        unavailable=Counter({names[1]: 2, "gamma": 1}),
        ignored_ranges=Counter({names[2]: 1}),
        wrong_bytes=Counter({names[3]: 4}),  # through the cuts, to the end
        html=html,
    )
    meter = Meter()
    with FaultyIndex(files, faults) as index:
        assert sorted(bring(make_lock(files), tmp_path / "cache", index, meter)) == sorted(names)
        asked = index.served(names[0])
    assert_complete(tmp_path / "cache", files)
    assert meter.count == meter.total == sum(len(data) for _, data in files.values())
    # Resumed each time where it was cut, under the condition that the file is the same.
    starts = [int(span.removeprefix("bytes=").rstrip("-")) for span, _ in asked[1:]]
    assert asked[0] == (None, None) and len(asked) == 4 and starts == sorted(set(starts)) and starts[0] > 200_000
    assert all(condition == f'"{names[0]}-0"' for _, condition in asked[1:])


def test_a_full_cache_asks_nobody(tmp_path):
    files = make_files("alpha")
    with FaultyIndex(files) as index:
        bring(make_lock(files), tmp_path, index)

    def nobody():
        raise AssertionError("asked")

    assert fetch_files(make_lock(files), make_lock(files).every_file(), tmp_path, nobody, Progress()) == []


def test_a_file_that_changed_on_the_server_is_begun_anew(tmp_path):
    files = make_files("alpha")
    (name,) = files
    part = tmp_path / f"{name}.part"
    part.write_bytes(b"of an older one" * 1000)
    with FaultyIndex(files) as index:
        url = index.url.replace("/simple", f"/files/{name}")
        (tmp_path / f"{name}.part.json").write_text(json.dumps({"url": url, "validator": '"older"'}))
        bring(make_lock(files), tmp_path, index)
        assert index.served(name) == [("bytes=15000-", '"older"')]
    assert_complete(tmp_path, files)


def test_a_part_of_unknown_origin_is_resumed_and_then_found_out(tmp_path):
    files = make_files("alpha")
    (name,) = files
    (tmp_path / f"{name}.part").write_bytes(b"rubbish")
    (tmp_path / f"{name}.part.json").write_text("not JSON")
    with FaultyIndex(files) as index:
        bring(make_lock(files), tmp_path, index)
        assert index.served(name) == [("bytes=7-", None), (None, None)]
    assert_complete(tmp_path, files)


@pytest.mark.parametrize("extra", [0, 9])
def test_a_part_as_long_as_the_file_or_longer(tmp_path, extra):
    files = make_files("alpha")
    ((name, (_, data)),) = files.items()
    (tmp_path / f"{name}.part").write_bytes(data + b"x" * extra)
    with FaultyIndex(files) as index:
        bring(make_lock(files), tmp_path, index)
        assert len(index.served(name)) == (1 if extra else 0)
    assert_complete(tmp_path, files)


def test_wrong_bytes_for_ever_name_the_file_and_both_digests(tmp_path):
    files = make_files("alpha", "beta")
    name = wheel("alpha")
    with FaultyIndex(files, Faults(wrong_bytes=Counter({name: 1000}))) as index:
        with pytest.raises(ToolchainError) as caught:
            bring(make_lock(files), tmp_path, index)
    data = files[name][1]
    got = hashlib.sha256(bytes(byte ^ 0x55 for byte in data)).hexdigest()
    for word in (name, hashlib.sha256(data).hexdigest(), got, "5 attempts"):
        assert word in str(caught.value)
    assert not (tmp_path / name).exists()


def test_a_longer_file_than_locked_is_not_read_to_its_end(tmp_path):
    files = make_files("alpha", size=1000)
    lock = make_lock(files)
    longer = {wheel("alpha"): ("alpha", files[wheel("alpha")][1] + b"x" * 5_000_000)}
    with FaultyIndex(longer) as index:
        with pytest.raises(ToolchainError, match="expected 1000 bytes, got more than 1000"):
            bring(lock, tmp_path, index)


def test_an_index_that_offers_another_digest_is_believed_at_once(tmp_path):
    files = make_files("alpha")
    lock = make_lock(files)
    page = tmp_path / "links.html"
    page.write_text(f'<a href="http://127.0.0.1:9/{wheel("alpha")}#sha256={"0" * 64}">x</a>')
    configuration = ClientConfiguration(indexes=(), find_links=(str(page),))
    with pytest.raises(ToolchainError, match=f"{wheel('alpha')}: expected SHA-256 .* but the index offers 0000"):
        fetch_files(lock, lock.every_file(), tmp_path / "cache", lambda: Registry(configuration), Progress())


def test_a_file_that_nobody_has(tmp_path):
    files = make_files("alpha")
    with FaultyIndex({}) as index:
        with pytest.raises(ToolchainError, match=rf"{wheel('alpha')} cannot be found \(alpha==1.0; looked in: 1 index"):
            bring(make_lock(files), tmp_path, index)


def test_a_dead_server_is_tried_and_named(tmp_path):
    files = make_files("alpha")
    with FaultyIndex({}) as index:
        pass  # closed again: its port refuses
    with pytest.raises(ToolchainError, match=r"after 5 attempts: .*[Rr]efused"):
        bring(make_lock(files), tmp_path, index)


def test_retry_after_is_obeyed(tmp_path):
    files = make_files("alpha", size=10)
    with FaultyIndex(files, Faults(unavailable=Counter({wheel("alpha"): 1}), retry_after="1")) as index:
        began = time.monotonic()
        bring(make_lock(files), tmp_path, index)
    assert time.monotonic() - began >= 1


def test_files_by_address_and_by_folder(tmp_path):
    data = data_of("llvm", 300_000)
    digest = hashlib.sha256(data).hexdigest()
    files = make_files("alpha")
    store = tmp_path / "wheels with space"
    store.mkdir()
    (store / wheel("alpha")).write_bytes(files[wheel("alpha")][1])
    with FaultyIndex({"llvm.tar.gz": ("x", data)}, Faults(cuts=Counter({"llvm.tar.gz": 3}))) as index:
        url = index.url.replace("/simple", "/files/llvm.tar.gz")
        address = LockedAddress(url=url, name="llvm.tar.gz", size=len(data), sha256=digest, licence="Apache-2.0")
        lock = make_lock(files, files=(address,))
        configuration = ClientConfiguration(indexes=(), find_links=(str(store),))
        registry = Registry(configuration)
        fetch_files(lock, lock.every_file(), tmp_path / "c", lambda: registry, Progress(), patience=QUICK)
    assert_complete(tmp_path / "c", {**files, "llvm.tar.gz": ("", data)})


def test_a_second_place_is_asked_when_the_first_lies(tmp_path):
    files = make_files("alpha")
    store = tmp_path / "mirror"
    store.mkdir()
    (store / wheel("alpha")).write_bytes(b"x" * 700_000)
    lock = make_lock(files)
    with FaultyIndex(files) as index:
        registry = Registry(ClientConfiguration(indexes=(index.url,), find_links=(str(store),)))
        fetch_files(lock, lock.every_file(), tmp_path / "c", lambda: registry, Progress(), patience=QUICK)
    assert_complete(tmp_path / "c", files)


def test_a_full_disk_is_said_so(tmp_path, monkeypatch):
    files = make_files("alpha")

    def full(*_):
        raise OSError(28, "No space left on device", str(tmp_path))

    with FaultyIndex(files) as index:
        monkeypatch.setattr(download.os, "write", full)
        with pytest.raises(EnvironmentProblem, match="No space left on device"):
            bring(make_lock(files), tmp_path, index)


def test_verify_names_all_that_is_wrong(tmp_path):
    files = make_files("alpha", "beta", "gamma", "delta", size=100)
    lock = make_lock(files)
    with FaultyIndex(files) as index:
        bring(lock, tmp_path, index)
    assert verify_cache(lock, lock.every_file(), tmp_path, Progress()).good
    (tmp_path / wheel("alpha")).unlink()
    (tmp_path / wheel("beta")).write_bytes(b"x" * 100)
    (tmp_path / wheel("gamma")).write_bytes(b"x" * 99)
    (tmp_path / "stranger.whl").touch()
    (tmp_path / f"{wheel('alpha')}.part").touch()
    verdict = verify_cache(lock, lock.every_file(), tmp_path, Progress())
    assert verdict.missing == (wheel("alpha"),) and verdict.unknown == ("stranger.whl",)
    assert [sentence.partition(":")[0] for sentence in verdict.corrupt] == [wheel("beta"), wheel("gamma")]


# ---- as users run it -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """An input folder, and the files of its lock."""
    files = make_files("alpha", "beta", "gamma")
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / LOCK_NAME).write_text(write_lock(make_lock(files), "# a test's"))
    return tmp_path / "input", files


def kiln_fetch(folder: Path, *words: str, index: str = "http://127.0.0.1:9/simple") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *words), capture_output=True, text=True, env=environment(index), check=False)


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "kiln_build", "fetch", "--input", str(folder), *words]


def environment(index: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    return {**kept, "PYTHONPATH": str(SOURCE), "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index}


def test_the_verb_fetches_verifies_and_speaks_json(folder):
    place, files = folder
    with FaultyIndex(files) as index:
        done = kiln_fetch(place, "--json", index=index.url)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)["fetched"]) == sorted(files)
    assert "fetch 2.0/2.0 MiB: 3 fetched" in done.stderr
    assert kiln_fetch(place).returncode == 0  # the server has gone
    (place / "cache" / wheel("beta")).write_bytes(b"")
    done = kiln_fetch(place, "--verify")
    assert done.returncode == 5
    assert done.stdout == f"corrupt  {wheel('beta')}: expected 700000 bytes, got 0\n"


def test_a_killed_fetch_is_resumed(folder):
    place, _ = folder
    big = make_files("alpha", size=6_000_000)
    (place / LOCK_NAME).write_text(write_lock(make_lock(big), "#"))
    with FaultyIndex(big, Faults(cuts=Counter({wheel("alpha"): 1000}), retry_after="100")) as index:
        process = subprocess.Popen(command(place), env=environment(index.url), stderr=subprocess.DEVNULL)
        part = place / "cache" / f"{wheel('alpha')}.part"
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (part.exists() and part.stat().st_size > 1_000_000):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        size = part.stat().st_size
        assert size > 1_000_000
        index.faults.cuts.clear()
        index.requests.clear()
        assert kiln_fetch(place, index=index.url).returncode == 0
        assert index.served(wheel("alpha"))[0][0] == f"bytes={size}-"
    assert_complete(place / "cache", big)


def test_two_at_once_bring_each_file_once(folder):
    place, files = folder
    with FaultyIndex(files) as index:
        both = [subprocess.Popen(command(place), env=environment(index.url), stdout=subprocess.PIPE) for _ in "12"]
        assert [process.wait() for process in both] == [0, 0]
        for process in both:
            process.stdout.close()
        assert all(len(index.served(name)) == 1 for name in files)
    assert_complete(place / "cache", files)


def test_ctrl_c_stops_at_once(folder):
    place, files = folder
    faults = Faults(unavailable=Counter(dict.fromkeys(files, 1000)), retry_after="120")
    with FaultyIndex(files, faults) as index:
        process = subprocess.Popen(command(place), env=environment(index.url), stderr=subprocess.PIPE, text=True)
        while not any(path.startswith("/files/") for path, *_ in list(index.requests)):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)  # half of what it was to wait
    assert process.returncode == 130 and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--python", "2.7"], 2, "Python 2.7 is not one that the toolchain is locked for"),
        (["--parallel", "0"], 2, "--parallel 0 is invalid"),
        (["--relock", "--python", "3.9"], 2, "--relock is for every Python and use of the lock; leave --python out"),
        (["--unbundle", "x", "--triton-source"], 2, "--unbundle is for every Python and use of the lock; leave --trit"),
        (["--bundle", "/nowhere/x.tar"], 7, "--bundle /nowhere/x.tar: there is no folder /nowhere; make it"),
        (["--bundle", "."], 7, "--bundle . is a folder; give a file, or a name that does not exist yet"),
        (["--unbundle", "/nowhere.tar"], 7, "/nowhere.tar cannot be read (No such file or directory)"),
    ],
)
def test_bad_input(folder, words, code, said):
    done = kiln_fetch(folder[0], *words)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr


def test_certificates_that_are_not_there(folder, monkeypatch):
    monkeypatch.setenv("KILN_CA_BUNDLE", "gone.pem")
    done = kiln_fetch(folder[0])
    assert (done.returncode, "KILN_CA_BUNDLE=gone.pem is not a file" in done.stderr) == (7, True), done.stderr


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (lambda text: text, 5, "Connection refused; looked in: 1 index of pip's configuration"),
        (lambda text: "{", 5, "toolchain.lock.yaml:2 is not YAML"),
        (lambda text: text.replace("format: 1", "format: 9"), 5, "has format 9; this Kiln reads format 1"),
    ],
)
def test_a_relock_that_cannot_be_leaves_the_lock_alone(folder, change, code, said):
    path = folder[0] / LOCK_NAME
    path.write_text(change(path.read_text()))
    before = path.read_text()
    done = kiln_fetch(folder[0], "--relock")
    assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (code, True, 1), done.stderr
    assert path.read_text() == before and not list(folder[0].glob(f".{LOCK_NAME}*"))


def test_a_missing_lock(tmp_path):
    done = kiln_fetch(tmp_path)
    assert done.returncode == 7
    assert f"{tmp_path / LOCK_NAME} cannot be read" in done.stderr
