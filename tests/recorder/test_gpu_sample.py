"""The calls that compute-sanitizer watches on a GPU (tests/gpu/scripts/sample.py), on the recording driver: they reach
every kernel of a release, and a kernel that none of them runs is told."""

from __future__ import annotations

import _ctypes
import itertools
import sys
from pathlib import Path

import ffi
import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "gpu/scripts"


class Memory:
    """Stands for cudadriver.Memory: an address that nothing reads."""

    _addresses = itertools.count(0x7100_0000_0000, 1 << 26)

    def __init__(self, array) -> None:
        self.address = ffi.c.c_uint64(next(self._addresses))
        assert array.nbytes < 1 << 26

    def free(self) -> None:
        pass


@pytest.fixture
def sample(monkeypatch, fake, libraries):
    """The module, whose runtime is on the recording driver. (`libraries`: the core that this process has loaded.)"""
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), str(SCRIPTS.parent), *sys.path])
    for name in ("common", "cudadriver", "sample"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import cudadriver
    import sample

    monkeypatch.setattr(cudadriver, "Memory", Memory)
    monkeypatch.setattr(cudadriver, "call", lambda *_: None)
    real = ffi.Kiln
    monkeypatch.setattr(ffi, "Kiln", lambda library, _fake, **options: real(library, fake, **options))
    load, loaded = sample.ctypes.CDLL, []
    monkeypatch.setattr(sample.ctypes, "CDLL", lambda name: loaded.append(load(name)) or loaded[-1])
    yield sample
    for library in reversed(loaded):  # later tests have libraries of other releases
        _ctypes.dlclose(library._handle)
    for name in ("common", "cudadriver", "sample"):
        sys.modules.pop(name, None)


@pytest.fixture
def run(sample, wide_release, monkeypatch, capsys):
    """run(words): the exit code, and what was printed."""

    def run(words: str | None = None) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["sample.py", str(wide_release.prefix), *([words] if words else [])])
        code = sample.main()
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_every_kernel_of_the_release_is_called(run, fake):
    code, said = run()
    assert code == 0, said
    assert len(fake.launches()) > 50 and said.count("forward: ") > 10


@pytest.mark.parametrize("words", ["bf16,fp32,wide", "fp8", "products"])
def test_parts_of_the_sample_reach_what_is_theirs(run, words):
    """As racecheck is given them."""
    code, said = run(words)
    assert code == 0, said


@pytest.mark.parametrize("method", ["lengths", "mask", "all_fp8", "decode"])
def test_a_kernel_that_no_call_runs_is_a_failure(run, sample, monkeypatch, method):
    monkeypatch.setattr(sample.Sample, method, lambda *_, **__: None)
    code, said = run()
    assert code == 1 and "of the release were never called: [('flash." in said


def test_unknown_words_are_refused(run):
    code, said = run("bf16,wider")
    assert code == 2 and said.startswith("sample.py: unknown wider; the words are fp32, fp16, bf16, wide, fp8")
