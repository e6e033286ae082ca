"""The table of arguments: it says what flash.h says, and mistakes in it get a sentence."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kiln_build.native import argument_files, arguments
from kiln_build.release import package
from kiln_recipe.errors import RecipeError
from kiln_recipe.read import recipe

ROOT = Path(__file__).resolve().parents[1]
TABLE = arguments.read(ROOT / arguments.TABLE)
RECIPE = ROOT / "tritonsrc/flash/recipe.yaml"
# By kind the field's type in C.
TYPES = {
    "tensor": "const kiln_tensor*", "optional": "const kiln_tensor*", "integer": "int64_t", "real": "float",
    "scale": "float", "flag": "int32_t", "address": "void*", "keys": "const char* const*", "text": "const char*",
}  # fmt: skip


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("operation", TABLE.operations, ids=lambda operation: operation.name)
def test_the_table_is_the_structure_of_the_header(tmp_path, operation):
    """Each field has the type of its kind and the default that is stated, and no byte of the structure has none."""
    rows = [("size", "uint64_t", None)]
    for row in operation.fields:
        kind = "uint64_t" if row.field == "workspace_bytes" else TYPES[row.kind]
        rows.append((row.field, kind, row.default))
        if row.count:
            rows.append((row.count, "int32_t", 0))
    rows += [(name, "int32_t", 0) for name in operation.reserved]
    lines = [
        "#include <stddef.h>", "#include <stdio.h>", "#include <kiln/flash.h>",
        "#define FIELD(name, type) _Generic(&((P*)0)->name, type*: printf(\"%s %zu %zu\\n\", #name, "
        "offsetof(P, name), sizeof(type)))",
        f"typedef {operation.params} P;", f"static const P made = {operation.initializer};",
        "int main(void) {", '  printf("%zu\\n", sizeof(P));',
    ]  # fmt: skip
    for name, kind, default in rows:
        lines.append(f"  FIELD({name}, {kind});")
        if default is not None:
            lines.append(f'  if (made.{name} != {default or "0"}) printf("{name} is not {default} by default\\n");')
    (tmp_path / "kiln").mkdir()
    header = package.version_header((ROOT / "include/kiln/version.h.in").read_text(), "0.1.0b")
    (tmp_path / "kiln/version.h").write_text(header)
    (tmp_path / "fields.c").write_text("\n".join([*lines, "  return 0;", "}", ""]))
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", f"-I{ROOT / 'include'}", "fields.c"]
    done = subprocess.run([*command, "-o", "fields"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    total, *said = subprocess.run([tmp_path / "fields"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert not [line for line in said if "default" in line]
    covered = [byte for _, offset, size in map(str.split, said) for byte in range(int(offset), int(offset) + int(size))]
    assert sorted(covered) == list(range(int(total)))


def test_each_argument_of_the_recipe_is_one_of_the_table():
    loaded = recipe.load(RECIPE)
    header = argument_files.entries_header(loaded, TABLE)
    named = {operation.name: operation for operation in loaded.operations}
    assert named.keys() == {row.name for row in TABLE.operations} | set(TABLE.without_entry)
    for operation in (named[row.name] for row in TABLE.operations):
        body = header.partition(f"struct {TABLE.operation(operation.name).type} {{")[2].partition("static void add")[2]
        pushed = re.findall(r"to->(tensors|integer|real)\((.*)\);", body.partition("\n};")[0])
        count = sum(len(what.split(",")) if how == "tensors" else 1 for how, what in pushed)
        assert count == len(operation.arguments)


def test_gradients_are_results_of_the_backward():
    (forward, backward) = (TABLE.operation("attn_fwd"), TABLE.operation("attn_bwd"))
    assert {row.gradient for row in forward.arguments if row.gradient} == {result.field for result in backward.results}


def test_the_bits_of_flags_do_not_move():
    """They are arguments of torch.ops.kiln_native, of which older Python code may have some."""
    assert [*TABLE.flags.items()][:12] == [
        ("causal", 1), ("bottom_right", 2), ("rows_first", 4), ("return_lse", 8), ("for_backward", 16), ("alike", 32),
        ("need_dbias", 64), ("need_dsinks", 128), ("deterministic", 256), ("rotary_interleaved", 512),
        ("equal_heads", 1024), ("batch_invariant", 2048),
    ]  # fmt: skip


MISTAKES = {
    "a field of no operation": (
        "  softcap: {least", "  softcup: {least", "'softcup' is a field of no operation",
    ),
    "an argument twice": (
        "        v: {kind: tensor, gradient: dv}", "        v: {kind: tensor, gradient: dv}\n      - q: {kind: tensor}",
        "'q' stands in attn_fwd twice",
    ),
    "an argument that backward ignores": (
        "      - return_lse: {kind: flag, field: none}\n",
        "      - return_lse: {kind: flag, field: none}\n        score_offset: {kind: real}\n",
        "'score_offset' is an argument of attn_fwd and not of attn_bwd, whose gradients would ignore it",
    ),
    "a pair that backward ignores": (
        "      - return_lse: {kind: flag, field: none}\n",
        "      - return_lse: {kind: flag, field: none}\n"
        "        pair: {kind: optional, field: none, parts: [seed, offset]}\n",
        "'pair' is an argument of attn_fwd and not of attn_bwd, whose gradients would ignore it",
    ),
    "a flag without a bit": ("  - return_lse\n", "", "'return_lse' is a flag without a bit"),
    "a gradient that nothing gives": ("gradient: dv", "gradient: dw", "'v' has the gradient 'dw'"),
    "a result that is no field": ("results: {lse: {}}", "results: {lze: {}}", "the result 'lze' is no field of kiln_"),
    "a shape without a dtype": (", dtype: dtype}}", "}}", "'mask': all results of an operation have `shape` and"),
    "some shapes": ("{out: {}, lse", "{out: {shape: [1], dtype: q}, lse", "'out': all results of an operation have"),
    "a shape of no argument": ("[batch, heads, rows, keys]", "[batch, head]", "is by 'head', which is no argument"),
    "an unknown dtype": ("dtype: dtype}}", "dtype: half}}", "the dtype of 'mask' is 'half'; it must be one of Kiln's"),
    "sizes of a number": (
        "[batch, heads, rows, keys]", "[batch, heads, rows, \"keys.size[0]\"]",
        "is by keys.size; what has sizes is a tensor's",
    ),
    "a word that no tensor has": ("[batch, heads, rows, keys]",
        "[\"rng.sizes[0]\"]", "is by rng.sizes; what has sizes is"),
    "the shape of a number": ("[batch, heads, rows, keys], dtype", "rows, dtype", "is by rows.size; what has sizes is"),
    "too few parts": ("parts: [seed, offset]", "parts: [seed]", "'rng' has 1 parts; they are two"),
    "a part that is no field": ("parts: [seed, offset]", "parts: [seed, place]", "the part 'place', which is no field"),
    "a simple operation that writes": (
        "dtype: {kind: dtype, field: none}", "dtype: {kind: dtype, field: none, written: true}",
        "an argument of attn_fwd_fp8 is written",
    ),
    "no default behind defaults": (
        "        return_lse: {kind: flag, field: none}\n", "        last: {kind: tensor}\n",
        "'last' has no default and stands behind arguments that have one",
    ),
    "keys without a count": ("{kind: keys, count: force_count}", "{kind: keys}", "'force_keys': `count`"),
    "an unknown kind": ("softcap: {kind: real}", "softcap: {kind: reel}", "is 'reel'; it must be"),
    "an unknown word": ("{kind: flag, field: none}", "{kind: flag, feild: none}", "'feild'"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(tmp_path, mistake):
    old, new, sentence = MISTAKES[mistake]
    text = (ROOT / arguments.TABLE).read_text()
    assert old in text
    path = tmp_path / "arguments.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(RecipeError) as refused:
        arguments.read(path)
    assert re.match(rf"{re.escape(str(path))}:\d+: ", str(refused.value)) and sentence in str(refused.value)


SIMPLE = """
  merge:
    arguments:
      - x: {kind: tensor}
        y: {kind: tensor}
        rows: {kind: integer, field: none, required: true}
        sinks: {kind: optional, dtype: fp32}
        pair: {kind: optional, field: none, parts: [seed, offset]}
        count: {kind: integer, default: -1}
        softcap: {kind: real}
        causal: {kind: flag}
    results:
      out: {shape: x, dtype: x}
      sums: {shape: [rows, "2 * y.size[1]"], dtype: fp32}
    fields:
      - {out: {kind: tensor}, sums: {kind: tensor}, seed: {kind: optional}, offset: {kind: optional}}
