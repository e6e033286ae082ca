"""What dropout keeps: that of Philox, everywhere the same, at the right rate, and independent of its neighbours."""

from __future__ import annotations

import math

import ffi
import pytest

SIZE = 256  # rows and keys: several blocks of whatever size


def mask_of(flash, target=None, **fields):
    from calls import Call, Inputs

    call = Call(**({"heads": 1, "heads_kv": 1, "backward": False, "dropout": 0.25} | fields))
    return flash.dropout_mask(Inputs(call, "cuda"), target)


@pytest.mark.parametrize("in_memory", [False, True], ids=["by value", "in memory"])
@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_the_mask_is_that_of_philox(flash, target, rate, in_memory):
    import torch
    from standin import kept

    for seed, offset in ((1, 0), (0x123456789ABCDEF, 0x300000007), ((1 << 63) - 1, (1 << 62) + 5)):
        for shape in ((2, 3, 65, 130), (1, 5, 1, 1023), (3, 2, 300, 1)):
            b, h, rows, keys = shape
            got = mask_of(
                flash, target, batch=b, heads=h, heads_kv=h, rows=rows, keys=keys, dropout=rate, seed=seed,
                offset=offset, in_memory=in_memory,
            )  # fmt: skip
            assert torch.equal(got.bool().cpu(), torch.from_numpy(kept(seed, offset, rate, shape))), (
                seed,
                offset,
                shape,
            )


def test_rate_and_independence(flash, record):
    """By correlations that are within five standard deviations of 0."""
    rate, n = 0.25, 2048
    deviation = math.sqrt(rate * (1 - rate))

    def centred(**fields):
        mask = mask_of(flash, rows=n, keys=n, dropout=rate, **fields)[0].double()
        return (mask - (1 - rate)) / deviation

    one = centred(seed=7, offset=0, heads=2, heads_kv=2)
    limit = 5 / n  # standard deviations of a mean over n * n
    figures = {"rate": one[0].mean().item()}
    for rows, keys in ((0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (2, 0), (16, 0), (64, 64)):
        product = one[0, rows:, keys:] * one[0, : n - rows, : n - keys]
        figures[f"{rows} rows and {keys} keys on"] = product.mean().item()
    figures["the next head"] = (one[0] * one[1]).mean().item()
    for name, fields in (("the next seed", {"seed": 8, "offset": 0}), ("the next offset", {"seed": 7, "offset": 1}),
                         ("offset + 2^32", {"seed": 7, "offset": 1 << 32})):  # fmt: skip
        figures[name] = (one[0] * centred(**fields)[0]).mean().item()
    sums = one[0].sum(0).square().mean().item() / n, one[0].sum(1).square().mean().item() / n
    record("dropout", what="rate and independence", largest=max(map(abs, figures.values())), limit=limit)
    wrong = {name: figure for name, figure in figures.items() if abs(figure) >= limit * 1.02}
    assert not wrong, f"beyond {limit:.4f}: {wrong}"
    for what, spread in zip(("keys", "rows"), sums):  # a column's sum is as far from its mean as n coins are
        assert abs(spread - 1) < 5 * math.sqrt(2 / n), f"sums over {what} vary by {spread:.3f} of what they should"


def revealed(flash, target, fields: dict, key: str = "", is_backward: bool = False) -> dict:
    """What kernels drop, read off their outputs: all weights are equal, and v, dout and k are parts of the identity.

    out shows what forward keeps, dv what the kernel of dk and dv does, and the sign of dq what that of dq does.
    """
    import torch
    from calls import Call, Inputs
    from check import Outputs

    call = Call(rows=SIZE, keys=SIZE, heads=2, heads_kv=2, dropout=0.5, **fields)
    width, parts = call.width, {"out": [], "dv": [], "dq": []}
    keys = (key,) if key else ()
    for first in range(0, SIZE, width):
        eye = torch.eye(SIZE, device="cuda")[:, first : first + width].expand(1, 2, SIZE, width)
        one = torch.ones(1, 2, SIZE, width, device="cuda")
        for names, (k, v, dout) in ((("out", "dv"), (0 * one, eye, eye)), (("dq",), (eye, one, one))):
            inputs = Inputs(call, "cuda")
            for storage, values in ((inputs.q, 0 * one), (inputs.k, k), (inputs.v, v), (inputs.dout, dout)):
                storage.put(values.to(storage.memory.dtype))
            outputs = Outputs(inputs)
            flash.forward(inputs, outputs, () if is_backward else keys, target)
            flash.backward(inputs, outputs, keys if is_backward else (), target)
            for name in names:
                parts[name].append(outputs[name].values > 0)
    found = {name: torch.cat(some, 3) for name, some in parts.items()}
    found["dv"] = found["dv"].mT
    return found


@pytest.mark.parametrize("operation", ["attn_fwd", "attn_bwd"])
def test_every_image_drops_the_same(flash, record, target, operation):
    """Whatever its block sizes, and whatever its target."""
    import torch
    from candidates import is_of_another, one_of_each, words

    ran, wrong = set(), []
    masks = {}
    for variant in one_of_each(flash.images(operation, target or flash.target)):
        known = words(variant["functional"])
        if known.get("dtype") == "fp32" or known.get("head_dim") not in ("64", "128"):
            continue
        # Images that know dropout alone, and those that know everything, as far as the functional says.
        for extras in {"none": (), "bias": (), "softcap": (), "dropout": ({},), "any": ({"softcap": 50.0},)}.get(
            known.get("extras", ""), ({}, {"softcap": 50.0})
        ):
            fields = {"dtype": known["dtype"], "width": int(known["head_dim"]), "in_memory": True} | extras
            width = fields["width"]
            if width not in masks:
                masks[width] = mask_of(flash, None, rows=SIZE, keys=SIZE, heads=2, heads_kv=2, dropout=0.5).bool()
            try:
                found = revealed(flash, target, fields, variant["key"], operation == "attn_bwd")
            except ffi.Failure as failure:
                assert is_of_another(failure), failure.sentence
                continue
            ran.add((variant["kernel"], variant["configuration"]))
            wrong += [
                f"{variant['kernel']} {variant['functional']} [{variant['configuration']}]: {name} drops other weights"
                for name, keeps in found.items() if not torch.equal(keeps, masks[width])
            ]  # fmt: skip
    record(
        "dropout",
        what=f"{operation}: every image drops the same",
        target=target,
        configurations=len(ran),
        wrong=len(wrong),
    )
    assert not wrong, "\n".join(wrong[:20])
    assert len(ran) > 1, "no two images with dropout could be compared"
