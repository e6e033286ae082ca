"""A farm on a Dask cluster: the same images, and what becomes of them when workers, schedulers and clients die."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import cluster_tasks
import executor_contract
from kiln_build.farm import farm
from kiln_build.store.local import LocalStore
from kiln_recipe.errors import EnvironmentProblem, UsageError
from worker_tasks import StandInToolchain, StandInVariant

dask_cluster = pytest.importorskip("dask_cluster", reason="the package distributed is not installed")

pytestmark = pytest.mark.slow(200)
NAMES = ("ann", "bob", "cyd", "dan")


class Progress(farm.Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text, **_):
        self.said.append(text)


class Farm:
    """Runs farms in a folder; what workers begin to make is in `record`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalStore(folder / "store")
        self.record = folder / "record"
        self.record.touch()
        (folder / "kernels").mkdir(exist_ok=True)
        (folder / "kernels" / "kernel.py").write_text("a kernel")
        self.progress = Progress()

    def variants(self, count: int, seconds: float) -> list[StandInVariant]:
        source = str(self.folder / "kernels" / "kernel.py")
        specs = [cluster_tasks.Spec(f"v{n}", seconds, str(self.record), source) for n in range(count)]
        return [StandInVariant(f"k[{spec.text}]@t", spec) for spec in specs]

    def run(self, address: str, count: int, seconds: float = 0.3, security=None, **more) -> farm.FarmResult:
        def start(*words, **options):
            return dask_cluster.DaskExecutor(address, *words, find=cluster_tasks.find, security=security, **options)

        return farm.run(
            self.variants(count, seconds),
            StandInToolchain("1" * 64),
            self.store,
            farm.FarmOptions(self.folder / "logs", executor=start, elsewhere=True, **more),
            self.progress,
            compile_variant=cluster_tasks.compile_slowly,
            prepare_worker=cluster_tasks.prepare,
            contradictions=cluster_tasks.contradictions,
        )

    def run_until_told(self, address: str, seconds: float, *words: str) -> tuple[farm.FarmResult, int]:
        """Runs more and more images, each once, until a message has these words: a worker may be late. The last
        result, and how many images there are."""
        for count in range(4, 400, 4):
            result = self.run(address, count, seconds)
            if any(all(word in line for word in words) for line in self.progress.said):
                return result, count
        raise AssertionError(f"{words} was never said: {self.progress.said}")

    def in_background(self, address: str, count: int, seconds: float) -> subprocess.Popen:
        """The same in a process of its own."""
        code = (
            "import sys; from pathlib import Path; from test_cluster import Farm; "
            "print(Farm(Path(sys.argv[1])).run(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])).compiled)"
        )
        words = [sys.executable, "-c", code, str(self.folder), address, str(count), str(seconds)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)

    @property
    def begun(self) -> list[str]:
        return [line.split()[0] for line in self.record.read_text().splitlines()]

    def await_worker(self, count: int = 1) -> str:
        """The worker that began last, once so many are begun."""
        self.await_begun(count)
        return self.record.read_text().split()[-1]

    def by(self, worker: str) -> list[str]:
        return [line.split()[0] for line in self.record.read_text().splitlines() if line.split()[1] == worker]

    def await_begun(self, count: int) -> None:
        executor_contract.wait_for(lambda: len(self.begun) >= count, 120, "nothing is compiled")

    def check(self, result: farm.FarmResult, count: int, twice: int = 0) -> None:
        """All images are there and right; at most `twice` were begun twice, none three times."""
        assert result.failures == [] and len(result.outcomes) == count
        for variant in self.variants(count, 0.0):
            stored = result.outcomes[variant.name]
            assert self.store.get(result.keys[variant.name]) == stored
            assert self.store.load(stored) == cluster_tasks.image_of(variant.spec.text, "a kernel")
        often = Counter(self.begun)
        assert len(often) == count and max(often.values()) <= 2
        assert sum(often.values()) - count <= twice, often


@pytest.fixture
def one(tmp_path):
    return Farm(tmp_path)


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "cluster").mkdir()
    cluster = dask_cluster.Cluster(tmp_path / "cluster")
    cluster.start_scheduler()
    yield cluster
    cluster.stop()


def start_workers(cluster, *names: str, **variables: str) -> None:
    for name in names:
        cluster.start_worker(name, variables={"STAND_IN_NAME": name, **variables})


def test_images_come_back_and_are_not_compiled_again(one, cluster):
    start_workers(cluster, "ann", "bob")
    result = one.run(cluster.address, 6)
    one.check(result, 6)
    assert result.compiled == 6 and set(one.store.durations()) == set(result.outcomes)
    pace = [line for line in one.progress.said if "a minute" in line]
    assert sum(int(line.split()[1]) for line in pace) == 6 and {line.split(":")[0] for line in pace} <= {"ann", "bob"}
    again = one.run(cluster.address, 8)
    assert (again.compiled, again.reused) == (2, 6)
    assert not any("dashboard" in line for line in one.progress.said), "this scheduler has none"