"""


def test_results_lie_where_the_first_argument_does(tmp_path):
    path = tmp_path / "arguments.yaml"
    path.write_text((ROOT / arguments.TABLE).read_text() + SIMPLE.replace("x: {kind: tensor}", "x: {kind: optional}"))
    with pytest.raises(RecipeError, match="the first argument of merge must be a tensor|has no default and stands"):
        arguments.read(path)
    numbers = "      - {rows: {kind: integer, field: none, required: true}}\n"
    start, end = SIMPLE.index("      - x:"), SIMPLE.index("    results:")
    text = SIMPLE[:start] + numbers + SIMPLE[end:].replace("{shape: x, dtype: x}", "{shape: [rows], dtype: fp32}")
    path.write_text((ROOT / arguments.TABLE).read_text() + text.replace('[rows, "2 * y.size[1]"]', "[rows]"))
    with pytest.raises(RecipeError, match="the first argument of merge must be a tensor: its results are made where"):
        arguments.read(path)


def test_an_operation_of_which_the_table_tells_all(tmp_path):
    """Its operators, and what packs a call of them; bindings/torch and the recipe's engines run it by these."""
    path = tmp_path / "arguments.yaml"
    path.write_text((ROOT / arguments.TABLE).read_text() + SIMPLE)
    table = arguments.read(path)
    made = {}
    exec(argument_files.python_module(table), made)
    assert made["SCHEMAS"]["merge"] == (
        "(Tensor x, Tensor y, SymInt rows, Tensor? sinks=None, Tensor? pair=None, SymInt count=-1, float softcap=0., "
        "bool causal=False) -> (Tensor out, Tensor sums)"
    )
    header = " ".join(re.sub(r'"\n\s*"', "", argument_files.torch_header(table)).split())
    assert (
        '"merge(Tensor x, Tensor y, Tensor out, Tensor sums, Tensor[] extras, int which=0, int flags=0, '
        'float softcap=0., int count=-1) -> int status"'
    ) in header
    for line in (
        'call.tensor(3, "sums", &sums);', "call.extras<Merge>(4, tensors, extras);", "params.sinks = extras[kSinks];",
        'call.split(*extras[kPair], "pair", &seed, &offset);', "params.softcap = call.real(7);",
        "params.count = call.integer(8);", "params.causal = (call.integer(6) & kCausal) != 0;",
    ):  # fmt: skip
        assert line in header

    class Array(tuple):
        @property
        def shape(self):
            return tuple(self)

    x, y = Array((2, 3)), Array((4, 5))
    assert made["native_merge"](x, y, 7, None, "pair", causal=True) == ((x, y), ["pair"], (2, 1, 0.0, -1))
    given = made["by_name"]("merge", (x, y), {"rows": 7})
    assert [(r.field, r.shape(given), r.like, r.dtype) for r in made["RESULTS"]["merge"]] == [
        ("out", (2, 3), "x", None), ("sums", (7, 10), None, "float32"),
    ]  # fmt: skip
    with pytest.raises(IndexError):
        made["RESULTS"]["merge"][1].shape({**given, "y": Array((4,))})


