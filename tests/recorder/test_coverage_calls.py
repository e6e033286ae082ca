"""What `kiln coverage` says of a release, held against the release's own library: for kinds of attention that are
drawn, kiln_explain finds the same images, or refuses with the same sentence."""

from __future__ import annotations

import ctypes

import entries
import ffi
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import STATUSES, Runner, opened

from kiln_build.coverage import calls
from kiln_build.coverage.attention import USES, Attention, Model
from kiln_build.coverage.judge import judge
from kiln_build.coverage.source import Source, open_source
from kiln_recipe import targets
from kiln_recipe.call.evaluate import TYPICAL_MULTIPROCESSORS


@pytest.fixture
def runner(libraries, fake, judge):
    with opened(libraries, fake, judge) as runner:
        yield runner


@pytest.fixture(scope="module")
def source(wide_release) -> Source:
    return open_source(str(wide_release.prefix))


@st.composite
def kinds(draw: st.DrawFn) -> Attention:
    heads_kv = draw(st.sampled_from((1, 2, 8)))
    width = draw(st.sampled_from((64, 64, 40, 17, 72, 128)))
    flag = st.booleans()
    dtype = draw(st.sampled_from(("bf16", "bf16", "bf16", "fp16", "fp32")))
    return Attention(
        "attention",
        heads_kv * draw(st.sampled_from((1, 4, 7))),
        heads_kv,
        width,
        draw(st.sampled_from((width, 64))),
        dtype,
        draw(st.sampled_from((dtype, dtype, "fp8e4m3"))),
        draw(flag),
        window=draw(st.sampled_from((0, 0, 128))),
        softcap=draw(st.sampled_from((0.0, 0.0, 50.0))),
        dropout=draw(st.sampled_from((0.0, 0.0, 0.1))),
        sinks=draw(flag),
        bias=draw(st.sampled_from((False, False, True))),
        alibi=draw(st.sampled_from((False, False, True))),
        cross=draw(flag),
        rows=draw(st.sampled_from((1, 64, 1000, 4096))),
        keys=draw(st.sampled_from((1, 77, 1000, 4096))),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kind=kinds(), use=st.sampled_from(USES))
def test_the_library_says_the_same(runner: Runner, source: Source, kind: Attention, use: str) -> None:
    target = targets.by_name(runner.judge.target)
    verdicts = judge(source, [Model("model", (kind,))], (target,))
    verdict = next(one for one in verdicts if one.use == use)
    found: list[tuple[str, str]] = []
    for example in calls.examples(source.recipe, kind, use):
        keys, status = explained(runner, example)
        if status:
            assert status in (STATUSES["UNSUPPORTED"], STATUSES["ARGUMENT"])
            assert verdict.refusal == runner.library.error()
            return
        found += keys
    assert verdict.is_served, verdict.refusal
    ours = [(image.operation, image.key or "") for image in verdict.images]
    if runner.judge.device.multiprocessors == TYPICAL_MULTIPROCESSORS:
        assert ours == found
    else:  # on another number the configurations may be others, and decoding may need no second kernel
        assert {operation for operation, _ in ours} == {operation for operation, _ in found}


def explained(runner: Runner, example: calls.Example) -> tuple[list[tuple[str, str]], int]:
    """What kiln_explain says of a call: operations and keys, and the status."""
    found: list[tuple[str, str]] = []

    def visit(variant: object, _: object) -> int:
        found.append((example.name, variant.contents.key.decode()))
        return 0

    call = entries.call_of(
        runner.kiln, example.name, example.operation, example.given, vendor=runner.vendor, device=-1,
        stream=runner.fake.stream(runner.vendor),
    )  # fmt: skip
    return found, runner.library.c.kiln_explain(ctypes.byref(call), ffi.VariantFn(visit), None)
