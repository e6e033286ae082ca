"""Fingerprints: what cannot change an image never changes one, what can always does."""

from __future__ import annotations

import ast
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from kiln_recipe.errors import RecipeError
from kiln_recipe.read.fingerprint import fingerprint, language, signature, sources

KERNEL = '''"""A module."""
from __future__ import annotations

import math

import triton
import triton.language as tl
from helpers import halve, unused_helper

LOG2E: tl.constexpr = 1.4426950408889634
TABLE = {"a": 1}
TABLE["b"] = 2
UNUSED = 7
if math.pi > 3:
    STEP = 2
else:
    STEP = 3
try:
    LIMIT = int("5")
except ValueError:
    LIMIT = 6


@triton.jit
def leaf(x, y):
    """Adds."""
    return x + y * STEP


@triton.jit
def branch(x):
    # comments say why
    return leaf(x, LOG2E) - halve(x)


@triton.jit
def other(x):
    return x - 1


@triton.jit(noinline=False)
def kernel(x_ptr, n, BLOCK: tl.constexpr, MODE: "tl.constexpr" = 0):
    """The kernel.

    With a docstring of several lines.
    """
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    if MODE == 1:
        x = branch(x)
    tl.store(x_ptr + offsets, branch(x) * LIMIT * TABLE["a"], mask=offsets < n)
'''
HELPERS = """import triton


@triton.jit
def quarter(x):
    return x / 4


@triton.jit
def halve(x):
    return quarter(x) * 2


@triton.jit
def unused_helper(x):
    return x
"""


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts = {"kernel.py": KERNEL, "helpers.py": HELPERS}

    def fingerprint(self, **texts: str) -> str:
        for name, text in {**self.texts, **{f"{key}.py": value for key, value in texts.items()}}.items():
            (self.folder / name).write_text(text)
        return fingerprint(self.folder / "kernel.py", "kernel")


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


