"""Every image of a release, forced in turn, against float64: the device's own, and those of sm_80 by way of their PTX
if the release has any (KILN_PTX=1)."""

from __future__ import annotations

from collections import defaultdict

import pytest

OPERATIONS = ("attn_fwd", "attn_bwd", "attn_decode")
OTHERS = ("attn_fwd_fp8", "dropout_mask", "seq_lengths")  # each with a test of its own below
AT_ONCE = 6  # images of a task: some take seconds to load, where the driver compiles them


def leave(record, variant: dict, target: str | None, row: dict) -> None:
    from candidates import facts

    record("image", **facts(variant, "PTX" if target else variant["target"], row))


def size(variant: dict) -> int:
    from candidates import words

    return int(words(variant["functional"]).get("head_dim", 0))


def test_every_operation_of_the_release_has_a_test(flash, target):
    variants = flash.kiln.variants(None, target or flash.target)
    names = {variant["operation"].decode() for variant in variants}
    assert names, "the release has no variant"
    unknown = names - {f"flash.{name}" for name in (*OPERATIONS, *OTHERS)}
    assert not unknown, f"no test here forces the images of {sorted(unknown)}"


def test_images(flash, pool, record, target):
    from candidates import EQUAL_RUNS, MOST_CASES, one_of_each, words

    tasks = []
    for operation in OPERATIONS:
        variants = one_of_each(flash.images(operation, target or flash.target))
        assert variants, f"the release has no image of {operation}"
        lacking = [v["configuration"] for v in variants if target and not v["has_ptx"]]
        assert not lacking, f"the manifest promises PTX; these have none: {lacking}"
        groups = defaultdict(list)
        for variant in variants:
            groups[variant["kernel"], variant["functional"], variant["specialization"]].append(variant)
        for (_, functional, _), members in groups.items():
            for i in range(0, len(members), AT_ONCE):
                some = members[i : i + AT_ONCE]
                tasks.append((operation, functional, some, target, MOST_CASES, False, (), EQUAL_RUNS))
    tasks.sort(key=lambda task: -size(task[2][0]))  # what compiles longest begins first
    wrong = []
    for (_, _, members, *_), answer in zip(tasks, pool.map("images", tasks)):
        missing = {"wrong": [answer.get("fault", "")], "cases": 0, "ratio": 0.0, "output": ""}
        for i, variant in enumerate(members):
            row = answer["rows"][i] if "rows" in answer else missing | {"key": variant["key"]}
            if "refused" in row and not row["cases"] and not row["wrong"]:
                record("refused", call=f"{variant['kernel']} {variant['functional']}", sentence=row["refused"])
                continue  # nothing ran
            leave(record, variant, target, row)
            name = (
                f"{variant['kernel']} {variant['functional']} [{variant['configuration']}] {variant['specialization']}"
            )
            wrong += [f"{name}: {fault}" for fault in row["wrong"]]
            if row["cases"] and "runs" not in row and words(variant["functional"]).get("ordered") != "false":
                wrong.append(f"{name}: no call of it was made again")
    assert not wrong, "\n".join([f"{len(wrong)} wrong answers", *wrong[:40]])


def test_images_of_fp8(flash, record, target):
    """Forward's, which Hopper alone has."""
    import torch
    from candidates import one_of_each, words
    from fp8_calls import run_fp8_image

    variants = one_of_each(flash.images("attn_fwd_fp8", target or flash.target))
    if (target or flash.target) != "sm_90":
        assert not variants, "images of fp8 for another GPU than Hopper's are not tested here"
        return
    assert variants, "the release has no image of attn_fwd_fp8"
    wrong = []
    for variant in variants:
        torch.manual_seed(9)
        row = run_fp8_image(flash, variant, words(variant["functional"]))
        name = f"{variant['kernel']} {variant['functional']} [{variant['configuration']}]"
        wrong += [f"{name}: {fault}" for fault in row["wrong"]]
        leave(record, variant, target, row)
    assert not wrong, "\n".join(wrong)


def test_images_of_the_dropout_mask(flash, record, target):
    from candidates import one_of_each, run_mask_images

    variants = one_of_each(flash.images("dropout_mask", target or flash.target))
    assert variants, "the release has no image of dropout_mask"
    wrong = []
    for variant in variants:
        row = run_mask_images(flash, variant, target)
        wrong += [f"{variant['configuration']}, {fault}" for fault in row["wrong"]]
        leave(record, variant, target, row)
    assert not wrong, "\n".join(wrong)


def test_images_of_lengths_of_sequences(flash, record, target):
    from candidates import one_of_each, run_lengths_images

    variants = one_of_each(flash.images("seq_lengths", target or flash.target))
    assert variants, "the release has no image of seq_lengths"
    wrong = []
    for variant in variants:
        row = run_lengths_images(flash, variant, target)
        wrong += [f"{variant['configuration']}, {fault}" for fault in row["wrong"]]
        leave(record, variant, target, row)
    assert not wrong, "\n".join(wrong)


def test_every_key_is_forced_only_where_it_belongs(flash):
    """An image of another dtype, or one for aligned rows, is refused where it does not fit."""
    import ffi
    from calls import Call
    from candidates import words
    from check import check

    variants = flash.images("attn_fwd", flash.target)
    other = next(v for v in variants if words(v["functional"])["dtype"] == "fp16")
    aligned = [
        v for v in variants
        if v["specialization"] == "aligned" and words(v["functional"])["dtype"] == "bf16"
        and words(v["functional"])["head_dim"] == "64"
    ]  # fmt: skip
    for call, key in ((Call(backward=False), other), (Call(backward=False, layout="offset"), aligned[0])):
        with pytest.raises(ffi.Failure) as raised:
            check(call, flash, "cuda", keys=(key["key"],))
        assert raised.value.status == ffi.UNSUPPORTED
