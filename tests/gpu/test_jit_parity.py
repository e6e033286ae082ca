"""kiln.jit against a release on the GPU: which kernels a call runs, and what they give.

Where this machine's Triton and assemblers are the release's, images are equal and so are all bits. Where they are not,
sources, types, constants and options must be equal all the same, which the keys under the release's toolchain tell, and
results to rounding.
"""

from __future__ import annotations

import importlib.util
import os

import jit_parity
import pytest

import users_package

KERNELS = {
    "forward": ["attn_fwd.general"],
    "forward of what is not aligned": ["attn_fwd.general"],
    "forward of sequences": ["attn_fwd.general"],
    "backward": ["attn_bwd_sums", "attn_bwd_means", "attn_bwd_dq", "attn_bwd_dk_dv", "attn_bwd_dsinks"],
    "decoding": ["append_kv", "rotate_q", "attn_decode.general", "attn_decode_reduce.early"],
    "dropout mask": ["dropout_mask"],
    "lengths of sequences": ["seq_lengths"],
}


@pytest.fixture(scope="module")
def child(prefix, request):
    lacking = [package for package in ("triton", "yaml", "msgspec") if importlib.util.find_spec(package) is None]
    if lacking:
        required = request.config.getoption("--kiln-required", None) or os.environ.get("KILN_REQUIRED")
        (pytest.fail if required else pytest.skip)(f"needs {' and '.join(lacking)}")
    with users_package.process(jit_parity.begin, prefix) as call:
        yield call


@pytest.mark.parametrize("name", jit_parity.CALLS)
def test_what_is_compiled_here_is_what_was_compiled_ahead(child, record, name):
    found = child(jit_parity.compared, name)
    record("jit", name=name, **found)
    print(name, found)
    assert found["kernels"] == KERNELS[name]
    assert all(clause.startswith("toolchain: ") for clause in found["differences"]), found["differences"]
    if not found["differences"]:
        assert found["bits"], "equal images gave other bits"
    assert found["far"] <= 1e-2


def test_compiled_and_interpreted_in_one_process(child):
    far = child(jit_parity.engine_and_interpreter)
    assert list(far) == ["jit 0", "interpreter 1", "jit 2"]
    assert max(far.values()) < 5e-2


def test_a_strangers_family(child):
    assert child(jit_parity.strangers_family) < 1e-4


def test_what_is_refused(child):
    wide, cpu, gpu = child(jit_parity.refusals)
    assert wide.startswith("UnsupportedError: flash.attn_fwd has no image for dtype=bf16 head_dim=600")
    assert cpu.startswith("ArgumentError: flash.attn_fwd: compiled kernels run on GPUs, but these tensors are on cpu")
    assert gpu == "ArgumentError: flash.attn_fwd: the interpreter takes tensors of the CPU, but these are on cuda:0"
