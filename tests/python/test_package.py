"""The package as a whole: what it knows of itself, its documentation, threads, forks."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import fakes
import pytest
from fakes import Array

import kiln
from kiln import _core, information
from kiln.__main__ import main as command
from kiln_build.artifacts import pack
from kiln_build.trust import minisign
from kiln_build.trust.statement import Statement

SHAPE = (1, 2, 8, 64)
PACKAGE = str(Path(kiln.__file__).parent)

NO_PACK = "kiln: no pack can be used, so nothing can run; the `targets` and `problem` that it prints tell more"


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


# ---- what there is ---------------------------------------------------------------------------------------------------


def test_what_was_left_out_counts_as_listed_and_not_as_compiled(runtime, monkeypatch):
    """As in releases of a selection, whose packs list all variants of the profile."""
    core = information.core_of(runtime)
    rows = core.variants(None, None)
    rows[0]["unavailable"] = "this build was made for dtype=bf16 alone"

    class Core:
        def __getattr__(self, name: str) -> object:
            return (lambda *_: rows) if name == "variants" else getattr(core, name)

    monkeypatch.setattr(information, "core_of", lambda _: Core())
    (target,) = kiln.info(runtime).targets
    assert (target.variants, target.compiled) == (len(rows), len(rows) - 1)
    assert [variant.unavailable for variant in kiln.variants(runtime=runtime)][:2] == [rows[0]["unavailable"], None]


def test_info(runtime, fake):
    info = kiln.info(runtime)
    assert info.version == kiln.__version__ == _core.version() and info.families == ("flash",)
    (target,) = info.targets
    every = kiln.variants(runtime=runtime)
    assert target.name == "sm_90" and target.variants == len(every)
    assert target.images == len({variant.key for variant in every if variant.unavailable is None})
    assert target.compiled == len([variant for variant in every if variant.unavailable is None])
    assert info.pack_problem is None
    assert (info.profile, info.selection) == ("full", "family=flash") and info.dtypes == ("bf16", "fp16", "fp32")
    assert info.location == str(Path(kiln.__file__).parent)
    assert [(d.vendor, d.ordinal) for d in info.devices] == [(v, i) for v in ("NVIDIA", "AMD") for i in range(5)]
    first, second = info.devices[:2]
    assert (first.target, first.refusal, first.multiprocessors) == ("sm_90", None, 132)
    assert "no pack of flash serves the NVIDIA device 1" in second.refusal
    assert list(info.devices) == kiln.devices(runtime) and info.problem is None
    assert json.loads(json.dumps(info.as_dict()))["devices"][0]["id"] == first.id
    text = str(info)
    for word in (
        info.version,
        "flash",
        "sm_90 (",
        "profile:  full, only family=flash",
        "attention in bf16",
        "device:   NVIDIA 0, Fake NVIDIA 0, sm_90",
        "Kiln runs on it",
    ):
        assert word in text


def test_info_says_what_attention_there_is():
    rows = [
        {"operation": operation, "kernel": kernel, "functional": functional, "unavailable": reason}
        for operation, kernel, functional, reason in (
            ("flash.attn_fwd", "attn_fwd.general", "dtype=bf16 head_dim=128 extras=none", None),
            ("flash.attn_decode", "attn_decode.general", "dtype=fp16 cache_dtype=fp8e4m3 head_dim=64", None),
            ("flash.attn_decode", "attn_decode.latent", "dtype=fp16 cache_dtype=fp16 head_dim=576", None),
            ("flash.attn_fwd", "attn_fwd.general", "dtype=fp32 head_dim=512", "too large"),
            ("norm.rms_norm", "rms_norm", "dtype=fp64 head_dim=7", None),
        )
    ]
    listed = information._listed(types.SimpleNamespace(variants=lambda *_: rows), "sm_90")
    assert information._served(listed) == (("bf16", "fp16"), (64, 128))


def test_info_of_damaged_packs(fake, tmp_path):
    """They are named; the sentence does not ask to install what is there."""
    (tmp_path / "nvidia-sm_90.pack").write_bytes(b"x" * 4096)
    with kiln.Runtime(tmp_path, resolve=fake.resolve) as damaged:  # which trusts no other
        info = kiln.info(damaged)
        with pytest.raises(kiln.PackError, match=f"{tmp_path}/nvidia-sm_90.pack"):
            kiln.variants(runtime=damaged)
    assert f"{tmp_path}/nvidia-sm_90.pack" in info.pack_problem and info.pack_problem in info.problem
    assert "targets:  none\n" in str(info) and f"problem:  {info.problem}" in str(info)


def test_a_reader_that_goes_away():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "kiln", "info"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_info_of_drivers_that_fail(runtime, fake):
    fake.fail("cuInit", 999, sticky=True)
    info = kiln.info(runtime)
    assert [d.vendor for d in info.devices] == ["AMD"] * 5 and "cuInit: the CUDA driver returned" in info.problem
    assert f"problem:  {info.problem}" in str(info)
    with pytest.raises(kiln.DriverError, match="cuInit"):
        kiln.devices(runtime)


def test_info_without_a_pack(fake, tmp_path):
    with kiln.Runtime(pack_path=tmp_path, resolve=fake.resolve) as runtime:
        info = kiln.info(runtime)
        assert info.targets == () and "is not trusted" in info.problem, "the pack beside the library is not its own"
        with pytest.raises(kiln.PackMismatchError):
            kiln.variants(runtime=runtime)


def test_without_a_driver():
    assert kiln.devices() == [] or Path("/dev/nvidiactl").exists()
    q = Array(SHAPE)
    if not Path("/dev/nvidiactl").exists():
        with pytest.raises(kiln.NoDeviceError, match="there is no NVIDIA driver"):
            kiln.attn_fwd(q, q, q, out=q, stream=0)
        vendors = {driver.vendor: driver for driver in kiln.info().drivers}
        assert vendors["NVIDIA"].version is None and "libcuda.so.1" in vendors["NVIDIA"].problem


def test_command(runtime, monkeypatch, capsys):
    info = kiln.info(runtime)
    monkeypatch.setattr(kiln, "info", lambda: info)
    assert command(["info"]) == 0
    done = capsys.readouterr()
    assert done.out.startswith(f"Kiln {kiln.__version__} in ") and not done.err
    assert command(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == kiln.__version__
    for words in (["--help"], ["info", "--help"]):
        done = python("-m", "kiln", *words)
        assert done.returncode == 0 and done.stdout.startswith("usage: python -m kiln info [--json]")
    for verb in ("bench", "tune", "verify-device"):
        assert command([verb, "--help"]) == 0
        assert f"\n  kiln {verb} " in capsys.readouterr().out and verb in python("-m", "kiln", "help").stdout
    for words in ((), ("inof",), ("info", "--jsn"), ("info", "info")):
        done = python("-m", "kiln", *words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "usage: python -m kiln info" in done.stderr


def test_the_command_fails_where_no_pack_can_be_used():
    """As here: the pack beside the library is not its own."""
    done = python("-m", "kiln", "info", "--json")
    assert done.returncode == 10 and json.loads(done.stdout)["targets"] == []
    assert done.stderr == f"{NO_PACK}\n"


@pytest.mark.parametrize("words", ["info", "info --json", "--help"])
@pytest.mark.parametrize(
    ("to", "codes", "said"),
    [
        ("| true; exit ${PIPESTATUS[0]}", (0, 10, 141), ""),
        (">/dev/full", (7,), "kiln: the output cannot be written (No space left on device); make room on its disk\n"),
        (">/dev/full 2>&1", (7,), ""),
        (">/dev/full 2>&-", (7,), ""),
        ("1</dev/null", (7,), "kiln: the output cannot be written (Bad file descriptor)\n"),
        (">&-", (0, 10), ""),
    ],
)
def test_output_that_nobody_takes(words, to, codes, said):
    command = f"{shlex.quote(sys.executable)} -m kiln {words} {to}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode in codes and done.stderr == (f"{NO_PACK}\n" if done.returncode == 10 else said)


@pytest.mark.parametrize("to", ["2>/dev/full", "2>&1 | true; exit ${PIPESTATUS[0]}", "2>&-"])
def test_a_sentence_that_nobody_reads(to):
    command = f"{shlex.quote(sys.executable)} -m kiln inof {to}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_a_driver_under_its_own_name(tmp_path):
    """The process's drivers, as they are found where no resolver is given."""
    for name in ("libcuda.so.1", "libamdhip64.so.6"):
        (tmp_path / name).symlink_to(fakes.LIB / "libfake.so")
    done = python("-c", "import kiln; print(kiln.info())", LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "NVIDIA:   CUDA 12.8" in done.stdout and "AMD:      ROCm 6.2" in done.stdout
    assert "device:   AMD 4, Fake AMD 4, gfx942" in done.stdout


# ---- importing -------------------------------------------------------------------------------------------------------


def test_import_is_light_and_prints_nothing():
    code = "import sys; before = set(sys.modules); import kiln; print(*sorted(set(sys.modules) - before))"
    done = python("-X", "importtime", "-c", code)
    modules = done.stdout.split()
    assert not {"torch", "triton", "numpy", "yaml", "msgspec", "kiln.torch", "kiln.jit"} & set(modules)
    assert all(line.startswith("import time:") for line in done.stderr.splitlines())
    assert not re.search("libcuda|libamdhip", python("-c", "import kiln; print(open('/proc/self/maps').read())").stdout)


def test_every_module_imports_by_itself():
    names = [path.stem for path in Path(kiln.__file__).parent.glob("*.py") if not path.stem.startswith("__")]
    assert len(names) > 5
    for name in names:
        done = python("-c", f"import kiln.{name}")
        assert done.returncode == 0, done.stderr


def test_free_threaded_builds_are_refused():
    code = "import sys; sys.abiflags = 't'; import kiln"
    done = python("-c", code)
    assert done.returncode == 1 and "ImportError: Kiln is not made for free-threaded builds of Python" in done.stderr


@pytest.mark.parametrize("count", [1, 2], ids=["the core alone", "the family too"])
def test_another_releases_libraries_in_the_process(tmp_path, count):
    """They serve: the interface that they share only grows."""
    ours, theirs = kiln.__version__, "9" * len(kiln.__version__)
    libraries = [tmp_path / name for name in ("libkiln.so.0", "libkiln_flash.so")[:count]]
    for library in libraries:
        data = (fakes.LIB / library.name).read_bytes()
        library.write_bytes(data.replace(ours.encode() + b"\0", theirs.encode() + b"\0"))
    code = f"""
import ctypes
for library in {[str(library) for library in libraries]}:
    ctypes.CDLL(library)
import kiln
info = kiln.info()
assert (kiln.__version__, info.version, info.library_version) == ({ours!r}, {ours!r}, {theirs!r})
assert info.families == ("flash",)
print(info)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert f"libkiln.so.0 of Kiln {theirs}, which this process had loaded before" in done.stdout
    assert "loaded before" not in str(kiln.info())


@pytest.mark.parametrize("missing", ["kiln_synchronize", "kiln_read_struct"], ids=["the extension's", "the family's"])
def test_a_libkiln_in_the_process_that_lacks_a_function(tmp_path, missing):
    names = {"kiln_error", "kiln_status_name", "kiln_open", "kiln_close", "kiln_devices", "kiln_register_family",
             "kiln_find_operation", "kiln_operations", "kiln_workspace_size", "kiln_launch", "kiln_prepare",
             "kiln_explain", "kiln_variants", "kiln_set_error", "kiln_read_struct", "kiln_operation_arguments",
             "kiln_synchronize"}  # fmt: skip
    source, exports, other = tmp_path / "other.c", tmp_path / "map", tmp_path / "libkiln.so.0"
    exports.write_text("KILN_0 { global: kiln_*; };")

    def load(names: set[str]) -> subprocess.CompletedProcess[str]:
        stubs = "".join(f"void {name}(void) {{}}\n" for name in sorted(names))
        source.write_text(f'const char* kiln_version(void) {{ return "0.0.9"; }}\n{stubs}')
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-Wl,-soname,libkiln.so.0",
                        f"-Wl,--version-script={exports}", source, "-o", other], check=True)  # fmt: skip
        return python("-c", f"import ctypes; ctypes.CDLL({str(other)!r}); import kiln")

    if not shutil.which("cc"):
        pytest.skip("needs cc")
    assert load(names).returncode == 0
    done = load(names - {missing})
    assert done.returncode == 1 and done.stderr.count("Error: ") == 1
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("ImportError: this process has loaded libkiln.so.0 of Kiln 0.0.9 before, which does not")
    assert f"the package kiln of {kiln.__version__} in {PACKAGE}; use both from one release" in sentence
    assert f"undefined symbol: {missing}" in sentence


def test_an_extension_that_fails_to_load_for_another_reason():
    error = ImportError("libkiln.so.0: cannot open shared object file")
    assert kiln.errors.of_import(error) is error
    code = """
from kiln import errors
error = ImportError("/a/_core.so: undefined symbol: kiln_nothing")
assert errors.of_import(error) is error
"""
    alone = f"import sys, types; sys.modules['kiln'] = kiln = types.ModuleType('kiln'); kiln.__path__ = [{PACKAGE!r}]"
    done = python("-c", alone + code)
    assert done.returncode == 0, f"of libraries that nobody had loaded nothing is said: {done.stderr}"


def test_log(runtime, fake, caplog):
    with caplog.at_level(logging.DEBUG, logger="kiln"):
        folder = fakes.LIB / "kiln.images"
        trusted = (folder / "trusted.txt").read_text()
        with kiln.Runtime(pack_path=folder, trusted_packs=trusted, resolve=fake.resolve) as loud:
            kiln.attn_fwd(*[Array(SHAPE)] * 3, out=Array(SHAPE), stream=0, runtime=loud)
    levels = {record.levelno for record in caplog.records}
    assert levels == {logging.INFO, logging.DEBUG} and "loaded attn_fwd_bf16" in caplog.text
    assert python("-c", "import kiln; kiln.info()").stderr == "", "nobody asked for the log"


def test_packs_by_who_signed_them(fake, tmp_path):
    """As `kiln sign` signs a pack; without its signature it is refused, and so is another key's."""
    key, other = minisign.SecretKey(b"a number", bytes([1] * 32)), minisign.SecretKey(b"a second", bytes([2] * 32))
    for path in (fakes.LIB / "kiln.images").glob("*.pack"):
        shutil.copy(path, tmp_path)

    def call(keys: str) -> None:
        with kiln.Runtime(tmp_path, trusted_keys=keys, resolve=fake.resolve) as runtime:
            kiln.attn_fwd(*[Array(SHAPE)] * 3, out=Array(SHAPE), stream=0, runtime=runtime)

    with pytest.raises(kiln.KilnError, match="minisig does not exist, so no key of kiln_options.trusted_keys vouches"):
        call(key.public.spell())
    for path in [*tmp_path.glob("*.pack")]:
        index = pack.read_pack(path)
        said = Statement("pack", index.release, path.name, index.index_digest).spell()
        path.with_name(f"{path.name}.minisig").write_bytes(minisign.sign(key, [path.read_bytes()], said).spell())
    call(f"{other.public.spell()},{key.public.spell()}")
    with pytest.raises(kiln.KilnError, match="is by none of the keys of kiln_options.trusted_keys"):
        call(minisign.SecretKey(b"another!", bytes(32)).public.spell())
    with pytest.raises(kiln.ArgumentError, match='trusted_keys: "xyz" is not a public key of minisign'):
        kiln.Runtime(trusted_keys="xyz")


def test_the_logs_level_may_change_at_any_time(runtime, caplog):
    def load(dtype: str) -> set[int]:
        caplog.clear()
        kiln.attn_fwd(*[Array(SHAPE, dtype)] * 3, out=Array(SHAPE, dtype), stream=0, runtime=runtime)
        return {record.levelno for record in caplog.records}

    with caplog.at_level(logging.WARNING, logger="kiln"):
        assert load("bf16") == set()
    with caplog.at_level(logging.DEBUG, logger="kiln"):
        assert load("fp16") == {logging.DEBUG}
        assert load("fp16") == set(), "a launch of what is loaded has nothing to say"
    with caplog.at_level(logging.INFO, logger="kiln"):
        assert load("fp32") == set()


# ---- documentation ---------------------------------------------------------------------------------------------------


def public() -> dict[str, object]:
    return {name: getattr(kiln, name) for name in (*kiln.__all__, *kiln.errors.__all__)}


def test_everything_public_is_documented():
    assert len(kiln.__all__) == len({*kiln.__all__})
    for name, value in public().items():
        assert inspect.getdoc(value), name
        if inspect.isclass(value):
            for member, thing in vars(value).items():
                if not member.startswith("_") and (inspect.isfunction(thing) or isinstance(thing, property)):
                    assert inspect.getdoc(thing), (name, member)


@pytest.mark.parametrize(
    "function", [kiln.attn_fwd, kiln.attn_fwd_fp8, kiln.attn_bwd, kiln.attn_decode, kiln.dropout_mask]
)
def test_every_argument_is_explained(function):
    text = inspect.getdoc(function) + inspect.getdoc(kiln.attention) + inspect.getdoc(kiln.attn_fwd)
    for name in inspect.signature(function).parameters:
        assert re.search(rf"^ *(\w+, )*{name}(, \w+)*: ", text, re.MULTILINE), name
    own = inspect.getdoc(function)
    for section in ("Args:", "Returns:", "Raises:"):
        assert section in own
    for name in re.findall(r"^    (\w+(?:, \w+)*): ", own.partition("Args:")[2].partition("\n\n")[0], re.MULTILINE):
        for each in name.split(", "):
            assert each in inspect.signature(function).parameters, each


def test_help_reads_as_a_page():
    page = pydoc.plain(pydoc.render_doc(kiln))
    assert "Kiln: attention kernels for NVIDIA's and AMD's GPUs" in page and "attn_fwd(" in page
    assert "Gradients" in page and "All other modules of the package are internal" in page
    assert "class UnsupportedError" not in page, "kiln.errors has a page of its own; here functions come first"
    assert "class UnsupportedError" in pydoc.plain(pydoc.render_doc(kiln.errors))
    for name in re.findall(r"^    (\w+(?:, \w+)*)   ", inspect.getdoc(kiln), re.MULTILINE):
        for each in name.split(", "):
            assert each in kiln.__all__, each


@pytest.mark.parametrize(
    ("module", "first"),
    [("kiln", "out = kiln.attn_fwd(q, k, v, causal=True)"), ("kiln.jit", "norm(x, w, out, None, 1e-6)")],
)
def test_help_begins_with_a_sentence_and_what_one_would_type(module, first):
    """Of a module whose packages are missing too."""
    text = inspect.getdoc(importlib.import_module(module))
    sentence, empty, *lines = text.splitlines()
    assert sentence.endswith((".", "ahead.")) and not empty
    example = [line for line in lines[: lines.index("", 2) + 8] if line.startswith("    ")]
    assert example[0].startswith("    import ") and any(first in line for line in example[:6])


# ---- threads and forks -----------------------------------------------------------------------------------------------


def test_threads(runtime, fake):
    count, failures = 8, []

    def work(number: int) -> None:
        try:
            fake.set_current(fake.context(0))
            for _ in range(50):
                q = Array(SHAPE, dtype="bf16" if number % 2 else "fp16")
                kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=runtime)
                with pytest.raises(kiln.ArgumentError, match=f"window_left .* {number}.5 is not"):
                    kiln.attn_fwd(q, q, q, out=q, window=(number + 0.5, 0), stream=0, runtime=runtime)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert len(fake.launches()) == 50 * count


