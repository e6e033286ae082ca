"""What comes of means.py's figures: tables and the judgement. Needs neither a GPU nor PyTorch."""

from __future__ import annotations

import math

from report import device_text, measured, milliseconds, piped, plain, wrapped

TIMES_MATH, OF_SCALE, MOST_TIME = 2.0, 0.01, 1.02
NAMES = {"kiln": "Kiln", "math": "PyTorch, math", "flash": "FlashAttention-2", "cudnn": "cuDNN"}


def limit(row: dict) -> float:
    return max(TIMES_MATH * row["errors"].get("math", 0.0), OF_SCALE)


def _factor(row: dict) -> float | None:
    """How many times as long the backward takes as the other release's."""
    mine, others = milliseconds(row, "kiln"), milliseconds(row, "against")
    return mine / others if mine and others else None


def factor(results: dict) -> float | None:
    """The geometric mean of the shapes."""
    known = [value for value in map(_factor, results["times"]) if value]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def judge(results: dict) -> list[str]:
    """What is missed, a sentence each."""
    missed = []
    for row in results["errors"]:
        title = f"{row['dtype']}, head_dim {row['head_dim']}, keys + {row['offset']:g}"
        error = row["errors"].get("kiln")
        if error is None:
            missed.append(f"{title}: refused: {row['refusals'].get('kiln', 'not measured')}")
        elif not error <= limit(row):
            missed.append(f"{title}: dq's error is {error:.2g}, above {limit(row):.2g}")
    took = factor(results)
    if took is not None and not took <= MOST_TIME:
        missed.append(f"backward takes {took:.3f} times as long as the other release's, above {MOST_TIME}")
    return missed


def errors_table(rows: list[dict]) -> list[list[str]]:
    table = [["dtype", "head_dim", "keys", *NAMES.values(), "limit"]]
    for row in rows:
        found = [f"{row['errors'][name]:.2g}" if name in row["errors"] else "-" for name in NAMES]
        table.append([row["dtype"], str(row["head_dim"]), f"+ {row['offset']:g}", *found, f"{limit(row):.2g}"])
    return table


def times_table(results: dict) -> list[list[str]]:
    table = [["head_dim", "causal", "length", "ms", "other release, ms", "factor"]]
    for row in results["times"]:
        both = [milliseconds(row, side) for side in ("kiln", "against")]
        factor_of_row = _factor(row)
        figures = [f"{value:.3f}" if value else "-" for value in (*both, factor_of_row)]
        table.append([str(row["head_dim"]), str(row["causal"]).lower(), str(row["length"]), *figures])
    took = factor(results)
    if took is not None:
        table.append(["geometric mean", "", "", "", "", f"{took:.3f}"])
    return table


def verdict(results: dict) -> str:
    missed = judge(results)
    return "\n".join(["Missed:", *(f"  {one}" for one in missed)]) if missed else "Nothing is missed."


def text(results: dict) -> str:
    parts = ["dq's error", plain(errors_table(results["errors"]))]
    if results["times"]:
        parts += ["Backward", plain(times_table(results))]
    return "\n\n".join([*parts, verdict(results)])


def markdown(results: dict) -> str:
    about = results["about"]
    images = sorted({image for row in results["errors"] + results["times"] for image in row["images"]})
    parts = [
        "# Attention: gradients of inputs with a mean",
        wrapped(f"Measured by `benchmarks/attention/means.py` on {device_text(results)}."),
        wrapped(
            f"q, k, v and dout are uniform in [0, 1), {about['rows']} queries and {about['keys']} keys, with an offset "
            "of the keys besides. An error is the root mean square of what dq differs by from float64's, beside that "
            "of dq itself; the limit is twice that of PyTorch's math attention, which computes in fp32, or 0.01."
        ),
        "## dq's error",
        piped(errors_table(results["errors"])),
    ]
    if results["times"]:
        parts += [
            "## What it costs",
            wrapped(
                "Backward of bf16, 16,384 tokens, heads * head_dim = 2,048, in turns with the other release; medians "
                "of the rounds."
            ),
            piped(times_table(results)),
        ]
    return "\n\n".join([*parts, verdict(results), "## Images", measured.listed(images)]) + "\n"