BEYOND = {
    "no row": ("  dropout_mask:\n", "  dropout_masks:\n", "the recipe's operation dropout_mask has no row"),
    "a tensor of another kind": (
        "        lse: {kind: optional}",
        "        lse: {kind: tensor}",
        "the optional tensor lse",
    ),
    "no field": ('  wanted_splits: "splits"\n', "", "has the argument wanted_splits, which is no field"),
}


@pytest.mark.parametrize("mistake", BEYOND)
def test_what_the_recipe_has_and_the_table_lacks(tmp_path, mistake):
    old, new, sentence = BEYOND[mistake]
    text = (ROOT / arguments.TABLE).read_text()
    assert old in text
    path = tmp_path / "arguments.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(RecipeError, match=sentence):
        argument_files.entries_header(recipe.load(RECIPE), arguments.read(path))


# ---- no second list -------------------------------------------------------------------------------------------------

# What users see: signatures with their documentation, and what hands them on.
SEEN_BY_USERS = {
    "bindings/python/kiln/attention.py", "bindings/python/kiln/torch/functions.py", "bindings/python/kiln/torch/fp8.py",
    "bindings/python/kiln/torch/flash_attn.py",
}  # fmt: skip
# Written from those signatures, which tests/test_types.py checks.
WRITTEN = {"bindings/python/kiln/_keywords.pyi", "bindings/python/kiln/torch/_keywords.pyi"}
# The shortcut past the dispatcher, which takes what the table calls plain and nothing else.
SHORTCUT = {"bindings/core/shortcut.cc", "bindings/core/shortcut.h", "bindings/python/kiln/_core.pyi"}
# Names that mean other things elsewhere too.
COMMON = {"batch", "causal", "dropout", "dtype", "heads", "scale", "splits", "workspace"}
NAMES = {
    name
    for operation in TABLE.operations
    for row in (*operation.arguments, *operation.others)
    for name in (row.name, row.field)
    if name and len(name) > 4 and name not in COMMON
}  # fmt: skip
WORDS, MOST = 24, 6


def lists(text: str) -> set[int]:
    """The lines at which so many words begin of which so many are different names of arguments."""
    words = [(word[0], word.start()) for word in re.finditer(r"[A-Za-z_]\w*", text)]
    return {
        text[: words[first][1]].count("\n") + 1
        for first in range(len(words))
        if len({word for word, _ in words[first : first + WORDS]} & NAMES) >= MOST
    }


def test_there_is_no_second_list():
    found = {}
    for folder in ("csrc/core", "csrc/flash", "bindings", "v3python"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cc", ".h", ".py", ".pyi", ".jinja") and (lines := lists(path.read_text())):
                found[path.relative_to(ROOT).as_posix()] = min(lines)
    assert found.keys() == SEEN_BY_USERS | SHORTCUT | WRITTEN, found
    assert lists((ROOT / "include/kiln/flash.h").read_text())