UNCHANGED = {
    "comment": ("    # comments say why\n", "    # comments say what\n\n"),
    "no comment": ("    # comments say why\n", ""),
    "docstring": ('"""Adds."""', '"""Adds two numbers, and says LIMIT."""'),
    "docstring that is a name": ('"""Adds."""', '"""UNUSED"""'),
    "no docstring": ('    """Adds."""\n', ""),
    "module docstring": ('"""A module."""', "# A module."),
    "line shift": ("LOG2E: ", "\n\n\nLOG2E: "),
    "formatting": ("return x + y * STEP", "return (x   +\n        (y*STEP))"),
    "quotes": ('TABLE = {"a": 1}', "TABLE = {'a': 1}"),
    "number's spelling": ("import math\n", "import math\n_ = 0x10\n"),
    "unused global": ("UNUSED = 7", "UNUSED = 8"),
    "unused function": ("return x - 1", "return x - 2"),
    "a main guard": ("UNUSED = 7\n", 'UNUSED = 7\nif __name__ == "__main__":\n    import torch\n    branch(torch)\n'),
    "trailing spaces": ("return x + y * STEP\n", "return x + y * STEP   \n"),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_does_not_matter(files, name):
    old, new = UNCHANGED[name]
    assert KERNEL.count(old) == 1
    assert files.fingerprint(kernel=KERNEL.replace(old, new)) == files.fingerprint()


CHANGED = {
    "operator": ("x + y * STEP", "x - y * STEP"),
    "constant": ("1.4426950408889634", "1.4426950408889635"),
    "type of a constant": ("other=0.0", "other=0"),
    "argument": ("mask=offsets < n, other", "mask=offsets <= n, other"),
    "order of arguments": ("leaf(x, LOG2E)", "leaf(LOG2E, x)"),
    "decorator": ("noinline=False", "noinline=True"),
    "decorator of a callee": ("@triton.jit\ndef leaf", "@triton.jit(noinline=True)\ndef leaf"),
    "annotation": ("BLOCK: tl.constexpr", "BLOCK"),
    "default": ('"tl.constexpr" = 0', '"tl.constexpr" = 1'),
    "global under if": ("    STEP = 2", "    STEP = 4"),
    "condition of a global": ("math.pi > 3", "math.pi < 3"),
    "global under try": ('int("5")', 'int("4")'),
    "effect on a global": ('TABLE["b"] = 2', 'TABLE["b"] = 3'),
    "parameter": ("def kernel(x_ptr, n,", "def kernel(x_ptr, m, n,"),
    "string": ('TABLE["a"]', 'TABLE["b"]'),
    "import": ("import triton.language as tl", "import triton as tl"),
    "name of an import": ("import halve, unused_helper", "import quarter as halve, unused_helper"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_matters(files, name):
    old, new = CHANGED[name]
    assert old in KERNEL
    assert files.fingerprint(kernel=KERNEL.replace(old, new, 1)) != files.fingerprint()


def test_a_callee_of_a_callee_in_another_file(files):
    before = files.fingerprint()
    assert files.fingerprint(helpers=HELPERS.replace("x / 4", "x / 8")) != before
    assert files.fingerprint(helpers=HELPERS.replace("    return x\n", "    return -x\n")) == before
    assert files.fingerprint(helpers=HELPERS.replace("import triton\n", "import triton  # why\n")) == before
    assert [path.name for path in sources(files.folder / "kernel.py", "kernel")] == ["kernel.py", "helpers.py"]


def test_the_path_is_no_part_of_it(files, tmp_path):
    before = files.fingerprint()
    moved = tmp_path / "else where"
    moved.mkdir()
    shutil.copy(files.folder / "helpers.py", moved)
    shutil.copy(files.folder / "kernel.py", moved / "renamed.py")
    assert fingerprint(moved / "renamed.py", "kernel") == before


def test_two_functions_of_a_file_differ(files):
    files.fingerprint()
    path = files.folder / "kernel.py"
    assert len({fingerprint(path, name) for name in ("kernel", "leaf", "branch", "other")}) == 4


def test_mutations_of_what_the_kernel_uses(files):
    """Each constant and operator that is swapped in the kernel or its callees changes the fingerprint."""
    before = files.fingerprint()
    tree = ast.parse(KERNEL)
    used = [node for node in tree.body if getattr(node, "name", "") in ("leaf", "branch", "kernel")]
    swaps = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Lt: ast.Gt, ast.Eq: ast.NotEq}
    mutated = 0
    for function in used:
        docstring = function.body[0]
        for node in ast.walk(function):
            if node is docstring or getattr(docstring, "value", None) is node:
                continue
            if isinstance(node, ast.BinOp) and type(node.op) in swaps:
                old, node.op = node.op, swaps[type(node.op)]()
                assert files.fingerprint(kernel=ast.unparse(tree)) != before
                node.op = old
            elif isinstance(node, ast.Compare):
                old, node.ops = node.ops, [swaps[type(node.ops[0])]()]
                assert files.fingerprint(kernel=ast.unparse(tree)) != before
                node.ops = old
            elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
                old, node.value = node.value, node.value + 1
                assert files.fingerprint(kernel=ast.unparse(tree)) != before
                node.value = old
            else:
                continue
            mutated += 1
    assert mutated > 10
    assert files.fingerprint(kernel=ast.unparse(tree)) == before


def test_random_reformatting(files):
    """Comments, blank lines and trailing spaces at random places never count."""
    before = files.fingerprint()
    rng = random.Random(1)
    for _ in range(30):
        lines = []
        inside = False  # of a docstring
        for line in KERNEL.split("\n"):
            if not inside:
                if rng.random() < 0.3:
                    lines.append("    " * rng.randrange(3) + "# " + rng.choice(["why", '"""', "x = 1"]))
                if rng.random() < 0.3:
                    lines.append(" " * rng.randrange(5))
                if rng.random() < 0.3 and line.strip() and '"""' not in line:
                    line += "  # noqa"
            inside ^= line.count('"""') == 1
            lines.append(line)
        assert files.fingerprint(kernel="\n".join(lines)) == before


@pytest.mark.parametrize(
    ("old", "new", "line", "part"),
    [
        ("import math\n", "import torch\n", 4, "imports torch; a kernel's file may import triton, math, typing"),
        ("import math\n", "import math, numpy as np\n", 4, "imports numpy"),
        ("import math\n", "if True:\n    import os.path\n", 5, "imports os.path"),
        ("from helpers import", "from nowhere import", 8, "imports from nowhere"),
        ("from helpers import", "from .helpers import", 8, "imports from .helpers"),
        ("from helpers import halve, unused_helper", "from helpers import *", 8, "imports * from helpers"),
        ("import halve,", "import half as halve,", 8, "imports half, which helpers.py does not have"),
        ("import math\n", "import math (\n", 4, "is not valid Python"),
        ("@triton.jit(noinline=False)\n", "", 41, "kernel is not a Triton function; add @triton.jit or @gluon.jit"),
        ("@triton.jit(noinline=False)", "@triton.autotune([])\n@triton.jit", 41, "is decorated with triton.autotune"),
        ("def kernel(", "def colonel(", 1, "has no function kernel; its functions are branch, colonel, leaf, other"),
        ("def kernel(x_ptr, n,", "def kernel(x_ptr, n, *,", 42, "keyword-only"),
        ("def kernel(x_ptr, n, BLOCK: tl.constexpr,", "def kernel(*x_ptr,", 42, "must be plain"),
    ],
)  # fmt: skip
def test_what_is_refused(files, old, new, line, part):
    assert old in KERNEL
    path = files.folder / "kernel.py"
    with pytest.raises(RecipeError) as caught:
        files.fingerprint(kernel=KERNEL.replace(old, new))
        signature(path, "kernel")
    assert str(caught.value).startswith(f"{path}:{line}: ") and part in str(caught.value)


def test_no_file(tmp_path):
    with pytest.raises(RecipeError, match="cannot be read"):
        fingerprint(tmp_path / "kernel.py", "kernel")


def test_signature(files):
    files.fingerprint()
    parameters = signature(files.folder / "kernel.py", "kernel")
    assert [(p.name, p.constexpr, p.line) for p in parameters] == [
        ("x_ptr", False, 42),
        ("n", False, 42),
        ("BLOCK", True, 42),
        ("MODE", True, 42),
    ]


GLUON = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from helpers import halve

@gluon.jit
def leaf(x):
    return halve(x) + 1

@gluon.jit
def kernel(x_desc, ROWS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    tma.store_wait(leaf(ROWS))
"""


def test_gluon_is_followed_as_triton_is(files):
    before = files.fingerprint(kernel=GLUON)
    path = files.folder / "kernel.py"
    assert [(p.name, p.constexpr) for p in signature(path, "kernel")] == [("x_desc", False), ("ROWS", True)]
    assert sources(path, "kernel") == (path.resolve(), (files.folder / "helpers.py").resolve())
    changes = [("halve(x) + 1", "halve(x) + 2"), ("[32]", "[16]"), ("nvidia.hopper import", "nvidia.blackwell import")]
    assert len({before, *(files.fingerprint(kernel=GLUON.replace(*change)) for change in changes)}) == 4
    assert files.fingerprint(kernel=GLUON + "\n\n@gluon.jit\ndef unused(x):\n    return x\n") == before


@pytest.mark.parametrize(
    ("imported", "decorator", "spoken"),
    [
        ("from triton.experimental import gluon", "gluon.jit", "gluon"),
        ("from triton.experimental import gluon as g", "g.jit(noinline=True)", "gluon"),
        ("from triton.experimental.gluon import jit", "jit", "gluon"),
        ("import triton.experimental.gluon", "triton.experimental.gluon.jit", "gluon"),
        ("import triton", "triton.jit", "triton"),
        ("from triton import jit", "jit", "triton"),
    ],
)
def test_the_decorator_tells_the_language(tmp_path, imported, decorator, spoken):
    (tmp_path / "k.py").write_text(f"{imported}\n\n@{decorator}\ndef k(x_ptr):\n    pass\n")
    assert language(tmp_path / "k.py", "k") == spoken


def test_every_python_gives_the_same(files):
    """Whatever other Pythons are installed here."""
    before = files.fingerprint()
    package = Path(__file__).parents[1] / "v3python"
    code = (
        "import sys, types; sys.path.insert(0, sys.argv[1]); "
        "from pathlib import Path; from kiln_recipe.read.fingerprint import fingerprint; "
        "print(fingerprint(Path(sys.argv[2]), 'kernel'))"
    )
    tried = 0
    for minor in range(10, 16):
        python = shutil.which(f"python3.{minor}")
        if not python or subprocess.run([python, "-c", ""], capture_output=True).returncode:
            continue
        command = [python, "-B", "-c", code, str(package), str(files.folder / "kernel.py")]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == before
        tried += 1
    if not tried:
        pytest.skip("no other Python is installed")
