"""The farm with the real compiler, on a kernel that takes it a moment."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import toolchains
from kiln_build.farm import farm
from kiln_build.store.local import LocalStore
from kiln_recipe.console.progress import Progress
from kiln_recipe.plan.model import CompileSpec
from kiln_recipe.read.fingerprint import fingerprint

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

ROOT = Path(__file__).resolve().parents[1]
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def scale(x_ptr, n, factor, BLOCK: tl.constexpr):
    # a comment
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index, mask=index < n)
    tl.store(x_ptr + index, x * factor, mask=index < n)

@triton.jit
def broken(x_ptr, n, factor, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.load(x_ptr)[0, 1, 2])
"""


@dataclass(frozen=True)
class NamedSpec:
    name: str
    spec: CompileSpec
    waiver: str | None = None


@pytest.fixture
def build(tmp_path):
    toolchain = toolchains.own(tmp_path)

    def variants(text: str = KERNEL, function: str = "scale") -> list[NamedSpec]:
        path = tmp_path / "kernels" / "scale.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        spec = CompileSpec(
            source=str(path),
            function=function,
            fingerprint=fingerprint(path, function),
            signature=(("x_ptr", "*fp32"), ("n", "i32"), ("factor", "fp32"), ("BLOCK", "constexpr")),
            constants=(("BLOCK", 256),),
            divisible=(("x_ptr", 16),),
            target="sm_90",
            options=(("num_warps", 4),),
        )
        specs = [spec, replace(spec, target="gfx942"), replace(spec, constants=(("BLOCK", 512),))]
        return [NamedSpec(f"test.{function}[{s.constants[0][1]}]@{s.target}", s) for s in specs]

    def build(named: list[NamedSpec]) -> farm.FarmResult:
        return farm.run(named, toolchain, build.store, farm.FarmOptions(tmp_path / "logs", jobs=2), Progress())

    build.store = LocalStore(tmp_path / "store")
    build.variants = variants
    return build


def test_compiles_reuses_shares_and_rejects(build):
    first = build(build.variants())
    assert first.failures == [] and first.compiled == 3 and first.compile_seconds > 0
    for name, kind, magic in (
        ("test.scale[256]@sm_90", "cubin", b"\x7fELF"),
        ("test.scale[256]@gfx942", "hsaco", b"\x7fELF"),
    ):
        image = build.store.load(first.outcomes[name])
        assert image.info.kind == kind and image.info.symbol == "scale" and image.code.startswith(magic)
        assert (image.ptx is not None) == (kind == "cubin")

    commented = build(build.variants(KERNEL.replace("# a comment", "# another\n    # comment")))
    assert commented.reused == 3 and commented.outcomes == first.outcomes

    # Another source, but the same IR: `x + 0 * n` is folded away before the digest is taken.
    same_ir = build(
        build.variants(KERNEL.replace("x * factor", "x * (factor)").replace("index = tl", "index = 0 + tl"))
    )
    assert same_ir.compiled == 0 and same_ir.shared + same_ir.reused == 3
    assert {n: o.digest for n, o in same_ir.outcomes.items()} == {n: o.digest for n, o in first.outcomes.items()}

    changed = build(build.variants(KERNEL.replace("x * factor", "x + factor")))
    assert changed.compiled == 3

    rejected = build(build.variants(function="broken"))
    assert [failure.kind for failure in rejected.failures] == ["compile"] * 3
    (message,) = {failure.message for failure in rejected.failures}
    line = KERNEL.splitlines().index("    tl.store(x_ptr + tl.arange(0, BLOCK), tl.load(x_ptr)[0, 1, 2])") + 1
    assert re.match(rf"/.*\.py:{line}: ", message)
    logs = [Path(failure.log).read_text() for failure in rejected.failures]
    assert len(logs) == 3 and all(message in log and "Traceback" not in log for log in logs)
