"""The table of targets, and every spelling that leads to one."""

from __future__ import annotations

import argparse
import json
import re
from importlib import resources

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kiln_build.cli import targets as verb
from kiln_recipe import plain_yaml, targets
from kiln_recipe.errors import UsageError


def names(text: str) -> list[str]:
    return [target.name for target in targets.parse(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MI300X;MI200;Navi31;sm_80;sm_90", ["gfx90a", "gfx942", "gfx1100", "sm_80", "sm_90"]),
        ("gfx942", ["gfx942"]),
        ("GFX942", ["gfx942"]),
        ("mi300a, mi325x", ["gfx942"]),
        ("MI210 MI250 MI250X", ["gfx90a"]),
        ("MI350X MI355X", ["gfx950"]),
        ("Navi31 Navi32 Navi33", ["gfx1100", "gfx1101", "gfx1102"]),
        ("Navi44 Navi48", ["gfx1200", "gfx1201"]),
        ("sm_90", ["sm_90"]),
        ("90", ["sm_90"]),
        ("9.0", ["sm_90"]),
        ("90-real", ["sm_90"]),
        ("90a", ["sm_90"]),
        ("sm_90a", ["sm_90"]),
        ("90a-real", ["sm_90"]),
        ("12.0", ["sm_120"]),
        ("RTX 4090", ["sm_89"]),
        ("rtx4090", ["sm_89"]),
        ("A100 RTX 4090 H100", ["sm_80", "sm_89", "sm_90"]),
        ("RTX 4070 Ti Super", ["sm_89"]),
        ("RTX 3070 Ti RTX 4070", ["sm_86", "sm_89"]),
        ("L4", ["sm_89"]),
        ("L40S", ["sm_89"]),
        ("A10", ["sm_86"]),
        ("H200;GH200;H100", ["sm_90"]),
        ("B200", ["sm_100"]),
        ("RTX 5090", ["sm_120"]),
        ("cdna3", ["gfx942"]),
        ("sm_90;  sm_80 ,sm_90", ["sm_80", "sm_90"]),
    ],
)
def test_spellings(text, expected):
    assert names(text) == expected


def test_the_table_is_read_as_yaml_is_and_has_the_right_types():
    """The reader without packages knows a part of YAML alone."""
    text = resources.files("kiln_recipe").joinpath(targets.TABLE).read_text()
    assert targets.rows() == yaml.safe_load(text)["targets"]
    assert plain_yaml.read(text) == yaml.safe_load(text)
    msgspec.convert(targets.rows(), list[targets.Target])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("    names: 'a'", "needs quotes"),
        ("    names: [a, [b]]", "needs quotes"),
        ("    names: [a, 'b]", "needs quotes"),
        ("    names: [a, b", "needs quotes"),
        ("    names: |", "needs quotes"),
        ("    names: yes", "needs quotes"),
        ("    names: 0x10", "needs quotes"),
        ("    names: 1_000", "needs quotes"),
        ("    names: a # b", "needs quotes"),
        ("    names: {a: 1, b}", "not a field"),
        ("    names: *nothing", "'nothing'"),
        ("    <<: *base", "a merge stands first"),
        ("    names:", "not a field"),
        ("      names: a", "not an entry"),
        ("  names: a", "indented as no field is here"),
        ("names: a", "not an entry"),
    ],
)
def test_what_the_reader_of_the_table_does_not_know_is_refused(line, said):
    text = "base: &base\n  abi: 1\n\n# of this\ntable:\n  - <<: *base\n    name: a\n"
    assert plain_yaml.read(text) == yaml.safe_load(text)
    with pytest.raises(ValueError, match="line 8 cannot be read") as caught:
        plain_yaml.read(f"{text}{line}\n")
    assert said in str(caught.value)


@given(
    st.recursive(
        st.sampled_from(
            [
                "a b",
                "1",
                "1.5",
                '"1"',
                "true",
                "x: y",
                "[",
                "'",
                "0b1",
                "1e3",
                "~",
                "-",
                "",
                "- a",
                "=",
                "1:20",
                ".5",
                "2001-01-01",
                "a,b",
                "!x",
                "None",
            ]
        ),
        lambda inner: st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        max_leaves=4,
    )
)
def test_what_the_reader_of_the_table_takes_it_reads_as_yaml(value):
    text = f"table:\n  - name: {value}\n"
    try:
        made = plain_yaml.read(text)
    except ValueError:
        return
    assert made == yaml.safe_load(text)


def test_all_means_all():
    assert targets.parse("all") == targets.load()
    assert targets.parse("All;sm_90") == targets.load()


@pytest.mark.parametrize("target", targets.load(), ids=lambda t: t.name)
def test_every_name_of_the_table_is_a_spelling(target):
    for name in (target.name, *target.names):
        assert names(name) == [target.name]
        assert names(f"gfx90a {name} sm_80") == [
            t.name for t in targets.load() if t.name in ("gfx90a", target.name, "sm_80")
        ]


