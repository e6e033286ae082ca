"""Random calls against float64. KILN_RANDOM_SEED and KILN_RANDOM_CASES change which and how many; one that was wrong is
printed as it would be typed, and random_call(seed, number) of sampling.py makes it again."""

from __future__ import annotations

import os

import pytest

SEED = int(os.environ.get("KILN_RANDOM_SEED", 20_251_122))
CASES = {
    "attention": int(os.environ.get("KILN_RANDOM_CASES", 2400)),
    "decode": int(os.environ.get("KILN_RANDOM_DECODE", 600)),
}
AT_ONCE = 10


@pytest.mark.parametrize("kind", CASES)
def test_random_calls(pool, record, kind):
    print(f"seed {SEED}, {CASES[kind]} calls")
    todo = [(first, min(first + AT_ONCE, CASES[kind])) for first in range(0, CASES[kind], AT_ONCE)]
    ran, rows, faults, worst = 0, [], [], 0.0
    while todo:
        answers = pool.map("random", [(SEED, first, last, kind, None) for first, last in todo])
        unfinished = []
        for (first, last), answer in zip(todo, answers):
            if "fault" in answer:  # the process is gone: one call at a time finds which one it was
                if last - first == 1:
                    ran += 1
                    faults.append(f"{kind} call {first} of seed {SEED}: {answer['fault']}")
                else:
                    unfinished += [(n, n + 1) for n in range(first, last)]
                continue
            ran += answer["ran"]
            worst = max(worst, answer["worst"])
            rows += answer["rows"]
            if first + answer["ran"] < last:
                unfinished.append((first + answer["ran"], last))
        todo = unfinished
    wrong = [row for row in rows if row["wrong"]]
    refused = [row for row in rows if "refused" in row]
    pooled = sum(row["draws"] > 1 for row in rows)
    record("random", of=kind, seed=SEED, cases=ran, wrong=len(wrong) + len(faults), refused=len(refused), pooled=pooled,
           worst_ratio=worst)  # fmt: skip
    for row in refused:
        record("refused", call=row["call"], sentence=row["refused"])
    assert ran == CASES[kind], f"{ran} of {CASES[kind]} calls were made"
    lines = [f"{row['number']}: {row['call']}: {'; '.join(row['wrong'])}" for row in wrong] + faults
    assert not lines, "\n".join([f"{len(lines)} of {ran} wrong, seed {SEED}", *lines[:40]])
    assert len(refused) <= ran // 50, f"{len(refused)} of {ran} calls were refused"
