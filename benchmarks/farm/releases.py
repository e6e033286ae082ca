"""Releases built for the benchmarks beside this file: each with packages that are installed once, on processors of its
own, into a folder of its own; and clusters whose workers are pinned as well."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = "MI300X;MI200;Navi31;sm_80;sm_90"
VERSION = "0.1.0b"
_BEGAN = time.monotonic()


def say(text: str) -> None:
    sys.stdout.write(f"{time.monotonic() - _BEGAN:7.1f} {text}\n")  # at once: threads say things side by side
    sys.stdout.flush()


def parser_of(text: str, targets: str = TARGETS) -> argparse.ArgumentParser:
    """A parser of the options that all have."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=targets, help="as build.sh takes them; default: %(default)s")
    parser.add_argument("--select", default="", help="as KILN_SELECT")
    parser.add_argument("--cores", type=cores_of, default=sorted(os.sched_getaffinity(0)), help="as 0-15,32")
    parser.add_argument("--packages", type=Path, help="a workspace that has them; default: one is made")
    parser.add_argument("--linked", type=Path, help="a build's workspace: what it compiled of C++ is taken from there")
    parser.add_argument("--out", type=Path, default=Path("out"), help="for results and logs")
    parser.add_argument("--scratch", type=Path, help="a folder for what is built; default: in --out")
    return parser


def cores_of(text: str) -> list[int]:
    """The processors that a text such as "0-3,8" names."""
    ends = [part.split("-") for part in text.split(",")]
    return [core for end in ends for core in range(int(end[0]), int(end[-1]) + 1)]


def store_of(text: str) -> Path:
    """The store with images that a text names, or the one in the workspace that it names."""
    for folder in (Path(text, "store"), Path(text)):
        if (folder / "format").is_file() and images(folder):
            return folder.resolve()
    raise argparse.ArgumentTypeError(f"{text} is not a store with images; name a folder that builds have filled")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def variables(**more: str) -> dict[str, str]:
    """The caller's environment without Kiln's and Dask's variables, and these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "DASK_", "PYTHONPATH"))}
    return kept | {"KILN_SOURCE": "tree", "KILN_ENGINE": "none"} | more


def start(words: Sequence[object], cores: Sequence[int], log: Path, environment: Mapping[str, str]) -> subprocess.Popen:
    """A command on these processors alone."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=dict(environment),
            preexec_fn=lambda: os.sched_setaffinity(0, set(cores)),
        )  # fmt: skip


@dataclass
class Build:
    """A build that runs or has run.

    Attributes:
        began, seconds: by the clock; 0 seconds while it runs.
    """

    name: str
    folder: Path
    process: subprocess.Popen
    log: Path
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def store(self) -> Path:
        return self.workspace / "store"

    @property
    def compiled(self) -> int:
        """How many images its farm has said to be compiled by now; a build that was killed has said so too."""
        told = lines(self.log.with_suffix(".jsonl"))
        return sum('"event":"done"' in line and '"outcome":"compiled"' in line for line in told)

    def wait(self, timeout: float | None = None) -> dict:
        """What it came to, and that is said."""
        code = self.process.wait(timeout)
        self.seconds = time.monotonic() - self.began
        made = self.told() | {"code": code, "seconds": round(self.seconds, 1)}
        say(f"{self.name}: exit code {code} after {self.seconds:.1f} s; {spell(made)}")
        if code:
            say(tail(self.log))
        return made

    def told(self) -> dict:
        """Digest and timeline of the release, if there is one, and what the farm said."""
        made: dict = {"farm": [line for line in lines(self.log) if "images compiled," in line]}
        for tarball in (self.folder / "output").glob("*.tar.gz"):
            made["sha256"] = hashlib.sha256(tarball.read_bytes()).hexdigest()
            timeline = json.loads(tarball.with_name(tarball.name[: -len(".tar.gz")] + ".timeline.json").read_text())
            made["steps"] = {name: round(ended - began, 2) for name, began, ended in timeline["steps"]}
            made["ends"] = {name: ended for name, _, ended in timeline["steps"]}
            jobs = timeline["jobs"]
            made["jobs"] = len(jobs)
            made["last_compile"] = max((job[2] for job in jobs), default=0.0)
        return made


def spell(made: Mapping) -> str:
    steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in made.get("steps", {}).items())
    return f"sha256 {made.get('sha256', '-')[:12]}; {steps}; " + " | ".join(made.get("farm", ()))


def lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def tail(path: Path, count: int = 15) -> str:
    return "\n".join(lines(path)[-count:])


