"""Builds with a cold store before a cache: warm, poisoned, dead, failing, cutting and slow.

    python benchmarks/farm/caches.py --cores 0-63 --store FOLDER --out out

The images of --store are pushed to a server on loopback (tests/cache_server.py; with --nginx to a real one, set up as
examples/cache/nginx.conf). Then the release is built from nothing, side by side, each on as many processors:

- alone: without a cache, which gives the bytes and the time that the others are held against;
- warm: nothing may be compiled;
- poisoned: every tenth entry is damaged: these are compiled, and the next build finds them repaired;
- dies: half way no connection is answered any more;
- fails: every answer is 500;
- cuts: every body ends half way;
- slow: every answer takes 10 s.

Fails (exit code 1) if bytes differ, if more or fewer are compiled than must be, or if one of the last four takes more
than 1.1 times the time of `alone` and 30 s.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from releases import ROOT, Bench, free_port, images, lines, parser_of, say, store_of

sys.path.insert(0, str(ROOT / "tests"))

from cache_server import CacheServer, Faults, poison

FAULTS = {"fails": Faults(status=500), "cuts": Faults(cut=True), "slow": Faults(delay=10.0)}
MOST_TIMES, MOST_SECONDS = 1.1, 30.0


class Caches:
    """
    Attributes:
        content: what a warm server has, by path.
    """

    def __init__(self, bench: Bench, store: Path) -> None:
        self.bench, self.store = bench, store
        self.count = len(images(store))
        self.content: dict[str, bytes] = {}

    def push(self) -> dict:
        """Fills `content`."""
        with CacheServer() as server:
            began = time.monotonic()
            self.send(server.url)
            self.content = dict(server.content)
        entries = sum("/ac/" in path for path in self.content)
        say(f"pushed: {entries} entries, {sum(map(len, self.content.values())) / 1e6:.0f} MB")
        return {"entries": entries, "images": self.count, "seconds": round(time.monotonic() - began, 1)}

    def send(self, url: str, **more: str) -> None:
        done = self.bench.command("push", "store", "push", "--store", self.store, "--cache", url, **more)
        if done.returncode:
            sys.exit(f"push: exit code {done.returncode}: {done.stdout}{done.stderr}")

    def build(self, name: str, cores: Sequence[int], url: str = "") -> dict:
        build = self.bench.build(name, cores, len(cores), ["--cache", url] if url else [])
        made = build.wait()
        made["compiled"] = build.compiled
        made["said"] = [line for line in lines(build.log) if "cache" in line][:20]
        return made

    def served(self, name: str, cores: Sequence[int], faults: Faults) -> dict:
        with CacheServer(faults=faults, content=dict(self.content)) as server:
            return self.build(name, cores, server.url) | {"requests": server.seen["requests"]}

    def alone(self, cores: Sequence[int]) -> dict:
        return self.build("alone", cores)

    def warm(self, cores: Sequence[int]) -> dict:
        return self.served("warm", cores, Faults())

    def poisoned(self, cores: Sequence[int]) -> dict:
        with CacheServer(content=dict(self.content)) as server:
            damaged = poison(server, 10)
            made = self.build("poisoned", cores, server.url)
            again = self.build("poisoned-again", cores, server.url)
        return made | {"damaged": damaged, "again": again}

    def dies(self, cores: Sequence[int]) -> dict:
        return self.served("dies", cores, Faults(dies=True, after=self.count))  # two requests an image

    def nginx(self, cores: Sequence[int]) -> dict:
        with running_nginx(self.bench) as url:
            login = self.bench.scratch / "login"
            login.write_text("farm:secret\n")
            login.chmod(0o600)
            self.send(url, KILN_CACHE_LOGIN=str(login))
            return self.build("nginx", cores, url)


@contextlib.contextmanager
def running_nginx(bench: Bench) -> Iterator[str]:
    """A server as the example sets it up, without its second half, which asks for certificates; its address."""
    folder, port = bench.scratch / "nginx-server", free_port()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "files").mkdir(parents=True)
    (folder / "writers").write_text("farm:{PLAIN}secret\n")
    text = (ROOT / "examples" / "cache" / "nginx.conf").read_text()
    text = re.sub(r"\n    server \{\n        listen 8443.*?\n    \}\n", "\n", text, flags=re.DOTALL)
    for old, new in {
        "user www-data;": "",
        "/run/kiln-cache.pid": f"{folder}/pid",
        "/var/log/nginx/kiln-cache.log": f"{folder}/log",
        "/opt/kiln-cache": f"{folder}/files",
        "/etc/nginx/kiln-writers": f"{folder}/writers",
        "listen 8080": f"listen 127.0.0.1:{port}",
    }.items():
        text = text.replace(old, new)
    (folder / "nginx.conf").write_text("user root;\n" + text)
    words = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    server = subprocess.Popen(words)
    try:
        time.sleep(1)
        if server.poll() is not None:
            sys.exit("nginx does not start")
        yield f"http://127.0.0.1:{port}/kiln"
    finally:
        server.terminate()
        server.wait()


def verdicts(made: dict[str, dict], expected: str | None) -> dict[str, list[str]]:
    """What is wrong with each."""
    wrong: dict[str, list[str]] = {name: [] for name in made}
    limit = MOST_TIMES * made["alone"]["seconds"] + MOST_SECONDS if "seconds" in made.get("alone", {}) else None
    for name, one in made.items():
        if "problem" in one:
            wrong[name].append(one["problem"])
            continue
        if one.get("sha256") != expected:
            wrong[name].append("other bytes")
        if name in ("warm", "nginx") and one["compiled"]:
            wrong[name].append(f"{one['compiled']} compiled")
        if name == "poisoned":
            if one["compiled"] != one["damaged"]:
                wrong[name].append(f"{one['compiled']} compiled, {one['damaged']} damaged")
            if one["again"]["compiled"] or one["again"].get("sha256") != expected:
                wrong[name].append(f"not repaired: {one['again']['compiled']} compiled")
        if name in ("dies", *FAULTS) and limit is not None and one["seconds"] > limit:
            wrong[name].append(f"{one['seconds']} s, and {limit:.1f} s are allowed")
    return wrong


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--store", type=store_of, required=True, help="one that has all images of the release")
    parser.add_argument("--nginx", action="store_true", help="and nginx, which must be installed")
    parser.add_argument("--cases", default="alone,warm,poisoned,dies,fails,cuts,slow", help="default: %(default)s")
    parser.add_argument("--expect", help="the release's digest; default: the first case's")
    parser.add_argument("--one-by-one", action="store_true", help="each on all processors, one after another")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    caches = Caches(bench, arguments.store)
    bench.keep("push", caches.push())
    chosen = [*arguments.cases.split(","), *(["nginx"] if arguments.nginx else [])]
    ways: dict[str, Callable[[Sequence[int]], dict]] = {
        name: getattr(caches, name) for name in ("alone", "warm", "poisoned", "dies", "nginx")
    } | {name: (lambda cores, name=name: caches.served(name, cores, FAULTS[name])) for name in FAULTS}
    each = len(arguments.cores) // len(chosen)
    parts = {name: arguments.cores[each * n : each * (n + 1)] or arguments.cores for n, name in enumerate(chosen)}
    made: dict[str, dict] = {}

    def run(name: str) -> None:
        try:
            made[name] = ways[name](arguments.cores if arguments.one_by_one else parts[name])
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the others go on)
            say(f"{name}: {type(error).__name__}: {error}")
            made[name] = {"problem": f"{type(error).__name__}: {error}"}
        bench.keep(name, made[name])

    threads = [threading.Thread(target=run, args=(name,)) for name in chosen]
    for thread in threads:
        thread.start()
        if arguments.one_by_one:
            thread.join()
    for thread in threads:
        thread.join()
    digests = [made[name].get("sha256") for name in chosen]  # the first is what the others are held against
    wrong = verdicts(made, arguments.expect or digests[0])
    for name, problems in wrong.items():
        say(f"{name}: {made[name].get('seconds')} s, {made[name].get('compiled')} compiled; "
            + ("; ".join(problems) or "good"))  # fmt: skip
    bench.keep("wrong", wrong)
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
