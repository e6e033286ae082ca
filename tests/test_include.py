"""`include`: shared mappings and lists in the places that name them."""

from __future__ import annotations

import pytest
import yaml

from kiln_recipe.documents import document
from kiln_recipe.documents.file import RecipeShape
from kiln_recipe.errors import RecipeError
from kiln_recipe.read import recipe
from small_recipe import RECIPE

SHARED = """family: f
shared:
  pair: {rows: "x.size[0]", columns: "x.size[1]"}
  more: {include: pair, area: rows * columns}
  sizes:
    - {that: rows > 0, otherwise: no rows}
  both:
    - include: sizes
    - {that: columns > 0, otherwise: no columns}
operations:
  o:
    arguments: {x: {tensor: fp32, rank: 2}}
    define:
      first: x.dtype
      include: more
      columns: "7"
    require:
      - {that: "1", otherwise: first}
      - include: both
      - {that: "1", otherwise: last}
    kernels:
      k: {source: k.py, grid: [1], configurations: [{}]}
"""


def read(folder, text):
    path = folder / "recipe.yaml"
    path.write_text(text)
    return document.read(path, RecipeShape)


def test_entries_stand_where_they_are_included_and_own_ones_win(tmp_path):
    found = read(tmp_path, SHARED)
    operation = found.value.operations["o"]
    assert list(operation.define.items()) == [
        ("first", "x.dtype"), ("rows", "x.size[0]"), ("columns", "7"), ("area", "rows * columns"),
    ]  # fmt: skip
    assert [r.otherwise for r in operation.require] == ["first", "no rows", "no columns", "last"]
    assert found.place(("operations", "o", "require", 1)) == f"{tmp_path}/recipe.yaml:6"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("include: more", "include: mroe", 15, "include names the unknown block 'mroe'; did you mean 'more'?"),
        ("include: more", "include: sizes", 15, "the shared block 'sizes' is no mapping, and it is included in one"),
        ("include: both", "include: more", 19, "the shared block 'more' is no list, and it is included in one"),
        ("include: pair,", "include: more,", 4, "the shared block 'more' includes itself"),
        ("include: more", "include: [more, pair]", 15, "'rows' stands in 'more' and in 'pair'"),
        ("include: more", "include: {}", 15, "include takes the name of a shared block, or a list of names"),
        ("  sizes:", "  spare: {}\n  sizes:", 5, "nothing includes the shared block 'spare'"),
        ("that: rows > 0", "taht: rows > 0", 6, "has the unknown field 'taht'; did you mean 'that'?"),
    ],
)
def test_mistakes(tmp_path, old, new, line, says):
    assert SHARED.count(old) == 1
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, SHARED.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path}/recipe.yaml:{line}: ") and says in str(caught.value)


def test_blocks_cannot_multiply_without_end(tmp_path):
    blocks = "".join(f"  b{i}: [{{include: b{i + 1}}}, {{include: b{i + 1}}}]\n" for i in range(30))
    text = SHARED.replace("  sizes:", f"{blocks}  b30: [x]\n  sizes:").replace("- include: both", "- include: b0")
    with pytest.raises(RecipeError, match="too large with what it includes"):
        read(tmp_path, text.replace("- include: sizes", "- include: [sizes, both2]").replace("both2", "sizes"))


def test_the_schema_knows_it():
    jsonschema = pytest.importorskip("jsonschema")
    schema = recipe.schema()
    text = RECIPE.replace("    require:\n", "    require:\n      - include: [a, b]\n")
    text = text.replace("      rows: x.size[0]", "      include: c\n      rows: x.size[0]").replace(
        "family: small\n", "family: small\nshared: {a: [], b: [{}], c: {d: e}}\n"
    )
    jsonschema.validate(yaml.safe_load(text), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text.replace("include: [a, b]", "include: 3")), schema)
