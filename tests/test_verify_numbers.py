"""What `kiln verify-device` holds results against: numbers of Kiln's dtypes, the formula, and the rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kiln_bench.verify import formula, judge, numbers

torch = pytest.importorskip("torch", reason="needs PyTorch")


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(("dtype", "name"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp8e4m3", "float8_e4m3fn")])
def test_rounding_is_pytorchs(dtype, name):
    """Halfway cases and what is too small or too large for a normal number included."""
    every = np.concatenate([draw(2000) * 2.0**e for e in range(-18, 9)]).astype(np.float32)
    every = np.concatenate([every, np.arange(-448, 449, 0.5, np.float32), [0.0, 1 + 2**-8, 1 + 3 * 2**-8]])
    if dtype == "fp8e4m3":
        every = every.clip(-448, 448)  # PyTorch makes NaN of what is larger
    every = every.astype(np.float32)
    expected = torch.from_numpy(every).to(getattr(torch, name)).double().numpy()
    np.testing.assert_array_equal(numbers.wide(numbers.held(every, dtype), dtype), expected)


def test_every_number_of_eight_bits_is_pytorchs():
    byte = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(byte).view(torch.float8_e4m3fn).double().numpy()
    np.testing.assert_array_equal(numbers.wide(byte, "fp8e4m3"), expected)
    assert np.isnan(numbers.wide(numbers.held(np.array([np.nan]), "bf16"), "bf16")).all()
    assert numbers.wide(numbers.held(np.array([1000.0, -1000.0]), "fp8e4m3"), "fp8e4m3").tolist() == [448, -448]


def test_philox_is_that_of_the_papers_authors():
    """Random123's known answers for Philox4x32-10."""
    ones = 0xFFFFFFFF
    for seed, counter, words in (
        (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (ones << 32 | ones, (ones,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ):
        found = numbers.philox(seed, tuple(np.array([part]) for part in counter))
        assert [int(word[0]) for word in found] == [*words]


def full_part() -> formula.Part:
    """Everything at once, with rows that see nothing."""
    rows, keys = 9, 7
    return formula.Part(
        draw(2, 4, rows, 8), draw(2, 2, keys, 8, seed=1), draw(2, 2, keys, 5, seed=2), -0.3,
        formula.hidden_from(rows, keys, (3, 1), True), draw(1, 4, rows, keys, seed=3),
        0.25 * formula.distances(rows, keys)[None, None], 5.0, draw(4, seed=4),
        numbers.kept(7, 9, 0.4, (2, 4, rows, keys)), 0.4, draw(2, 4, rows, 5, seed=5),
    )  # fmt: skip


def by_autograd(part: formula.Part) -> dict[str, np.ndarray]:
    names = ("q", "k", "v", "bias", "sinks")
    leaves = {
        name: torch.tensor(getattr(part, name), requires_grad=True) for name in names if getattr(part, name) is not None
    }
    q, group = leaves["q"], part.q.shape[1] // part.k.shape[1]
    k, v = (leaves[name].repeat_interleave(group, 1) for name in "kv")
    scores = part.scale * (q @ k.mT)
    if part.softcap:
        scores = part.softcap * torch.tanh(scores / part.softcap)
    if part.bias is not None:
        scores = scores + leaves["bias"]
    if part.distances is not None:
        scores = scores - torch.from_numpy(part.distances)
    if part.hidden is not None:
        scores = scores.masked_fill(torch.from_numpy(part.hidden), -math.inf)
    if part.sinks is not None:
        scores = torch.cat([scores, leaves["sinks"][None, :, None, None].expand(*scores.shape[:3], 1)], 3)
    lse = scores.logsumexp(3)
    weights = (scores - lse[..., None]).exp()[..., : k.shape[2]]
    if part.keep is not None:
        weights = torch.where(torch.from_numpy(part.keep), weights / (1 - part.dropout), 0.0)
    out = weights @ v
    gradients = torch.autograd.grad(out, [*leaves.values()], torch.from_numpy(part.dout))
    found = {f"d{name}": gradient.numpy() for name, gradient in zip(leaves, gradients)}
    return found | {"out": out.detach().numpy(), "lse": lse.detach().numpy()}


@pytest.mark.parametrize("left_out", ["", "bias", "distances", "softcap", "sinks", "keep", "hidden"])
def test_the_formula_in_float64_is_what_autograd_gives(left_out):
    part = full_part()
    if left_out:
        setattr(part, left_out, 0.0 if left_out == "softcap" else None)
    if left_out == "sinks":
        part.hidden = None  # else a row sees nothing, of which PyTorch has no gradient
    found, expected = formula.solve(part, "fp64"), by_autograd(part)
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        np.testing.assert_allclose(found[name], right, atol=1e-13, err_msg=name)


def test_rows_that_see_nothing_and_no_keys_at_all():
    blind = formula.Part(
        draw(1, 1, 5, 8), draw(1, 1, 2, 8), draw(1, 1, 2, 8), 1.0, formula.hidden_from(5, 2, (-1, 0), True)
    )
    for part in (blind, formula.Part(draw(1, 1, 5, 8), np.zeros((1, 1, 0, 8)), np.zeros((1, 1, 0, 8)), 1.0)):
        for dtype in ("fp64", "bf16"):
            found = formula.solve(part, dtype)
            assert (found["out"][0, 0, :3] == 0).all() and (found["lse"][0, 0, :3] == -math.inf).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_formula_in_a_calls_precision_is_off_by_that_precision(dtype):
    exact, low = formula.solve(full_part(), "fp64"), formula.solve(full_part(), dtype)
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-23}[dtype]
    for name, right in exact.items():
        finite = np.isfinite(right)
        error = np.abs(low[name] - right)[finite].max() / np.abs(right[finite]).max()
        assert error < 20 * unit and (name == "lse" or error > unit / 50), (name, error)


def test_columns_are_turned_in_pairs():
    x, angle = draw(3, 6), np.array([[0.1, 0.7]]).repeat(3, 0)
    halves = formula.rotate(x, np.cos(angle), np.sin(angle), False, "fp64")
    one = (x[:, 0:2] + 1j * x[:, 2:4]) * np.exp(1j * angle)
    np.testing.assert_allclose(halves, np.concatenate([one.real, one.imag, x[:, 4:]], 1))
    mixed = formula.rotate(x, np.cos(angle), np.sin(angle), True, "fp64")
    one = (x[:, 0:4:2] + 1j * x[:, 1:4:2]) * np.exp(1j * angle)
    np.testing.assert_allclose(mixed[:, 0:4:2] + 1j * mixed[:, 1:4:2], one)


@pytest.mark.parametrize(
    ("times", "is_right"), [(0.0, True), (1.0, True), (1.99, True), (2.2, False), (math.nan, False), (math.inf, False)]
)
def test_twice_the_error_of_the_formula_is_the_limit(times, is_right):
    exact, own = draw(1000), 1e-2 * draw(1000, seed=1)
    verdict = judge.Verdict()
    verdict.compare("out", exact + times * own, exact, exact + own)
    assert bool(verdict.wrong()) is not is_right
    assert (verdict.shares["out"] <= 1) is is_right


def test_draws_are_judged_together():
    """The largest error of few numbers is luck: of a kernel's as of the reference's."""
    exact, verdict = np.ones(10), judge.Verdict()
    for mine, own in ((3e-2, 1e-2), (1e-2, 2e-2)):
        one = judge.Verdict()
        errors = np.eye(10)[0]
        one.compare("out", exact + mine * errors, exact, exact + own * errors)
        assert bool(one.wrong()) is (mine > 2 * own)
        verdict.merge(one)
    assert not verdict.wrong() and verdict.draws == 2


def test_faults_count_whatever_the_errors_are():
    verdict = judge.Verdict()
    verdict.compare("out", np.ones(3), np.ones(3), np.ones(3))
    verdict.faults.append("something was written beside the outputs")
    assert verdict.wrong() == ["something was written beside the outputs"]
