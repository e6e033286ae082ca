"""YAML into structs: each mistake has its line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta

from kiln_recipe.documents.document import read
from kiln_recipe.errors import EnvironmentProblem, RecipeError
from kiln_recipe.suggest import nearest


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=1)]
    name: str = ""
    few: Annotated[int, Meta(ge=0, le=8)] = 0


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    leaves: dict[str, Leaf]
    order: tuple[int | str, ...] = ()
    on: bool = False


def written(folder: Path, text: str) -> Path:
    path = folder / "tree.yaml"
    path.write_text(text)
    return path


def test_values_and_lines(tmp_path):
    document = read(written(tmp_path, "leaves:\n  a: {size: 1}\n  b:\n    size: 2\norder:\n  - 3\n  - x\n"), Tree)
    assert document.value == Tree({"a": Leaf(1), "b": Leaf(2)}, (3, "x"))
    lines = {("leaves",): 1, ("leaves", "a"): 2, ("leaves", "b", "size"): 4, ("order", 1): 7, ("no", "such"): 1}
    for keys, line in lines.items():
        assert document.place(keys) == f"{tmp_path}/tree.yaml:{line}"
    with pytest.raises(RecipeError, match=r"tree.yaml:4: no good$"):
        document.fail(("leaves", "b", "size", "deeper"), "no good")


def test_merged_mappings_keep_their_own_lines(tmp_path):
    document = read(written(tmp_path, "leaves:\n  a: &a {size: 1, name: x}\n  b:\n    <<: *a\n    size: 2\n"), Tree)
    assert document.value.leaves["b"] == Leaf(2, "x")
    assert document.place(("leaves", "b", "size")).endswith(":5")


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("leaves: {}\norders: []\n", 2, "has the unknown field 'orders'; did you mean 'order'? the fields are leaves"),
        ("leaves:\n  a: {siz: 1}\n", 2, "leaves.a has the unknown field 'siz'; did you mean 'size'"),
        ("leaves:\n  a:\n    size: big\n", 3, "leaves.a.size is 'big'; it must be an integer of 1 or more"),
        ("leaves:\n  a:\n    size: 0\n", 3, "leaves.a.size is 0; it must be an integer of 1 or more"),
        (
            "leaves:\n  a:\n    size: 9223372036854775808\n",
            3,
            "leaves.a.size is 9223372036854775808; it must be an integer",
        ),
        ("leaves:\n  a:\n    size: true\n", 3, "leaves.a.size is true; it must be an integer"),
        ("leaves:\n  a:\n    size: 1.5\n", 3, "leaves.a.size is 1.5"),
        ("leaves:\n  a:\n    name: x\n", 3, "leaves.a lacks the field 'size'"),
        ("leaves:\n  a:\n", 2, "leaves.a is empty; it must be a mapping"),
        ("leaves: [1]\n", 1, "leaves is a list; it must be a mapping"),
        ("leaves: {}\norder:\n  - 1\n  - {}\n", 4, "order[1] is a mapping; it must be an integer of 64 bits or text"),
        ("leaves: {}\non: 1\n", 2, "on is 1; it must be true or false"),
        ("leaves: {}\non: yes\n", 2, "on is 'yes'; it must be true or false"),
        ("leaves: {}\n1: 1\n", 2, "the file has the unknown field 1;"),
        ("order: []\n", 1, "the file lacks the field 'leaves'"),
        ("- 1\n", 1, "the file is a list; it must be a mapping"),
        ("leaves:\n  a: {size: 1}\n  a: {size: 2}\n", 3, "'a' appears a second time"),
        ("leaves:\n  1: {size: 1}\n", 2, "has the key 1; a key must be text"),
        ("leaves: {a\n", 2, "is not valid YAML"),
        (
            "leaves: *b\n",
            1,
            'is not valid YAML: found undefined alias in column 9; a text that begins with * stands in quotes: "*b"',
        ),
        ("leaves:\n\ta: {size: 1}\n", 2, "; the line begins with a tab, and YAML indents with spaces alone"),
        ("leaves: {a: {size: 1, name: @x}}\n", 1, "; a text that begins with @ stands in quotes"),
        (
            "order: [x.size[0], 1]\n",
            1,
            'in a list or mapping on one line an expression with brackets stands in quotes: "x.size[0]"',
        ),
        ("leaves:\n  a:\n    size: 1\n     name: x\n", 4, "; is the line indented like its neighbours?"),
        ("leaves:\n  a:\n    size: 1\n   name: x\n", 4, "does the line begin under the one that it belongs to?"),
        ("leaves:\n  a: {size: 1, name: \0}\n", 2, "is not valid YAML: the character U+0000 cannot stand there"),
        ("leaves: {a: {size: 1, few: 9}}\n", 1, "leaves.a.few is 9; it must be an integer from 0 to 8"),
        (
            "leaves: !!python/object:os.system {}\n",
            1,
            "has the tag 'tag:yaml.org,2002:python/object:os.system'; no value here has one",
        ),
        ("a: &a [*a]\n", 1, ""),
        ("", 1, "is empty"),
        ("--- 1\n--- 2\n", 2, "is not valid YAML"),
        ("order: " + "[" * 60 + "]" * 60, 1, "is too large or nested too deep"),
        ("order: " + "[" * 200_000, 1, "is too large or nested too deep"),
        ("order: " + "{a: " * 200_000, 1, "is too large or nested too deep"),
        ("".join(f"{' ' * n}a:\n" for n in range(1000)), 41, "is too large or nested too deep"),
        ("- " * 100_000, 1, "is too large or nested too deep"),
        ("? " * 100_000, 1, "is too large or nested too deep"),
        ("&a [x, x]\n" * 2, 2, "is not valid YAML"),
        (
            "a: &a [x, x]\n"
            + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{(f'*{chr(97 + n)},') * 9}]\n" for n in range(9)),
            6,
            "is too large or nested too deep",
        ),
        ("leaves: {a: {size: " + "1" * 100_000 + "}}\n", 1, "has 100000 characters without quotes"),
        ("leaves: {a: {size: 0x" + "f" * 4000 + "}}\n", 1, "leaves.a.size is a number far beyond 64 bits"),
        ("leaves: !!int ''\n", 1, "has the tag"),
        ("word " * 100, 1, f"the file is '{('word ' * 20)[:76]}...; it must be a mapping"),
        (f"leaves: {{}}\n{'x' * 100}: 1\n", 2, f"has the unknown field '{'x' * 76}...; the fields are"),
        ("leaves: !!timestamp x\n", 1, "has the tag"),
        ("x" * (5 << 20), 1, "bytes; it can have 4194304"),
    ],
)
def test_mistakes(tmp_path, text, line, part):
    with pytest.raises(RecipeError) as caught:
        read(written(tmp_path, text), Tree)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/tree.yaml:{line}: ") and part in message and "\n" not in message


def test_a_small_file_that_aliases_make_huge_is_refused(tmp_path):
    lines = ["leaves: {}", "order:", "  - &a0 1"] + [f"  - &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(12)]
    with pytest.raises(RecipeError):
        read(written(tmp_path, "\n".join(lines)), Tree)


def test_scalars_are_those_of_yaml_1_2(tmp_path):
    path = written(tmp_path, "leaves: {}\norder: [no, 010, '1', 1, -1, 0x10, 1:30, 2001-01-01, 1_000]\non: True\n")
    document = read(path, Tree)
    assert document.value.order == ("no", "010", "1", 1, -1, 16, "1:30", "2001-01-01", "1_000")
    assert document.value.on


def test_no_file(tmp_path):
    with pytest.raises(EnvironmentProblem, match=r"tree.yaml cannot be read \(No such file"):
        read(tmp_path / "tree.yaml", Tree)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "tree.yaml").write_bytes(b"leaves: {}\non: \xff\n")
    with pytest.raises(RecipeError, match=r"tree.yaml:2: is not valid YAML: the byte 0xff is not UTF-8"):
        read(tmp_path / "tree.yaml", Tree)


def test_what_is_not_a_file_is_refused_unopened(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    with pytest.raises(EnvironmentProblem, match=r"pipe is a pipe; give a YAML file that is there$"):
        read(tmp_path / "pipe", Tree)
    with pytest.raises(EnvironmentProblem, match=r"^/dev/null is a device; give a YAML file that is there$"):
        read(Path("/dev/null"), Tree)
    with pytest.raises(EnvironmentProblem, match=r"cannot be read \(Is a directory\); give a YAML file"):
        read(tmp_path, Tree)


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=150)
@given(st.one_of(st.binary(max_size=60), st.text(st.sampled_from("leaves: order{}[]-&*!<|>\n\t 'a1\"#"), max_size=60)))
def test_read_is_total(tmp_path, content):
    path = tmp_path / "any.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        read(path, Tree)
    except RecipeError as error:
        assert str(error).startswith(f"{path}:")


def test_nearest():
    assert nearest("grdi", ["grid", "zero"]) == "did you mean 'grid'? the fields are grid, zero"
    assert nearest("x", ["grid"], "ones") == "the ones are grid"
    assert nearest("x", []) == "there are no fields"
    # Numbers by their distance, not by their digits; far away, none.
    for word, meant in (("100", "96"), ("129", "128"), ("513", "512"), ("8", "16"), ("0", None), ("4000", None)):
        said = f"did you mean '{meant}'? " if meant else ""
        assert nearest(word, ["16", "96", "128", "160", "512"]) == f"{said}the fields are 16, 96, 128, 160, 512"
    assert nearest("100", ["1000 x", "10x"]) == "the fields are 1000 x, 10x"


@pytest.mark.parametrize(
    ("word", "meant"),
    [("float16", "fp16"), ("half", "fp16"), ("bfloat16", "bf16"), ("float", "fp32"), ("torch.float64", "fp64")],
)
def test_what_others_call_a_dtype(word, meant):
    assert nearest(word, ("fp32", "fp16", "bf16", "fp64", "int8")).startswith(f"did you mean '{meant}'? the fields are")
    assert nearest(word, ("x",)) == "the fields are x"
