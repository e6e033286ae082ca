"""The feature table, row by row, forward and backward: by the device's own images, and by sm_80's PTX."""

from __future__ import annotations

import ffi
import pytest


def names() -> list[str]:
    """Of the rows; none without PyTorch, where the suite is skipped."""
    try:
        from features import ROWS
    except ImportError:
        return ["needs PyTorch"]
    return list(ROWS)


@pytest.fixture(scope="module")
def submitted(pool, target):
    """The answers to come of all rows: the last calls of a row need not wait for each other."""
    from features import ROWS

    return {name: [(call, pool.submit("one", call, target)) for call in calls] for name, calls in ROWS.items()}


def is_newer(name: str, target: str | None) -> bool:
    """Whether sm_80, whose PTX `target` names, has no such images: fp8 began with sm_89, latent keys are Hopper's."""
    return target is not None and ("fp8" in name or "latent" in name)


@pytest.mark.parametrize("name", names())
def test_feature(submitted, record, target, name):
    if is_newer(name, target):
        answers = [future.result() for _, future in submitted[name]]
        assert all(
            ("fault" in a and f"Failure: {ffi.UNSUPPORTED}: " in a["fault"]) or "refused" in a for a in answers
        ), f"sm_80 has no such images, so each of these calls must be refused: {answers[0]}"
        record(
            "feature", row=name, target=target, cases=0, refused=len(answers), wrong=0, ratio=0.0, output="", pooled=0
        )
        return
    wrong, ratio, output, refused, pooled = [], 0.0, "", [], 0
    for call, future in submitted[name]:
        answer = future.result()
        if "fault" in answer:
            wrong.append(answer["fault"])
        elif "refused" in answer:
            refused.append(answer)
        else:
            wrong += [f"{call}: {fault}" for fault in answer["wrong"]]
            pooled += answer["draws"] > 1
            if answer["ratio"] >= ratio:
                ratio, output = answer["ratio"], answer["output"]
    cases = len(submitted[name]) - len(refused)
    record("feature", row=name, target=target, cases=cases, refused=len(refused), wrong=len(wrong), ratio=ratio,
           output=output, pooled=pooled)  # fmt: skip
    for answer in refused:
        record("refused", call=answer["call"], sentence=answer["refused"])
    assert not wrong, "\n".join([f"{len(wrong)} wrong of {cases}", *wrong[:20]])
    assert cases, f"all calls were refused: {refused[0]['refused']}"
