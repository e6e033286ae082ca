"""What comes of means.py's figures: tables and the judgement. Needs neither a GPU nor PyTorch."""

from __future__ import annotations

from page import measured, wrapped

from kiln_bench.report import piped
from kiln_recipe.console.tables import table

TIMES_MATH, OF_SCALE = 2.0, 0.01
NAMES = {"kiln": "Kiln", "math": "PyTorch, math", "flash": "FlashAttention-2", "cudnn": "cuDNN"}


def limit(row: dict) -> float:
    return max(TIMES_MATH * row["errors"].get("math", 0.0), OF_SCALE)


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
    return missed


def errors_table(rows: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows."""
    body = []
    for row in rows:
        found = [f"{row['errors'][name]:.2g}" if name in row["errors"] else "-" for name in NAMES]
        body.append([row["dtype"], str(row["head_dim"]), f"+ {row['offset']:g}", *found, f"{limit(row):.2g}"])
    return ["dtype", "head_dim", "keys", *NAMES.values(), "limit"], body


def verdict(results: dict) -> str:
    missed = judge(results)
    return "\n".join(["Missed:", *(f"  {one}" for one in missed)]) if missed else "Nothing is missed."


def text(results: dict) -> str:
    head, body = errors_table(results["errors"])
    return "\n\n".join(["dq's error", table(head, body, right=head[1:]), verdict(results)])


def markdown(results: dict) -> str:
    about, gpu = results["about"], results["about"]["gpu"]
    images = sorted({image for row in results["errors"] for image in row["images"]})
    digest = about["pack"]["sha256"] if about.get("pack") else "unknown"
    parts = [
        "# Attention: gradients of inputs with a mean",
        wrapped(
            f"Measured by `benchmarks/attention/means.py` on {about['date']}: {gpu.get('name', 'a GPU')}, driver "
            f"{gpu.get('driver_version', 'unknown')}, PyTorch {about['torch']} with cuDNN {about['cudnn']}; release "
            f"{about['release']}, sha256 of its pack `{digest}`."
        ),
        wrapped(
            f"q, k, v and dout are uniform in [0, 1), {about['rows']} queries and {about['keys']} keys, with an offset "
            "of the keys besides. An error is the root mean square of what dq differs by from float64's, beside that "
            "of dq itself; the limit is twice that of PyTorch's math attention, which computes in fp32, or 0.01."
        ),
        "## dq's error",
        piped(*errors_table(results["errors"])),
    ]
    return "\n\n".join([*parts, verdict(results), "## Images", measured.listed(images)]) + "\n"
