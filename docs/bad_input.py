"""Provokes every bad input that Kiln must handle and writes what each printed: docs/bad-input.md.

    python3 docs/bad_input.py --workspace DIR [--output FILE] [--quick]

DIR is a workspace of build.sh, made if it is not there; its packages are used, its store is not. The Python needs what
the tests need (tests/requirements.lock) and a C and C++ compiler. The calls run on the recording driver of
tests/runtime, so no GPU is needed. Exits with 1 if a row is not as expected; a row that could not be run says so.
--quick: only the rows that need no build; the document's others stay. A test compares those with the document.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for folder in ("tests/runtime", "tests/end_to_end", "tests", "v3python"):  # ffi and packs; how builds are started
    sys.path.insert(0, str(ROOT / folder))

import ffi  # noqa: E402
import flash_tables  # noqa: E402
import nativebuild  # noqa: E402
import packs  # noqa: E402
import test_bad_kernels  # noqa: E402
from ffi import BF16, FP16, FP32, NVIDIA, tensor  # noqa: E402
from test_calls import in_child  # noqa: E402
from test_launch import X, Y, arguments, work  # noqa: E402
from test_rebuild import counts  # noqa: E402

import builds as support  # noqa: E402
from kiln_build.front.workspace import own_workspace  # noqa: E402

WIDTH = 300  # characters of a cell
PATIENCE = 240.0  # seconds for one build
HEAD = """\
# What bad input prints

