"""The expressions: what they accept, and that Python and C++ compute the same."""

from __future__ import annotations

import contextlib
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kiln_recipe.expressions import CPP_PROLOGUE, INT64_MAX, INT64_MIN, ExpressionError, Fault, parse

ENV = {
    "a": 7,
    "b": -3,
    "zero": 0,
    "big": INT64_MAX,
    "small": INT64_MIN,
    "q.size[2]": 100,
    "q.data": 4096,
    "BLOCK_M": 64,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("a // b", -3),
        ("a % b", -2),
        ("-a // 2", -4),
        ("cdiv(a, 2)", 4),
        ("cdiv(-a, 2)", -3),
        ("cdiv(q.size[2], BLOCK_M)", 2),
        ("align(a, 16)", 16),
        ("align(-17, 16)", -16),
        ("log2(1)", 0),
        ("log2(a)", 2),
        ("log2(big)", 62),
        ("next_power_of_2(a)", 8),
        ("next_power_of_2(8)", 8),
        ("next_power_of_2(small)", 1),
        ("next_power_of_2(4611686018427387904)", 2**62),
        ("given(q)", 1),
        ("8 * given(q) + (not given(q))", 8),
        ("min(a, b, 4)", -3),
        ("max(a, b, 4)", 7),
        ("a > b", 1),
        ("1 < a < 7", 0),
        ("1 < a <= 7 == 7", 1),
        ("a and b", 1),
        ("zero or b", 1),
        ("zero or zero", 0),
        ("not a", 0),
        ("not zero == 0", 0),
        ("zero and 1 // zero", 0),
        ("a or 1 // zero", 1),
        ("8 if a == 7 else 1 // zero", 8),
        ("1 // zero if zero else b", -3),
        ("-9223372036854775808", INT64_MIN),
        ("9223372036854775807", INT64_MAX),
        ("small % -1", 0),
        ("bf16", 3),
        ("true", 1),
        ("False", 0),
        ("sizeof(bf16) + sizeof(fp32)", 6),
        ("a\n  + 1", 8),
        ("0x10", 16),
    ],
)
def test_values(text, value):
    assert parse(text).evaluate(ENV) == value


@pytest.mark.parametrize(
    "text",
    ["big + 1", "small - 1", "big * 2", "-small", "small // -1", "cdiv(small, -1)", "a // zero", "a % zero",
     "cdiv(a, zero)", "1 // zero + 5", "sizeof(99)", "zero * (1 // zero)", "min(1, 2 // zero)", "1 < 2 // zero",
     "align(a, zero)", "align(big, 2)", "log2(zero)", "log2(b)", "next_power_of_2(big)"],
)  # fmt: skip
def test_faults(text):
    with pytest.raises(Fault):
        parse(text).evaluate(ENV)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("a +", "cannot be read"),
        ("a / b", "say '//'"),
        ("1.5", "the only literals are integers"),
        ("'x'", "the only literals are integers"),
        ("9223372036854775808", "does not fit int64_t"),
        ("a ** 2", "'a ** 2'"),
        ("a @ b", "not one of"),
        ("abs(a)", "calls abs"),
        ("q.size(1)", "calls q.size"),
        ("min(a)", "2 to 64 operands"),
        ("cdiv(a)", "it takes 2 operands"),
        ("sizeof(a, b)", "it takes 1 operand"),
        ("log2(a, b)", "it takes 1 operand"),
        ("align(a)", "it takes 2 operands"),
        ("given(q.data)", "the name of a tensor alone"),
        ("min(*a)", "plain operands"),
        ("min(a, b, key=a)", "plain operands"),
        ("a[0]", "'a[0]'"),
        ("q.size[a]", "'q.size[a]'"),
        ("q.size[-1]", "'q.size[-1]'"),
        ("q.size[0].x", "not one of"),
        ("lambda: 1", "not one of"),
        ("[a]", "not one of"),
        ("a in b", "not one of"),
        ("(a := 1)", "not one of"),
        ("a; b", "cannot be read"),
        ("1 < (2 < a < 3) < 4", "join them with `and`"),
        ("ä", "not one of"),
        ("-" * 300 + "1", "deep"),
        ("(" * 500 + "1" + ")" * 500, ""),
        ("1+" * 1500 + "1", "longer than"),
        ("a\0", "cannot be read"),
    ],
)
def test_what_is_refused(text, part):
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert part in str(caught.value)