def test_a_worker_that_is_killed_costs_what_it_was_doing(one, cluster):
    start_workers(cluster, *NAMES)
    client = one.in_background(cluster.address, 16, 1.0)
    cluster.workers[one.await_worker(5)].send_signal(signal.SIGKILL)
    assert client.communicate(timeout=200)[0].strip() == "16"
    one.check(one.run(cluster.address, 16), 16, twice=1)


def test_what_a_lost_worker_did_begins_again_once_however_late_the_build_hears_of_it(one, cluster):
    start_workers(cluster, "ann", "bob")
    client = one.in_background(cluster.address, 4, 1.0)
    lost = one.await_worker()
    client.send_signal(signal.SIGSTOP)
    cluster.workers[lost].send_signal(signal.SIGKILL)
    time.sleep(5)  # in which Dask has the other take over what it was doing
    client.send_signal(signal.SIGCONT)
    assert client.communicate(timeout=200)[0].strip() == "4"
    one.check(one.run(cluster.address, 4), 4, twice=1)


def test_a_worker_that_stands_still_for_half_a_minute_costs_nothing(one, cluster):
    start_workers(cluster, "ann", "bob")
    client = one.in_background(cluster.address, 8, 1.0)
    stopped = cluster.workers[one.await_worker()]
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(30)
    stopped.send_signal(signal.SIGCONT)
    assert client.communicate(timeout=200)[0].strip() == "8"
    one.check(one.run(cluster.address, 8), 8, twice=0)


def test_a_scheduler_that_is_started_again(one, cluster):
    start_workers(cluster, "ann", "bob")
    client = one.in_background(cluster.address, 12, 1.0)
    one.await_begun(5)
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    for process in cluster.workers.values():
        process.wait(60)  # as Dask's do; whoever keeps them starts them again
    cluster.start_scheduler()
    start_workers(cluster, "ann", "bob")
    client.communicate(timeout=200)
    assert client.returncode == 0
    one.check(one.run(cluster.address, 12), 12, twice=2)


def test_a_scheduler_that_stands_still_costs_nothing(one, cluster):
    start_workers(cluster, "ann", "bob")
    client = one.in_background(cluster.address, 8, 1.0)
    one.await_begun(3)
    cluster.scheduler.send_signal(signal.SIGSTOP)
    time.sleep(20)  # the build has looked at the workers meanwhile, and got no answer
    cluster.scheduler.send_signal(signal.SIGCONT)
    assert client.communicate(timeout=200)[0].strip() == "8"
    one.check(one.run(cluster.address, 8), 8, twice=0)


def test_a_build_can_be_interrupted_while_its_scheduler_stands_still(one, cluster):
    start_workers(cluster, "ann", "bob")
    client = one.in_background(cluster.address, 12, 1.0)
    one.await_begun(3)
    cluster.scheduler.send_signal(signal.SIGSTOP)
    time.sleep(20)
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=120)
    assert client.returncode


def test_a_client_that_is_killed_and_comes_back(one, cluster):
    start_workers(cluster, "ann", "bob")
    client = one.in_background(cluster.address, 12, 1.0)
    executor_contract.wait_for(lambda: len(list(one.store.keys())) >= 3, 120, "nothing comes back")
    client.kill()
    client.wait()
    there = len(list(one.store.keys()))
    result = one.run(cluster.address, 12)
    one.check(result, 12, twice=2)
    assert result.reused >= there >= 3, "what had come back is there"


def test_a_worker_of_another_toolchain_is_refused_by_name(one, cluster):
    start_workers(cluster, "ann")
    start_workers(cluster, "eve", **{cluster_tasks.IDENTITY: "2" * 64})
    executor_contract.wait_for(lambda: "Registered to" in cluster.said("eve"), 60)
    said = "is given nothing: its toolchain is 222222222222, and the build's is 111111111111"
    one.check(*one.run_until_told(cluster.address, 0.3, "eve", said))
    assert one.by("eve") == []


def test_no_worker_that_can_compile_ends_the_build(one, cluster):
    start_workers(cluster, "eve", **{cluster_tasks.IDENTITY: "2" * 64})
    said = r"none of the workers of .* can compile(.|\n)*\n  eve .*22222"
    with pytest.raises(EnvironmentProblem, match=said) as caught:
        one.run(cluster.address, 1)
    assert caught.value.has_lines


DAMAGE = """
from kiln_build.farm.cluster import agent
def damaged(data, honest=agent.run_task):
    reply = bytearray(honest(data))
    reply[bytes(reply).rindex(b"a kernel")] ^= 1
    return bytes(reply)
if agent.run_task.__name__ != "damaged":  # Dask loads this twice
    agent.run_task = damaged
"""