Written by `docs/bad_input.py`, which does all of this for real and fails where a row is not as expected. The exit codes
are in [reference.md](reference.md#exit-codes). Builds print progress as well: shown is the line that speaks of the
mistake, cut at 300 characters, with names such as `<output>` and `<digest>` in place of what differs from one time to
the next. The calls run on the recording driver of `tests/runtime`, which stands in for the vendors' drivers.

| what was done | exit code or status | what was printed |
| --- | --- | --- |
"""


@dataclass(frozen=True)
class Row:
    """A line of the table. `problem`: why it is not as expected, or ""."""

    done: str
    result: str
    printed: str
    problem: str = ""


class Table:
    """Collects rows, and the names that stand for paths."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._names: dict[str, str] = {}

    def name(self, path: Path, name: str) -> None:
        self._names[str(path)] = f"<{name}>"

    def check(self, done: str, wanted: str, result: str, says: str, text: str) -> None:
        """Adds a row; `says` is a pattern that a line of `text` must match."""
        lines = [line for line in text.splitlines() if line.strip()]
        found = next((line for line in lines if re.search(says, line)), None)
        problem = "" if result == wanted else f"{result} instead of {wanted}"
        if found is None:
            problem = f"{problem}; no line says {says!r}".removeprefix("; ")
        elif "Traceback" in text:
            problem = f"{problem}; a traceback is shown".removeprefix("; ")
        if problem:
            print(text, file=sys.stderr)
        self.add(Row(done, result, found if found is not None else (lines or [""])[0], problem))

    def add(self, row: Row) -> None:
        printed = row.printed
        for path in sorted(self._names, key=len, reverse=True):
            printed = printed.replace(path, self._names[path])
        printed = re.sub(r"/\S*/lib\w+\.so\.\d+", "<library>", printed.strip())
        printed = re.sub(r"\b[0-9a-f]{64}\b", "<digest>", printed)
        cut = printed if len(printed) <= WIDTH else printed[: WIDTH - 1] + "…"
        self.rows.append(Row(row.done, row.result, cut, row.problem))
        print(f"{'FAILED' if row.problem else 'ok':6} {row.done}: {row.result}  {row.problem}", flush=True)

    def lines(self) -> list[str]:
        def cell(text: str) -> str:
            return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")

        return [f"| {cell(row.done)} | {cell(row.result)} | {cell(row.printed)} |\n" for row in self.rows]


def what_of(line: str) -> str:
    """The first cell of a line: what was done."""
    return line.split(" | ")[0]


# ---- builds ----


class Builds:
    """Builds with the packages of a workspace, in folders that are removed at the end. `front`: the workspace that
    build.sh is given."""

    def __init__(self, workspace: Path, base: Path, table: Table, front: Path) -> None:
        self.base, self.table = base, table
        built = support.Built(workspace, base / "out", base, "")
        self.builder = support.Builder(built, base)
        self.workspace, self._front = workspace, front

    def folder(self, name: str) -> Path:
        path = self.base / name
        self.table.name(path, name)
        return path

    def front(self, done: str, code: int, says: str, prefix: str = "", **words: str) -> None:
        """A row by build.sh itself. `prefix`: shell text that runs first."""
        given = {
            "input": str(ROOT / "input"), "workspace": str(self._front), "output": str(self.folder("output")),
            "version": support.VERSION, "targets": "sm_90",
        } | words  # fmt: skip
        command = ["bash", str(ROOT / "build.sh"), *given.values()]
        if prefix:
            command = ["unshare", "-m", "bash", "-c", f'{prefix} && exec "$@"', "bash", *command]
        finished = self.run(command, support.environment(**support.SELECTION))
        self.table.check(done, str(code), str(finished[0]), says, finished[1])

    def run(self, command: list[str], environment: dict[str, str]) -> tuple[int, str]:
        """The exit code, and all that was printed."""
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        return finished.returncode, finished.stdout + finished.stderr

    def family(self, done: str, code: int, says: str, body: str = "x = 2 * x", old: str = "", new: str = "",
               targets: str = "sm_90", **variables: str) -> None:  # fmt: skip
        """A row by a small family with `body` in its kernel and its recipe changed."""
        folder = self.folder("family")
        folder.mkdir(exist_ok=True)
        inner = textwrap.indent(textwrap.dedent(body), "    ").strip()
        (folder / "scale.py").write_text(test_bad_kernels.KERNEL.replace("BODY", inner))
        if old not in test_bad_kernels.RECIPE:
            raise ValueError(f"the recipe has no {old!r}")
        (folder / "recipe.yaml").write_text(test_bad_kernels.RECIPE.replace(old, new, 1))
        variables = {"KILN_RECIPES": str(folder / "recipe.yaml")} | variables
        finished = self.builder.run(
            self.folder("workspace"), self.folder("output"), targets=targets, check=False, **variables
        )
        text = finished.stdout + finished.stderr
        self.table.check(done, str(code), str(finished.returncode), says, text)

    @contextlib.contextmanager
    def started(self, name: str, **variables: str) -> Iterator[tuple[subprocess.Popen, Path]]:
        """A build that runs, and the file with what it prints; it is killed at the end if it still runs."""
        log = self.base / f"{name}.log"
        compiled = self.base / f"{name} workspace" / "zig"  # zig's cache: what is tested is the farm, not the linker
        if not compiled.exists() and (self.workspace / "zig").is_dir():
            with own_workspace(compiled.parent, lambda _: None, clean=False, installs=False):
                shutil.copytree(self.workspace / "zig", compiled, symlinks=True)
        words = self.builder.words(self.folder(f"{name} workspace"), self.folder(f"{name} output"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, env=self.builder.environment(**variables), stdout=output, stderr=subprocess.STDOUT
            )
        try:
            yield process, log
        finally:
            support.kill(process)

    def wait_for_images(self, process: subprocess.Popen, store: Path, number: int) -> None:
        end = time.monotonic() + PATIENCE
        while len(list(store.glob("index/*/*")) if store.exists() else []) < number:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the build made no {number} images (exit code {process.returncode})")
            time.sleep(0.05)


def workers_of(process: subprocess.Popen) -> list[int]:
    """The worker processes that a build has started."""
    found = []
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            with contextlib.suppress(OSError):
                if b"kiln_build.farm.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
    return found


def words(builds: Builds) -> None:
    """What build.sh is given."""
    blocked = builds.base / "file"
    blocked.write_text("a regular file\n")
    builds.table.name(blocked, "file")
    builds.front('targets "MI3000X"', 2, "MI3000X", targets="MI3000X")
    builds.front('version "0.1/0"', 2, "0.1/0", version="0.1/0")
    builds.front("an output below a regular file", 7, "<file>|/file/out", output=str(blocked / "out"))
    builds.front("an output below /proc", 7, "/proc/out", output="/proc/out")
    builds.front("an input that is not there", 7, "missing", input=str(builds.folder("missing")))
    small, mount = small_disk(builds, "64m")
    what = "a workspace on a file system of 64 MiB"
    if mount:
        builds.front(what, 7, "GiB free", prefix=mount, workspace=str(small / "w"))
    else:
        builds.table.add(Row(what, "not run: needs root", ""))


def full_store(builds: Builds) -> None:
    small, mount = small_disk(builds, "64k")
    what = "a store that is full while images are written (64 KiB)"
    if mount:
        environment = builds.builder.environment(KILN_STORE=str(small / "store"))
        command = builds.builder.words(builds.folder("full workspace"), builds.folder("output"), targets="sm_90")
        script = f'{mount} && exec "$@"'
        code, text = builds.run(["unshare", "-m", "bash", "-c", script, "bash", *command], environment)
        builds.table.check(what, "7", str(code), "space|full", text)
    else:
        builds.table.add(Row(what, "not run: needs root", ""))


def small_disk(builds: Builds, size: str) -> tuple[Path, str]:
    """A folder, and the command that mounts so much memory there, or "" where none can be mounted."""
    small = builds.folder("small")
    small.mkdir(exist_ok=True)
    mount = f"mount -t tmpfs -o size={size} tmpfs {shlex.quote(str(small))}"
    possible = subprocess.run(["unshare", "-m", "bash", "-c", mount], capture_output=True).returncode == 0
    return small, mount if possible else ""


def recipes(builds: Builds) -> None:
    family, recipe = builds.family, r"recipe\.yaml:\d+"
    family("a recipe with the unknown field sorce", 3, f"{recipe}.*sorce", old="source: scale", new="sorce: scale")
    family("a recipe with rank: one", 3, f"{recipe}.*rank", old="rank: 1}", new="rank: one}")
    idle = 'rank: 1}\n    choices:\n      idle: {of: "x.size[0]", values: [1, 2]}'
    family("a recipe with a choice that no kernel uses", 3, f"{recipe}.*idle", old="rank: 1}", new=idle)
    family("a kernel with a syntax error", 3, r"scale\.py:\d+", body="x = = x")


def kernels(builds: Builds) -> None:
    family = builds.family
    neg = 'x = tl.inline_asm_elementwise("neg.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)'
    both = "sm_90;gfx942"
    family("a kernel with PTX in it, for sm_90 and gfx942", 4, "scaling.scale/scale.*@gfx942", body=neg, targets=both)
    family("a kernel that uses an undefined name", 4, r"scale\.py:9: nn is not defined", "x = x + nn", targets=both)
    endless = "for _ in tl.static_range(0, 100000000):\n    x += 1.0"
    family("a kernel that hangs the compiler, KILN_TIMEOUT=6", 4, r"scaling\.scale/scale.* 6 s", endless,
           KILN_TIMEOUT="6")  # fmt: skip


def kills(builds: Builds) -> None:
    with builds.started("killed worker") as (process, log):
        store = builds.base / "killed worker workspace" / "store"
        builds.wait_for_images(process, store, 2)
        end = time.monotonic() + 30
        while "trying again" not in log.read_text() and process.poll() is None and time.monotonic() < end:
            for worker in workers_of(process)[:1]:  # an idle one costs nothing and is told of by nobody: then the next
                os.kill(worker, 9)
            time.sleep(1)
        code = process.wait(PATIENCE)
    done = "a worker killed with -9 during a build"
    builds.table.check(done, "0", str(code), "SIGKILL; trying again", log.read_text())

    with builds.started("killed build") as (process, _):
        builds.wait_for_images(process, builds.base / "killed build workspace" / "store", 6)
    left = (builds.base / "killed build output" / support.TARBALL).exists()
    with builds.started("killed build") as (process, log):
        code = process.wait(PATIENCE)
    text = log.read_text()
    compiled, reused = counts(text) if code == 0 else (0, 0)
    result = str(code) if reused >= 6 and compiled and not left else f"{code}, {compiled} compiled, {reused} reused"
    builds.table.check("a build killed with -9 half-way, then run again", "0", result, "from the store", text)


def shared_store(builds: Builds) -> None:
    store = builds.folder("store")
    options = {"KILN_STORE": str(store), "KILN_JOBS": "1"}
    with builds.started("first", **options) as (first, log), builds.started("second", **options) as (second, other):
        codes = [process.wait(PATIENCE) for process in (first, second)]
    sums = {builds.builder.sha256(builds.base / f"{n} output") for n in ("first", "second")} if not any(codes) else ()
    result = "0 and 0, equal tarballs" if len(sums) == 1 else f"{codes[0]} and {codes[1]}, {len(sums)} tarballs"
    what = "two builds at once on one store"
    builds.table.check(f"{what}: the first", "0 and 0, equal tarballs", result, "from the store", log.read_text())
    builds.table.check(f"{what}: the second", "0 and 0, equal tarballs", result, "from the store", other.read_text())

    for victim in (path for path in store.glob("objects/**/*") if path.is_file()):
        victim.chmod(0o644)
        victim.write_bytes(victim.read_bytes()[:-7])
    with builds.started("third", KILN_STORE=str(store)) as (process, log):
        code = process.wait(PATIENCE)
    text = log.read_text()
    good = code == 0 and counts(text)[1] == 0 and builds.builder.sha256(builds.base / "third output") in sums
    done = "a store with all images truncated by 7 bytes"
    result = "0, equal tarball" if good else f"{code}, not as before"
    builds.table.check(done, "0, equal tarball", result, "from the store", text)

    prefix = support.unpack(builds.base / "first output" / support.TARBALL, builds.base / "unpacked")
    pack = prefix / "lib" / "kiln.images" / packs.FILES["sm_90"]
    pack.write_bytes(pack.read_bytes()[:-7])
    builds.table.name(prefix, "release")
    command = [str(builds.builder.release.python), "-m", "kiln_build", "inspect", str(pack)]
    code, text = builds.run(command, builds.builder.environment())
    builds.table.check("kiln inspect of a pack that lacks its last 7 bytes", "6", str(code), r"\.pack", text)


# ---- calls ----


class Calls:
    """Calls of the toy family and of the flash entries on the recording driver."""

    def __init__(self, base: Path, table: Table, built: Path | None = None) -> None:
        self.table = table
        self.base = base
        self.built = built or nativebuild.build_all(base / "built")
        self.library = ffi.Library(self.built / "lib")
        self.toy = ctypes.CDLL(str(self.built / "lib" / "libkiln_toy.so"))
        self.entries = ctypes.CDLL(str(self.built / "lib" / "libkiln_flash.so"))
        self.fake = ffi.Fake(self.built / "lib" / "libfake.so")
        self.status_name = self.library.c.kiln_status_name

    def check(self, done: str, wanted: int, says: str, call: Callable[[], object]) -> None:
        """A row by `call`, which raises ffi.Failure or launches."""
        before = len(self.fake.launches())
        try:
            call()
            status, launched = ffi.OK, self.fake.launches()[before:]
            text = "; ".join(f"launched {one.symbol.decode()} on device {one.device}" for one in launched)
        except ffi.Failure as failure:
            status, text = failure.status, failure.sentence
        names = [self.status_name(code).decode() for code in (wanted, status)]
        self.table.check(done, names[0], names[1], says, text)

    @contextlib.contextmanager
    def opened(self, family: ctypes.CDLL, **options: object) -> Iterator[ffi.Kiln]:
        self.fake.reset()
        self.fake.set_current(self.fake.context(0))
        with ffi.Kiln(self.library, self.fake, **options) as kiln:
            kiln.register(family)
            yield kiln

    @contextlib.contextmanager
    def flash(self) -> Iterator[Callable]:
        """A function that calls kiln_attn_fwd with some of its parameters changed, as a structure of any size."""
        tables = flash_tables.make(self.base / "flash")
        data = tables.pack(lambda functional: "fp16" not in functional and "fp32" not in functional)
        folder = self.base / "flash packs"
        folder.mkdir()
        (folder / packs.FILES["sm_90"]).write_bytes(data)
        self.fake.reset()
        self.fake.set_current(self.fake.context(0))
        with ffi.Kiln(self.library, self.fake, pack_path=str(folder), trusted_packs=packs.digest_of(data)) as kiln:

            def call(tail: int | None = None, stream: int | None = None, device: int = -1, **fields: object) -> None:
                class Newer(ctypes.Structure):
                    _fields_ = [("params", ffi.AttnFwd), ("tail", ctypes.c_uint64)]

                views = {n: view(0x10000 * i) for i, n in enumerate(("q", "k", "v", "out"), 1)} | fields
                given = {n: ctypes.pointer(v) if isinstance(v, ffi.Tensor) else v for n, v in views.items()}
                size = ctypes.sizeof(ffi.AttnFwd if tail is None else Newer)
                newer = Newer(ffi.AttnFwd(**({"size": size} | given)), tail or 0)
                queue = ffi.Queue(ctypes.sizeof(ffi.Queue), NVIDIA, device, stream)
                self.library.check(
                    self.entries.kiln_attn_fwd(kiln.handle, ctypes.byref(queue), ctypes.byref(newer.params))
                )

            yield call


def view(data: int, dtype: int = BF16, sizes: tuple[int, ...] = (2, 4, 100, 64), strides: tuple | None = None):
    """A tensor for attention."""
    return tensor(data, dtype, sizes, strides)


def bad_packs(calls: Calls) -> None:
    away = calls.base / "installed"
    calls.table.name(away, "installed")
    (away / "kiln.images").mkdir(parents=True)
    for name in ("libkiln.so.0", "libkiln_toy.so"):
        shutil.copy(calls.built / "lib" / name, away / name)
    family = ctypes.CDLL(str(away / "libkiln_toy.so"))
    good = packs.toy_pack("sm_90")
    group = 64 + len(packs.index_of(good)) + 20
    for done, data, status, says in (
        ("a pack with a flipped bit in a group", good[:group] + bytes([good[group] ^ 1]) + good[group + 1 :],
         ffi.PACK_CORRUPT, "is corrupt: group 0 has the digest"),
        ("a truncated pack", good[:1000], ffi.PACK_CORRUPT, "truncated"),
        ("a pack of release 9.9.9 beside a library of 1.2.3", packs.toy_pack("sm_90", "9.9.9", ("toy",)),
         ffi.PACK_MISMATCH, "is of another release than the library"),
    ):  # fmt: skip
        (away / "kiln.images" / packs.FILES["sm_90"]).write_bytes(data)
        with calls.opened(family) as kiln:
            calls.check(done, status, says, lambda kiln=kiln: kiln.launch(work(kiln, arguments())))


def toy_calls(calls: Calls) -> None:
    fake = calls.fake
    with calls.opened(calls.toy) as kiln:

        def toy(done: str, status: int, says: str, args: list, **options: object) -> None:
            calls.check(f"toy.mix: {done}", status, says, lambda: kiln.launch(work(kiln, args, **options)))

        rest = arguments()[1:]
        huge = 1 << 62
        toy("x of fp32", ffi.UNSUPPORTED, "dtype=fp32.*the nearest that exists", arguments(dtype=FP32))
        toy("y of bf16 beside x of fp16", ffi.ARGUMENT, "y is bf16",
            [rest[0], tensor(Y, BF16, (100, 64)), *rest[1:]])  # fmt: skip
        toy("x of dtype 99", ffi.ARGUMENT, "no kiln_dtype", arguments(dtype=99))
        toy("x of size (-1, 64)", ffi.ARGUMENT, "must not be negative", [tensor(X, FP16, (-1, 64)), *rest])
        toy("x with a null pointer", ffi.ARGUMENT, "NULL", arguments(x=0))
        toy("no x", ffi.ARGUMENT, "x is absent", [None, *rest])
        toy("x at an address that is no multiple of 16", ffi.OK, "generic", arguments(x=X + 8))
        toy("x and y at odd addresses", ffi.OK, "generic", arguments(x=X + 1, y=Y + 1))
        toy("x with a stride of 2**62", ffi.RANGE, "64-bit", [tensor(X, FP16, (100, 64), (huge, 1)), *rest])
        toy("x with a stride of 2**40, which fits", ffi.OK, "launched",
            [tensor(X, FP16, (100, 64), (1 << 40, 1)), *rest])  # fmt: skip

        def after_fork() -> None:
            def child() -> str:
                return f"{calls.library.c.kiln_launch(ctypes.byref(made))} {calls.library.error()}"

            made = work(kiln, arguments())
            status, _, sentence = in_child(child).partition(" ")
            if int(status):
                raise ffi.Failure(int(status), sentence)

        calls.check("toy.mix: in a forked child", ffi.FORKED, "forked", after_fork)
        toy("from a second context of the device", ffi.OK, "device 0", arguments(), stream=fake.stream(number=1))
        toy("a stream of device 1, the queue names device 0", ffi.QUEUE, "belongs to device 1", arguments(), device=0,
            stream=fake.stream(device=1))  # fmt: skip
        toy("a stream of device 1, the queue names none", ffi.OK, "device 1", arguments(), stream=fake.stream(device=1))

        class Newer(ctypes.Structure):
            _fields_ = [("call", ffi.Call), ("tail", ctypes.c_uint64)]

        def sized(tail: int | None, size: int) -> None:
            made = work(kiln, arguments(rows=100))
            made.size = size
            newer = Newer(made, tail or 0)
            calls.library.check(calls.library.c.kiln_launch(ctypes.byref(newer)))

        older = ffi.Call.force_keys.offset
        calls.check("toy.mix: kiln_call of an older caller, which ends before the workspace", ffi.WORKSPACE,
                    "workspace is NULL", lambda: sized(None, older))  # fmt: skip
        size = ctypes.sizeof(Newer)
        calls.check("toy.mix: kiln_call of a newer caller, its new field 0", ffi.OK, "launched", lambda: sized(0, size))
        calls.check("toy.mix: kiln_call of a newer caller, its new field 1", ffi.NEWER_CALLER, "does not know",
                    lambda: sized(1, size))  # fmt: skip


def flash_calls(calls: Calls) -> None:
    with calls.flash() as call:

        def flash(done: str, status: int, says: str, **fields: object) -> None:
            calls.check(f"kiln_attn_fwd: {done}", status, says, lambda: call(**fields))

        flash("k of fp16 beside q of bf16", ffi.ARGUMENT, "k is fp16", k=view(0x20000, FP16))
        flash("all of fp64", ffi.UNSUPPORTED, "the nearest that exists",
              **{n: view(0x10000, ffi.FP64) for n in ("q", "k", "v", "out")})  # fmt: skip
        flash("q of size (-2, 4, 100, 64)", ffi.ARGUMENT, "negative", q=view(0x10000, sizes=(-2, 4, 100, 64)))
        flash("q NULL", ffi.ARGUMENT, "q is absent", q=None)
        flash("q with a null pointer", ffi.ARGUMENT, "NULL", q=view(0))
        flash("q with a stride of 2**62", ffi.RANGE, "64-bit", q=view(0x10000, strides=(1 << 62, 1, 1, 1)))
        flash("q at an odd address", ffi.OK, "launched", q=view(0x10001))
        flash("dropout of 1", ffi.ARGUMENT, "at least 0 and at most 0.9999", dropout=1.0)
        flash("softcap NaN", ffi.ARGUMENT, "at most 1e30", softcap=float("nan"))
        flash("a stream of device 1, the queue names device 0", ffi.QUEUE, "belongs to device 1", device=0,
              stream=calls.fake.stream(device=1))  # fmt: skip
        flash("from a second context of the device", ffi.OK, "device 0", stream=calls.fake.stream(number=1))
        flash("kiln_attn_fwd_params of an older caller", ffi.OK, "launched", size=ffi.AttnFwd.max_seqlen_q.offset,
              sm_scale=9.0)  # fmt: skip
        flash("kiln_attn_fwd_params of a newer caller, its new field 0", ffi.OK, "launched", tail=0)
        flash("kiln_attn_fwd_params of a newer caller, its new field 1", ffi.NEWER_CALLER, "does not know", tail=1)


def quick(workspace: Path, base: Path, built: Path | None = None) -> Table:
    """The rows that need no build: by the packages of `workspace`, in the folder `base`.

    Args:
        built: the runtime with the families of its tests, if it is there already.
    """
    table = Table()
    table.name(ROOT, "tree")
    table.name(base, "temporary")
    builds = Builds(workspace, base, table, base / "front")
    for part in (words, recipes):
        part(builds)
    calls = Calls(base, table, built)
    for part in (bad_packs, toy_calls, flash_calls):
        part(calls)
    return table


def all_rows(workspace: Path, base: Path) -> Table:
    table = Table()
    table.name(workspace, "workspace of packages")
    table.name(ROOT, "tree")
    table.name(base, "temporary")
    builds = Builds(workspace, base, table, workspace)
    for part in (words, full_store, recipes, kernels, kills, shared_store):
        part(builds)
    calls = Calls(base, table)
    for part in (bad_packs, toy_calls, flash_calls):
        part(calls)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, required=True, help="a workspace of build.sh; made if need be")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "bad-input.md", help="the table")
    parser.add_argument("--quick", action="store_true", help="only the rows that need no build")
    options = parser.parse_args()
    workspace = options.workspace.resolve()
    with tempfile.TemporaryDirectory(prefix="kiln-bad-input-") as temporary:
        base = Path(temporary)
        if not (workspace / "venv/bin/python").exists():
            command = ["bash", str(ROOT / "build.sh"), str(ROOT / "input"), str(workspace), str(base / "first"),
                       support.VERSION, "sm_90"]  # fmt: skip
            subprocess.run(command, env=support.environment(**support.SELECTION), check=True)
        table = (quick if options.quick else all_rows)(workspace, base)
    lines = table.lines()
    if options.quick:
        new = {what_of(line): line for line in lines}
        old = options.output.read_text().partition(HEAD[HEAD.index("| ---") :])[2].splitlines(keepends=True)
        lines = [new.pop(what_of(line), line) for line in old]
        for what in new:
            table.rows.append(Row(what, "", "", "not in the document, which has to be made without --quick"))
    options.output.write_text(HEAD + "".join(lines))
    problems = [row for row in table.rows if row.problem]
    for row in problems:
        print(f"{row.done}: {row.problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