def test_names():
    assert parse("cdiv(q.size[2], BLOCK_M) * bf16 + given(q) + q.size[2]").names == {"q.size[2]", "BLOCK_M", "q.data"}


@given(st.text(max_size=40))
def test_parse_is_total(text):
    try:
        expression = parse(text)
    except ExpressionError as error:
        assert "\n" not in str(error) or "\n" in text
    else:
        with contextlib.suppress(Fault):
            expression.evaluate(dict.fromkeys(expression.names, 1))


OPERATORS = ["+", "-", "*", "//", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
NAMES = ("a", "b", "q.size[2]", "BLOCK_M")
integers = st.one_of(st.integers(-20, 20), st.sampled_from([INT64_MIN, INT64_MIN + 1, INT64_MAX, 2**31, -(2**32)]))


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        st.tuples(inner, st.sampled_from(NAMES), inner).map(lambda t: f"({t[0]}) < ({t[1]} - 1) <= ({t[2]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]}) if ({t[1]}) else ({t[2]})"),
        st.tuples(st.sampled_from(["min", "max", "cdiv", "align"]), inner, inner).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        inner.map(lambda t: f"-({t})"),
        inner.map(lambda t: f"not ({t})"),
        st.tuples(st.sampled_from(["sizeof", "log2", "next_power_of_2"]), inner).map(lambda t: f"{t[0]}({t[1]})"),
    )


random_expressions = st.recursive(
    st.one_of(integers.map(str), st.sampled_from([*NAMES, "bf16", "true"])), _grown, max_leaves=8
)


def test_python_and_cpp_agree(tmp_path):
    """A few hundred random expressions, one compile."""
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if not compiler:
        pytest.skip("no C++ compiler")
    texts: list[str] = []
    environments: list[tuple[int, ...]] = []

    @settings(max_examples=400, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(random_expressions, st.tuples(*[integers] * len(NAMES)))
    def collect(text, environment):
        texts.append(text)
        environments.append(environment)

    collect()
    index = {name: position for position, name in enumerate(NAMES)}
    functions = "\n".join(
        f"static int64_t e{i}(const int64_t* v, int32_t* fault) {{\n"
        f"    (void)v; (void)fault; return {parse(t).to_cpp(index)}; }}"
        for i, t in enumerate(texts)
    )
    calls = "\n".join(
        "{ int32_t fault = 0; const int64_t v[] = {"
        + ", ".join("INT64_MIN" if x == INT64_MIN else f"INT64_C({x})" for x in environment)
        + f'}}; long long r = e{i}(v, &fault); std::printf("%d %lld\\n", fault, r); }}'
        for i, environment in enumerate(environments)
    )
    source = tmp_path / "batch.cc"
    source.write_text(f"#include <cstdint>\n#include <cstdio>\n{CPP_PROLOGUE}{functions}\nint main() {{ {calls} }}\n")
    program = tmp_path / "batch"
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-tautological-compare"]
    subprocess.run(
        [compiler, *flags, "-fsanitize=undefined", "-fno-sanitize-recover", source, "-o", program], check=True
    )
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(lines) == len(texts) > 300
    faults = 0
    for text, environment, line in zip(texts, environments, lines):
        try:
            expected = (0, parse(text).evaluate(dict(zip(NAMES, environment))))
        except Fault:
            expected, faults = (1, 0), faults + 1
        assert tuple(map(int, line.split())) == expected, (text, environment)
    assert 20 < faults < len(texts) - 100