def test_others_run_during_a_call(runtime, fake):
    """An entry of the driver sleeps: without the lock of the interpreter, or every thread would wait."""
    ticks, done = [], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.01)

    q = Array(SHAPE)
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        fake.delay("cuLaunchKernel", 1000)
        begin = time.monotonic()
        kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=runtime)
        end = time.monotonic()
    finally:
        done.set()
        thread.join()
    assert end - begin >= 1 and sum(begin < moment < end for moment in ticks) > 20


def test_closing_while_others_call(fake):
    folder = fakes.LIB / "kiln.images"
    runtime = kiln.Runtime(folder, (folder / "trusted.txt").read_text(), resolve=fake.resolve)
    failures = []

    def work() -> None:
        fake.set_current(fake.context(0))
        try:
            while True:
                q = Array(SHAPE)
                kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=runtime)
        except kiln.ArgumentError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    runtime.close()
    for thread in threads:
        thread.join(timeout=30)
    assert failures == ["this Runtime is closed; open another one"] * 4
    assert fake.loaded == 0 and repr(runtime) == "<kiln.Runtime, closed>"


def in_child(work) -> str:
    """What `work` returns in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def test_forks(runtime):
    kiln.devices()  # the process's own is open
    parents = kiln.runtime.default_runtime()

    def refused() -> str:
        try:
            return f"no failure: {kiln.variants(runtime=runtime)}"
        except kiln.ForkedError as error:
            return str(error)

    assert "this process was forked from the one that opened the kiln_t" in in_child(refused)
    assert in_child(lambda: kiln.runtime.default_runtime() is not parents and kiln.info().version) == kiln.__version__
    assert kiln.variants(runtime=runtime), "the parent's goes on"


def test_a_runtime_that_nobody_closes_stays(fake):
    code = """
import gc, sys
import fakes, ffi, kiln
fake = ffi.Fake(fakes.LIB / 'libfake.so')
fake.set_current(fake.context(0))
runtime = fakes.opened(fake)
q = fakes.Array((1, 2, 8, 64))
kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=runtime)
del runtime
gc.collect()
assert fake.loaded == 1
"""
    done = python("-c", code, PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_borrowing(runtime):
    borrowed = _core.Runtime.borrow(runtime.handle)
    assert borrowed.operations() == runtime.core.operations()
    borrowed.close()
    assert kiln.variants(runtime=runtime)


def test_a_wheel_of_another_python_is_named():
    refused = kiln.errors.of_import(ImportError("_core.abi3.so: undefined symbol: Py_Version"))
    assert "has _core." in str(refused) and "install the wheel of kiln-runtime for this Python" in str(refused)
    other = ImportError("libstdc++.so.6: cannot open shared object file")
    assert kiln.errors.of_import(other) is other