@pytest.mark.parametrize(
    ("text", "entry", "nearest"),
    [
        ("MI300Y", "'MI300Y'", "MI300"),
        ("sm_91", "'sm_91'", "sm_90"),
        ("gfx943", "'gfx943'", "gfx942"),
        ("sm_90;GTX 4090", "'GTX'", "RTX 4090"),
        ("80a", "'80a'", "80"),
        ("90-virtual", "'90-virtual'", "sm_90"),
        ("sm_80-virtual", "'sm_80-virtual'", "sm_80"),
        ("compute_90", "'compute_90'", "sm_90"),
        ("91-virtual", "'91-virtual'", "sm_90"),
        ("gfx90a:sramecc+:xnack-", "'gfx90a:sramecc+:xnack-'", "gfx90a"),
        ("gfx942-virtual", "'gfx942-virtual'", "gfx942"),
        ("gfx943:xnack+", "'gfx943:xnack+'", "gfx942"),
    ],
)
def test_what_is_unknown_is_named_with_the_nearest_and_the_list(text, entry, nearest):
    with pytest.raises(UsageError) as caught:
        targets.parse(text)
    message = str(caught.value)
    assert entry in message and f" {nearest}," in message
    vendor = targets.parse(nearest)[0].vendor if re.match("'(gfx|sm_|compute_|[0-9])", entry) else None
    assert all(target.name in message for target in targets.load() if vendor in (None, target.vendor))
    assert "\n" not in message and caught.value.exit_code == 2


@pytest.mark.parametrize("word", ["foo", "bogus", "--help", "volta"])
def test_a_word_that_is_like_none_gets_no_guess(word):
    with pytest.raises(UsageError, match=f"^unknown target '{word}'; the targets are gfx908, "):
        targets.parse(word)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gfx900;gfx906;gfx942;gfx1030", "Kiln has no target for gfx900, gfx906, gfx1030; AMD's targets are gfx908, "),
        ("gfx906:sramecc+:xnack- gfx90a gfx1103", "Kiln has no target for gfx906, gfx1103; AMD's "),
        ("7.5;8.0;sm_70;75-real", "Kiln has no target for 7.5, sm_70, 75-real; NVIDIA's targets are sm_80, "),
        ("gfx906;sm_75", "Kiln has no target for gfx906, sm_75; the targets are gfx908, "),
        (
            "gfx906;sm_91;H100",
            "Kiln has no target for gfx906; unknown target 'sm_91'; the nearest is sm_90, the targets ",
        ),
        ("RTX 9999;foo bar", "unknown target 'RTX'; the nearest is RTX "),
        ("RTX 9999;foo bar", "; unknown target 'foo'; the targets are gfx908, "),
    ],
)
def test_every_unknown_target_is_named_at_once(text, said):
    with pytest.raises(UsageError) as caught:
        targets.parse(text)
    assert (
        said in str(caught.value) and str(caught.value).count(" are gfx908") + str(caught.value).count("are sm_80") == 1
    )


def test_of_many_unknown_targets_a_sentence_names_some():
    with pytest.raises(UsageError, match="; 988 more are unknown; the targets are ") as caught:
        targets.parse(";".join(f"word{number}" for number in range(1000)))
    assert len(str(caught.value)) < 1200


def test_no_target_is_called_foreign():
    assert not {targets._other(target.name) for target in targets.load()} & targets._OTHERS


@pytest.mark.parametrize("text", ["", " ", ";", "sm_80;;sm_90", "sm_80;", ",sm_80", "sm_80; ,sm_90"])
def test_an_empty_entry_is_refused(text):
    with pytest.raises(UsageError, match=r"^empty target.*gfx942"):
        targets.parse(text)


@given(st.text(max_size=30))
def test_parse_is_total(text):
    try:
        chosen = targets.parse(text)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert chosen and set(chosen) <= set(targets.load())


def test_the_table_is_consistent():
    table = targets.load()
    known = {target.name for target in table}
    assert len(known) == len(table)
    spelled = [name.casefold() for target in table for name in (target.name, *target.names, *set(target.groups))]
    assert len({n for n in spelled if spelled.count(n) > 1} - {g for t in table for g in t.groups}) == 0
    for target in table:
        assert target.name in target.runs_on and set(target.runs_on) <= known
        assert target.groups[0] == target.vendor
        if target.vendor == "nvidia":
            assert target.assembler in ("ptxas", "ptxas-blackwell") and target.ptx_version >= 80
            assert target.architecture_specific == (target.triton_arch >= 90)  # as Triton does
            assert target.runs_on == (target.name,) or not target.architecture_specific
            # Compatibility is with higher minor revisions of the same major only.
            assert all(name[:-1] == target.name[:-1] and name >= target.name for name in target.runs_on)
        else:
            assert not target.assembler and not target.ptx_version and target.triton_arch == target.name


def test_specificity():
    target = targets.by_name("gfx942")
    order = ["sm_90", "default", "amd", "cdna", "cdna3", "gfx942"]
    assert sorted(order, key=target.specificity) == order
    assert [target.is_called(name) for name in order] == [False, True, True, True, True, True]


def _run(capsys, *words: str) -> str:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    assert verb.run(parser.parse_args(words)) == 0
    return capsys.readouterr().out


def test_the_verb_prints_the_table(capsys):
    lines = _run(capsys).splitlines()
    assert len(lines) == 1 + len(targets.load())
    assert "MI300X" in next(line for line in lines if line.startswith("gfx942"))


def test_the_verb_prints_json_of_a_selection(capsys):
    (row,) = json.loads(_run(capsys, "RTX", "4090", "--json"))
    assert row["name"] == "sm_89" and row["shared_memory"] == 101376 and row["runs_on"] == ["sm_89"]
