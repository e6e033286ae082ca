"""Kernels and recipes that cannot be built: one sentence, the documented exit code, the rest is done and kept."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from builds import TARBALL

pytestmark = pytest.mark.slow(40)

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    BODY
    tl.store(x_ptr + offsets, x, mask=offsets < n)
"""

RECIPE = """
family: scaling
operations:
  scale:
    arguments:
      x: {tensor: fp32, rank: 1}
    kernels:
      scale:
        source: scale.py
        parameters:
          x_ptr: {type: "*fp32", value: x.data}
          n: {type: i32, value: "x.size[0]"}
        specializations: {generic: {}}
        grid: ["cdiv(x.size[0], BLOCK)"]
        configurations:
          - core: [{BLOCK: 256, num_warps: 4}]
"""


@pytest.fixture
def attempt(builder, tmp_path):
    """A build of a small family with `body` in its kernel and `recipe` changed; gives (exit code, what it printed)."""

    def run(body: str = "x = 2 * x", old: str = "", new: str = "", **variables: str) -> tuple[int, str]:
        folder = tmp_path / "family"
        folder.mkdir(exist_ok=True)
        kernel = textwrap.dedent(KERNEL).replace("BODY", textwrap.indent(textwrap.dedent(body), "    ").strip())
        (folder / "scale.py").write_text(kernel)
        assert old in RECIPE
        (folder / "recipe.yaml").write_text(RECIPE.replace(old, new, 1) if old else RECIPE)
        done = builder.run(check=False, KILN_RECIPES=str(folder / "recipe.yaml"), **variables)
        text = done.stdout + done.stderr
        assert "Traceback" not in text, text
        assert done.returncode == 0 or not (tmp_path / "out" / TARBALL).exists(), "a failed build leaves no tarball"
        return done.returncode, text

    return run


def test_the_family_itself_builds(attempt):
    assert attempt()[0] == 0


def test_syntax_error(attempt, tmp_path):
    code, text = attempt("x = = x")
    assert code == 3
    assert f"{tmp_path}/family/scale.py:" in text and "syntax" in text.lower()


def test_fails_on_one_target(attempt):
    """PTX in a kernel: no assembler of AMD's takes it. The other target's image is made and kept, and both are told."""
    body = """
    x = tl.inline_asm_elementwise("neg.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    """
    code, text = attempt(body)
    assert code == 4
    assert "scaling.scale/scale" in text and "@gfx942" in text
    failed = text[text.index("variants failed") :]
    assert "@sm_90" not in failed and "`targets` or `unavailable` in the recipe" in failed
    (log,) = re.findall(r"\(log: (.*\.log)\)", failed)
    assert Path(log).is_file() and Path(log).stat().st_size > 0


def test_rejected_by_triton(attempt, tmp_path):
    """The same mistake in each variant: said once as it happens and once at the end, by its place in the file."""
    code, text = attempt("x = x + no_such_name")
    assert code == 4
    mistake = f"{tmp_path}/family/scale.py:9: no_such_name is not defined"
    assert text.count(mistake) == 2 and text.count("(and 1 more variant)") == 2
    logs = [Path(log) for log in re.findall(r"\(log: (.*\.log)\)", text)]
    for log in (log for one in logs for log in one.parent.glob("scaling.scale_*.log")):
        assert mistake in log.read_text() and "Traceback" not in log.read_text()
    assert len(list(logs[0].parent.glob("scaling.scale_*.log"))) == 2, "one for each variant"


def test_hangs_the_compiler(attempt):
    code, text = attempt("for _ in tl.static_range(0, 100000000):\n    x += 1.0", KILN_TIMEOUT="6")
    assert code == 4
    assert "scaling.scale/scale" in text and "6 s" in text


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("source: scale.py", "sorce: scale.py", "source"),
        ("rank: 1}", "rank: one}", "rank"),
        ("rank: 1}", "rank: 1}\n    choices:\n      idle: {of: \"x.size[0]\", values: [1, 2]}", "idle"),
        ("value: \"x.size[0]\"", "value: \"y.size[0]\"", "y.size"),
        ("{BLOCK: 256, num_warps: 4}", "{BLOCK: 256, num_wraps: 4}", "num_warps"),
        ("source: scale.py", "source: missing.py", "missing.py"),
    ],
)  # fmt: skip
def test_recipes_that_do_not_hold(attempt, tmp_path, old, new, sentence):
    code, text = attempt(old=old, new=new)
    assert code == 3
    assert f"{tmp_path}/family/recipe.yaml:" in text and sentence in text


def test_needs_more_than_the_target_has(attempt):
    """A block of 65,536 threads' worth of registers: compiles without a word, and is refused."""
    code, text = attempt(old="{BLOCK: 256, num_warps: 4}", new="{BLOCK: 65536, num_warps: 4}")
    assert code == 4
    assert "spills" in text and "the recipe allows 0" in text