def test_a_worker_that_sends_damaged_images_is_given_nothing_more(one, cluster):
    (one.folder / "damage.py").write_text(DAMAGE)
    cluster.start_worker("eve", variables={"STAND_IN_NAME": "eve"}, more=("--preload", str(one.folder / "damage.py")))
    start_workers(cluster, "ann")
    for name in ("ann", "eve"):
        executor_contract.wait_for(lambda: "Registered to" in cluster.said(name), 60)  # noqa: B023
    one.check(*one.run_until_told(cluster.address, 1.0, "eve", "sent back what is damaged"), twice=1)
    assert len(one.by("eve")) == 1


FAILURE = """
from kiln_build.farm.cluster import agent
class Odd(Exception):
    pass
def failing(data):
    raise Odd("nobody else has this class" * 100)
agent.run_task = failing
"""


def start_failing(one, cluster, name: str) -> None:
    """A worker whose Dask fails, with what cannot be unpickled elsewhere."""
    (one.folder / "failure.py").write_text(FAILURE)
    cluster.start_worker(name, variables={"STAND_IN_NAME": name}, more=("--preload", str(one.folder / "failure.py")))
    executor_contract.wait_for(lambda: "Registered to" in cluster.said(name), 120)


def test_a_worker_whose_dask_fails_is_found_and_given_nothing_more(one, cluster):
    start_failing(one, cluster, "eve")
    start_workers(cluster, "ann")
    executor_contract.wait_for(lambda: "Registered to" in cluster.said("ann"), 120)
    one.check(*one.run_until_told(cluster.address, 1.0, "is given nothing more", "Dask fails to run jobs on eve"))
    assert max(map(len, one.progress.said)) < 600


def test_only_workers_whose_dask_fails_end_the_build(one, cluster):
    start_failing(one, cluster, "eve")
    with pytest.raises(EnvironmentProblem, match="^Dask fails to run jobs on eve"):
        one.run(cluster.address, 2)


def test_what_only_a_lost_worker_had_the_memory_for_begins_on_another(one, cluster):
    start_workers(cluster, "bob")
    client = one.in_background(cluster.address, 4, 1.0)
    one.await_begun(1)
    cluster.start_worker("ann", variables={"STAND_IN_NAME": "ann"}, more=("--memory-limit", "600MB"))
    executor_contract.wait_for(lambda: "Registered to" in cluster.said("ann"), 120)
    cluster.workers["bob"].send_signal(signal.SIGKILL)
    assert client.communicate(timeout=200)[0].strip() == "4"
    one.check(one.run(cluster.address, 4), 4, twice=1)


def test_a_worker_without_kiln_is_refused_by_name(one, cluster, monkeypatch):
    monkeypatch.setattr("kiln_build.farm.cluster.roll._GRACE", 10.0)
    start_workers(cluster, "ann")
    cluster.start_worker("eve", path="/nowhere")
    executor_contract.wait_for(lambda: "Registered to" in cluster.said("eve"), 60)
    one.check(*one.run_until_told(cluster.address, 4.0, "eve", "it announces no toolchain"))


def test_no_scheduler_is_one_sentence(one, monkeypatch):
    monkeypatch.setattr("kiln_build.farm.cluster.client._CONNECT_SECONDS", 1.0)
    with pytest.raises(EnvironmentProblem, match="no scheduler of Dask answers at tcp://127.0.0.1:9 .*dask scheduler"):
        one.run("tcp://127.0.0.1:9", 1)


def test_certificates(one, tmp_path):
    from kiln_build.farm.cluster import connect

    folder = tmp_path / "certificates"
    folder.mkdir()
    make_certificates(folder)
    files = {"ca": "ca.pem", "cert": "cert.pem", "key": "key.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name if name != 'ca' else 'ca-file'}",
                                                                 str(folder / file))]  # fmt: skip
    (tmp_path / "tls").mkdir()
    cluster = dask_cluster.Cluster(tmp_path / "tls", options, "tls")
    try:
        cluster.start_scheduler()
        start_workers(cluster, "ann")
        security = connect.cluster(cluster.address, str(folder)).keywords["security"]
        one.check(one.run(cluster.address, 3, security=security), 3)
    finally:
        cluster.stop()
    with pytest.raises(UsageError, match="KILN_SCHEDULER_TLS is for a tls:// address"):
        connect.cluster("tcp://127.0.0.1:8786", str(folder))
    (folder / "key.pem").unlink()
    with pytest.raises(EnvironmentProblem, match=r"has no key.pem; give a folder with ca.pem, cert.pem, key.pem"):
        connect.cluster(cluster.address, str(folder))
    (folder / "key.pem").write_text("no key")
    with pytest.raises(EnvironmentProblem, match=r"the certificates of KILN_SCHEDULER_TLS=\S+ cannot be used \(.*PEM"):
        connect.cluster(cluster.address, str(folder))
    for role in ("client", "worker"):
        with pytest.raises(EnvironmentProblem, match="no certificates are there for the scheduler tls://h:1; set"):
            connect.certificates("tls://h:1", None, role)


def make_certificates(folder: Path) -> None:
    """One certificate, which is its own authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kiln")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = made.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.pem").write_bytes(pem)
    (folder / "cert.pem").write_bytes(pem)
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