class Bench:
    """Where all is: what is built goes to `scratch`, logs and results to `out`."""

    def __init__(self, arguments: argparse.Namespace, tree: Path = ROOT) -> None:
        self.targets, self.select, self.tree = arguments.targets, arguments.select, tree
        self.out = arguments.out.resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.scratch = (arguments.scratch or self.out / "scratch").resolve()
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.packages = (arguments.packages or self.scratch / "packages").resolve()
        self.python = self.packages / "venv" / "bin" / "python"
        self.linked = arguments.linked
        self.results: dict = {}
        if not self.python.exists():
            install(self.packages, self.out / "packages.log")

    def environment(self, **more: str) -> dict[str, str]:
        selected = {"KILN_SELECT": self.select} if self.select else {}
        return variables(PYTHONPATH=str(self.tree / "v3python"), KILN_REPLACE="1", **(selected | more))

    def build(
        self, name: str, cores: Sequence[int], jobs: int, options: Sequence[str] = (), folder: str = "", **more: str
    ) -> Build:
        """Begins a build in a folder of its own, new unless another build's is named."""
        place = self.scratch / (folder or name)
        if not folder:
            shutil.rmtree(place, ignore_errors=True)
        place.mkdir(exist_ok=True)
        if self.linked and not folder:
            left_out = shutil.ignore_patterns("venv", "store", "pycache", "tmp", "logs", "packs")
            shutil.copytree(self.linked, place / "workspace", symlinks=True, ignore=left_out)
        log = self.out / f"{name}.log"
        told = log.with_suffix(".jsonl")
        for path in (log, told):
            path.unlink(missing_ok=True)
        folders = [ROOT / "input", place / "workspace", place / "output"]
        words = [self.python, "-m", "kiln_build", "build", *folders, VERSION, self.targets, *options]
        environment = self.environment(KILN_JOBS=str(jobs), KILN_LOG_JSON=str(told), **more)
        say(f"{name}: begins, {jobs} jobs on {len(cores)} processors")
        return Build(name, place, start(words, cores, log, environment), log)

    def command(self, name: str, *words: object, **more: str) -> subprocess.CompletedProcess:
        """Runs another of Kiln's commands to its end."""
        done = subprocess.run(
            [str(word) for word in (self.python, "-m", "kiln_build", *words)], env=self.environment(**more),
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        (self.out / f"{name}.log").write_text(done.stdout + done.stderr)
        return done

    def keep(self, name: str, what: object) -> None:
        """Writes a result at once: what runs out of time has lost nothing."""
        self.results[name] = what
        path = self.out / f"{Path(sys.argv[0]).stem}.json"
        path.with_suffix(".part").write_text(json.dumps(self.results, indent=1) + "\n")
        path.with_suffix(".part").rename(path)


def install(workspace: Path, log: Path) -> None:
    """A workspace with the locked packages, those of a cluster too: `kiln worker`'s, which ends at once."""
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listening, log.open("wb") as file:
        words = ["./kiln", "worker", f"tcp://127.0.0.1:{listening.getsockname()[1]}", "--", "--version"]
        environment = variables(KILN_WORKSPACE=str(workspace), KILN_PYTHON=sys.executable)
        code = subprocess.run(words, cwd=ROOT, env=environment, stdout=file, stderr=file, check=False).returncode
    say(f"packages: exit code {code} after {time.monotonic() - began:.1f} s")
    if code:
        sys.exit(tail(log))


class Cluster:
    """A scheduler and `kiln worker`s on loopback, each worker with a store that outlives it."""

    def __init__(self, bench: Bench, name: str, cores: Sequence[int]) -> None:
        self.bench, self.name, self.cores = bench, name, cores
        self.folder = bench.scratch / f"{name}-cluster"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler: subprocess.Popen | None = None
        self.workers: dict[str, subprocess.Popen] = {}

    def start_scheduler(self) -> None:
        words = [self.bench.python, "-m", "dask", "scheduler", "--host", "tcp://127.0.0.1", "--port", self.port,
                 "--no-dashboard"]  # fmt: skip
        self.scheduler = start(words, self.cores, self._log("scheduler"), self.bench.environment())
        limit = time.monotonic() + 60
        while time.monotonic() < limit and self.scheduler.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.1)
        sys.exit(f"no scheduler: {tail(self._log('scheduler'))}")

    def start_worker(self, name: str, threads: int, cores: Sequence[int] | None = None, nanny: bool = True) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        words = [self.bench.python, "-m", "kiln_build", "worker", self.address, "--again", "--", "--nthreads", threads,
                 "--memory-limit", "0", "--name", name, "--local-directory", folder / "dask",
                 *([] if nanny else ["--no-nanny"])]  # fmt: skip
        environment = self.bench.environment(KILN_STORE=str(self.store(name)))
        self.workers[name] = start(words, cores or self.cores, self._log(name), environment)

    def store(self, name: str) -> Path:
        return self.folder / name / "store"

    def kill(self, name: str) -> None:
        """As if the machine were switched off: by -9, with all that it runs."""
        worker = self.workers.pop(name)
        _signal(signal.SIGKILL, [*reversed(_descendants(worker.pid)), worker.pid])
        worker.wait()

    def hold(self, name: str, seconds: float) -> None:
        """Stops a worker with all that it runs, and has it go on after some seconds."""
        pids = [self.workers[name].pid, *_descendants(self.workers[name].pid)]
        _signal(signal.SIGSTOP, pids)
        time.sleep(seconds)
        _signal(signal.SIGCONT, pids)

    def compiled(self) -> dict[str, int]:
        """How many images workers have in their stores, how many of them there are, and by worker."""
        by_worker = {folder.name: images(folder / "store") for folder in self.folder.iterdir() if folder.is_dir()}
        found = [name for names in by_worker.values() for name in names]
        return {"all": len(found), "different": len(set(found))} | {name: len(of) for name, of in by_worker.items()}

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            try:
                worker.wait(25)
            except subprocess.TimeoutExpired:
                _signal(signal.SIGKILL, [worker.pid, *_descendants(worker.pid)])
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler.wait()

    def _log(self, name: str) -> Path:
        return self.bench.out / f"{self.name}-{name}.log"


@contextlib.contextmanager
def running(cluster: Cluster, workers: Mapping[str, int], nanny: bool = True) -> Iterator[Cluster]:
    """A cluster with these workers, each with so many threads."""
    try:
        cluster.start_scheduler()
        for name, threads in workers.items():
            cluster.start_worker(name, threads, nanny=nanny)
        yield cluster
    finally:
        cluster.stop()


def images(store: Path) -> list[str]:
    """The keys of a store's images."""
    return _names(store, "index")


def irs(store: Path) -> list[str]:
    """The digests of what a store's images were compiled from."""
    return _names(store, "ir")


def _names(store: Path, kind: str) -> list[str]:
    return [path.name for path in store.glob(f"{kind}/*/*") if "." not in path.name]


def _signal(number: int, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found
