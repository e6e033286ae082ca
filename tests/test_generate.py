"""Generated tables compile without a warning under gcc and clang, are constant data, and say what the plan says."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_build.native import generate
from kiln_build.native.family_header import family_header
from kiln_build.release import package
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from kiln_recipe.selection import parse_selection

ROOT = Path(__file__).resolve().parents[1]
RECIPES = {
    "flash": ROOT / "tritonsrc/flash/recipe.yaml",
    "norm": ROOT / "examples/family/recipe.yaml",
    "matmul": ROOT / "examples/matmul/recipe.yaml",
}
TARGETS = targets.parse("gfx942;sm_80;sm_90")


def source_of(family: str, digests: dict[str, str] | None = None, select: str = "") -> str:
    loaded = recipe.load(RECIPES[family])
    made = plan.make_plan([loaded], TARGETS, "core", parse_selection(select), ROOT / "tuning")
    tables = []
    for kernel in made.kernels:
        slots = {v.slot for v in made.variants if (v.kernel, v.target) == (kernel.kernel.name, kernel.target.name)}
        tables.append(generate.KernelTables(kernel, plan.lookup(kernel, slots)))
    return generate.family_source(loaded, tables, TARGETS, made.served, digests or {}, "0.1.0b")


@pytest.fixture
def include(tmp_path) -> list[str]:
    (tmp_path / "kiln").mkdir()
    header = package.version_header((ROOT / "include/kiln/version.h.in").read_text(), "0.1.0b")
    (tmp_path / "kiln/version.h").write_text(header)
    return [f"-I{tmp_path}", f"-I{ROOT / 'include'}"]


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("family", RECIPES)
def test_compiles_without_a_warning_to_constant_data(tmp_path, include, compiler, family):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    (tmp_path / "t.cc").write_text(source_of(family, {"sm_90": "ab" * 32}))
    flags = ["-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    done = subprocess.run([compiler, *flags, *include, "-shared", "-nostartfiles", tmp_path / "t.cc", "-o",
                           tmp_path / "t.so"], capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    sections = subprocess.run(["readelf", "-SW", tmp_path / "t.so"], capture_output=True, text=True).stdout
    assert ".init_array" not in sections
    library = ctypes.CDLL(str(tmp_path / "t.so"))
    entry = getattr(library, f"kiln_{family}_family")
    entry.restype = ctypes.POINTER(ctypes.c_uint64)
    assert entry()[0] == 56, "sizeof(kiln_family)"


HEADER = """/* Kiln: the family norm, release 0.1.0b. Generated from its recipe.
 * Root mean square normalization.
 *
 * Its operations are called by name. Once for a kiln_t:
 *   kiln_register_family(kiln, kiln_norm_family());
 *   kiln_find_operation(kiln, "norm.rms_norm", &operation);
 * then kiln_launch with a kiln_call whose `arguments` are those below, in this order; kiln/kiln.h has the rest.
 *
 * norm.rms_norm
 *   out = w * x / sqrt(mean(x^2) + eps), row by row; total, if wanted, gets the sum of all x^2.
 *   0: x      KILN_ARG_TENSOR of rank 2 [row, column], dtype (fp16, bf16, fp32)
 *   1: w      KILN_ARG_TENSOR of rank 1, dtype (fp16, bf16, fp32)
 *   2: out    KILN_ARG_TENSOR of rank 2 [row, column], dtype (fp16, bf16, fp32)
 *   3: total  KILN_ARG_TENSOR of rank 1, fp32, or KILN_ARG_ABSENT
 *   4: eps    KILN_ARG_FLOAT
 *   choice columns_up_to: 1024, 4096; the smallest that is not below x.size[1]
 *   required: out must have the shape of x
"""


def test_a_header_says_how_the_family_is_called():
    header = family_header(recipe.load(RECIPES["norm"]), "0.1.0b")
    assert header.startswith(HEADER)
    assert "needs workspace" in header and "KILN_API const kiln_family* kiln_norm_family(void);" in header


def test_a_header_says_what_sizes_in_its_sentences_are(tmp_path):
    for name in ("rms_norm.py", "recipe.yaml"):
        shutil.copy(RECIPES["norm"].with_name(name), tmp_path)
    path = tmp_path / "recipe.yaml"
    text = path.read_text()
    text = text.replace(
        "      columns: x.size[1]", "      columns: x.size[1]\n      half: columns // 2\n      unsaid: half * 2"
    )
    text = text.replace("- {contiguous: w}", '- {contiguous: w}\n      - {shape: total, is: [">= half"]}')
    path.write_text(text)
    header = family_header(recipe.load(path), "0.1.0b")
    assert " *   required: total must have the shape [half or more]\n" in header
    assert " *   where columns = x.size[1], half = columns // 2\n" in header and "unsaid" not in header


@pytest.mark.parametrize("compiler", [["gcc", "-std=c89"], ["clang", "-std=c89"], ["g++", "-xc++", "-std=c++11"]])
@pytest.mark.parametrize("summary", [None, "a */ int oops; /* b ??/\n\\ // Größe " + "long " * 99 + "\\"])
def test_a_header_compiles_whatever_the_recipe_says(tmp_path, include, compiler, summary):
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"{compiler[0]} is not installed")
    norm = recipe.load(RECIPES["norm"])
    if summary:
        norm = replace(norm, summary=summary, operations=tuple(replace(o, summary=summary) for o in norm.operations))
    header = family_header(norm, "0.1.0b")
    assert all(len(line) <= 120 for line in header.splitlines())
    (tmp_path / "kiln/norm.h").write_text(header)
    (tmp_path / "use.c").write_text('#include "kiln/norm.h"\n#include "kiln/norm.h"\nint x;\n')
    command = [*compiler, "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *include, "use.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_implementations_and_descriptors():
    source = source_of("matmul")
    kernels = re.search(r"kiln_kernel_table matmul_kernels\[\] = \{\n(.*?)\n\};", source, re.DOTALL)[1].splitlines()
    assert [line.split(", ")[:2] for line in kernels] == [
        ['    {"matmul"', f'"{name}"'] for name in ("hopper", "cdna", "general")
    ]
    counts = [[int(word) for word in line.strip(" {},").split("}, ")[1].split(", ")] for line in kernels]
    assert [row[0] for row in counts] == [0, 0, 0], "all three are of the first kernel"
    assert [(row[2], row[6], row[7]) for row in counts] == [(6, 3, 1), (9, 0, 1), (12, 0, 3)]
    assert '"depth >= 64"' in kernels[0] and kernels[2].split(", ")[3:5] == ["nullptr", "nullptr"]
    rows = re.search(r"kiln_descriptor_table \w+\[\] = \{\n(.*?)\n\};", source, re.DOTALL)[1].splitlines()
    assert [row.split(", ")[:3] for row in rows] == [[f'    {{"{name}"', "2", "-1"] for name in "abc"]
    assert re.findall(r'\{"(sm_90)", 2, (\d+), .*, (\d+), 0\},', source) == [
        ("sm_90", "12000", "12070"),
        ("sm_90", "12000", "12000"),
    ]


def test_the_tables_have_the_reason_of_what_an_implementation_leaves_out():
    (text,) = set(re.findall(r'"\(head_dim > 64 [^"]*"', source_of("flash")))
    assert "head_dim > 128)): random numbers of dropout come by fours, which two threads" in text


def test_the_same_plan_gives_the_same_text():
    assert source_of("flash") == source_of("flash")


def test_a_build_without_images_names_no_digest():
    assert "ab, 0xab" not in source_of("norm")
    assert "0xab,0xab" in source_of("norm", {"sm_90": "ab" * 32})


def test_what_is_not_selected_leads_nowhere():
    """The look-up of a functional that is not in the build is 255 in each bin."""
    loaded = recipe.load(RECIPES["norm"])
    made = plan.make_plan([loaded], TARGETS[:1], "core", (("dtype", ("bf16",)),))
    kernel = next(k for k in made.kernels if k.kernel.name == "rms_norm")
    table = plan.lookup(kernel, {v.slot for v in made.variants if v.kernel == "rms_norm"})
    by_name = dict(zip((f.name for f in kernel.functionals), table, strict=True))
    assert all(value == (0 if "bf16" in name else 255) for name, value in by_name.items())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_a_c_string(text):
    literal = generate.c_string(text)
    body = literal[1:-1]
    assert literal[0] == literal[-1] == '"' and '"' not in body and "?" not in body
    assert all(32 <= ord(char) < 127 for char in body)
    decoded = bytearray()
    position = 0
    while position < len(body):
        if body[position] == "\\":
            decoded.append(int(body[position + 1 : position + 4], 8))
            position += 4
        else:
            decoded.append(ord(body[position]))
            position += 1
    assert bytes(decoded) == text.encode()
