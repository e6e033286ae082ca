"""kiln.jit with the oldest and the newest Triton that its extra allows; with KILN_TEST_TRITON=all, with all that are
locked: every feature interpreted, against float64, and kernels compiled without a GPU."""

from __future__ import annotations

import importlib.util
import warnings

import pytest
from test_jit_compiled import compiled_here
from test_jit_interpreted import CALLS, DECODING, attend, decode, mask_of_dropout
from test_jit_strict import failure, run, written

import tritons
import users_package
from kiln_recipe.compile import toolchain

DTYPES = ("float16", "bfloat16", "float32")
pytestmark = [pytest.mark.slow(50), pytest.mark.sample(3)]


@pytest.fixture(scope="module", params=tritons.chosen())
def other(request):
    """As `child`, with another Triton."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    words = (str(tritons.installed(request.param)), request.param)
    with users_package.process(tritons.begin, *words) as call:
        yield call


@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward(other, name):
    other(attend, name, DTYPES[list(CALLS).index(name) % 3], "sm_90")


@pytest.mark.parametrize("name", DECODING)
def test_decoding(other, name):
    dtype = DTYPES[list(DECODING).index(name) % 3]
    other(decode, name, dtype, dtype)


def test_a_cache_of_fp8(other):
    other(decode, "pages, appended, rotated", "bfloat16", "float8_e4m3fn")


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_the_mask_of_dropout(other, dtype):
    other(mask_of_dropout, dtype)


def compiled(target: str, folder: str, languages: tuple[str, ...]) -> list[tuple[str, bytes, bool]]:
    """By function the first bytes of its image, and whether it left all as it was; nothing is warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [(spec.function, image[:4], clean) for spec, image, clean in compiled_here(target, folder, languages)]


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_kernels_are_compiled(other, target, tmp_path, request):
    version = tuple(map(int, request.node.callspec.params["other"].split(".")[:2]))
    has_gluon = version >= toolchain.GLUON_SINCE
    made = other(compiled, target, str(tmp_path), ("triton", "gluon") if has_gluon else ("triton",))
    products = {{"sm_90": "matmul_hopper", "gfx942": "matmul_cdna"}[target]} if has_gluon else set()
    attention = {"sm_90": "attn_fwd", "gfx942": "attn_fwd_amd"}[target]
    assert {name for name, _, _ in made} == {"rms_norm", "total", "dropout_mask", attention} | products
    assert all(first == b"\x7fELF" and clean for _, first, clean in made), made


def unfit() -> dict[str, str | None]:
    from pathlib import Path

    from kiln.jit.compiled import not_compiled
    from kiln_recipe.read import recipe

    flash = recipe.load(Path(__file__).resolve().parents[2] / "tritonsrc/flash/recipe.yaml")
    return {kernel.name: not_compiled(kernel) for operation in flash.operations for kernel in operation.kernels}


def test_the_gluon_of_another_version_is_passed_over(other, request):
    found = {name: reason for name, reason in other(unfit).items() if reason}
    version = request.node.callspec.params["other"]
    if tuple(map(int, version.split(".")[:2])) < toolchain.GLUON_SINCE:
        assert set(found) >= {"attn_fwd.hopper", "attn_decode.hopper", "attn_prefill.hopper"}
        assert "attn_decode.general" not in found
        assert set(found.values()) == {f"its source is in the Gluon of Triton 3.8, and Triton {version} is installed"}
    else:
        assert not found


def test_the_versions_are_those_that_the_code_names():
    minors = [tuple(map(int, version.split(".")[:2])) for version in tritons.PINS]
    assert minors == sorted(minors) and (minors[0], minors[-1]) == toolchain.JIT_VERSIONS


def warned_of(version: str) -> list[str]:
    import triton

    from kiln.jit.packages import check_triton

    triton.__version__ = version
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_triton()
        check_triton()
    return [str(one.message) for one in told]


@pytest.mark.parametrize(
    ("version", "count"), [("3.5.1", 1), ("3.6.0", 0), ("3.9.3+git1a2b", 0), ("3.10.0", 1), ("4.0.0", 1), ("main", 1)]
)
def test_a_version_that_was_not_tested_is_told_of_once(fresh, version, count):
    told = fresh(warned_of, version)
    assert len(told) == count
    assert all(f"tested with Triton 3.6 to 3.9, but Triton {version} is installed" in one for one in told)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("inside = (i > 0) and not (x > 2)\n    x = tl.where(inside, 9.0, x)", "[1.0, 9.0, 3.0]"),
        ("x += tl.sum(tl.load(x_ptr + i, mask=i < n))", "[nan, nan, nan]"),
    ],
)
def test_the_interpreter_is_as_strict(other, tmp_path, statement, found):
    assert str(other(run, written(tmp_path, statement), [1.0, 2.0, 3.0])) == found


@pytest.mark.parametrize("module", ["libdevice", "cuda.libdevice"])
def test_the_interpreter_has_no_libdevice(other, tmp_path, module):
    sentence, _ = other(failure, written(tmp_path, f"x = tl.extra.{module}.tanh(x)"))
    assert sentence.startswith(f"{tmp_path}/work.py:9: Triton's interpreter has no libdevice; ")
