"""Which implementation serves each feature of attention's forward, and how fast.

    python3 benchmarks/attention/implementations.py RELEASE RESULTS.json                         # on a Hopper GPU
    python3 benchmarks/attention/implementations.py --page RESULTS.json [PAGE.md]                # the page; no GPU

RELEASE is of the full profile; PAGE.md is docs/measurements/attention-features.md. Fails (exit code 1) if a call is
refused, or served by a general image although neither the recipe (`reason`) nor a tensor descriptor says why.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page import wrapped

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "v3python"), str(ROOT / "docs")]

import measured  # noqa: E402

from kiln_bench import capture, state, timing  # noqa: E402
from kiln_bench.release import headers, places  # noqa: E402
from kiln_bench.release.library import Launch, Libraries, Refused  # noqa: E402
from kiln_bench.report import clocks, piped  # noqa: E402
from kiln_recipe.console.appear import appear  # noqa: E402

PAGE = ROOT / "docs/measurements/attention-features.md"
HEADS, BATCH, ROWS, WINDOW, PAGES = 16, 2, 4096, 1024, 64
WIDTHS = ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256))
DTYPES = ("bf16", "fp16")
CAUSAL = ROWS * ROWS / 2
LENGTHS = (4096, 2048, 1024, 768, 256)  # BATCH * ROWS rows
FEATURES = (
    "plain", "causal", "window", "GQA", "varlen", "seqused", "log-sum-exp", "sinks", "soft cap", "bias", "ALiBi",
    "dropout", "paged prefill", "paged prefill, pages of 16", "strides of 16 bytes", "strides of 2 bytes",
)  # fmt: skip


def pairs(feature: str) -> float:
    """Of a row and a key that it sees, of one head in the whole batch."""
    if feature in ("varlen", "seqused"):
        every = LENGTHS if feature == "varlen" else (ROWS, ROWS // 2)
        return sum(float(n) * n for n in every) / (2 if feature == "varlen" else 1)
    if feature == "window":
        return BATCH * float(ROWS * WINDOW - WINDOW * (WINDOW - 1) / 2)
    return BATCH * CAUSAL * (1 if feature in ("causal", "GQA") or feature.startswith("paged") else 2)


def call(feature: str, width: int, width_v: int, dtype: str) -> tuple[str, dict[str, Any]]:
    """The entry, and its arguments."""
    import torch

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    more = {"strides of 16 bytes": 8, "strides of 2 bytes": 1}.get(feature, 0)
    batch, rows = (1, sum(LENGTHS)) if feature == "varlen" else (BATCH, ROWS)
    heads_kv = HEADS // 4 if feature == "GQA" else HEADS

    def rows_of(heads: int, columns: int, batch: int = batch, rows: int = rows) -> torch.Tensor:
        drawn = torch.randn(batch, rows, heads, columns + more, device="cuda", dtype=kind)
        return drawn[..., :columns].transpose(1, 2)

    def integers(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    given: dict[str, Any] = {"q": rows_of(HEADS, width), "out": rows_of(HEADS, width_v)}
    if feature.startswith("paged"):
        size = 16 if feature.endswith("16") else PAGES
        count = ROWS // size
        given |= {f"{name}_cache": rows_of(heads_kv, columns, BATCH * count, size)
                  for name, columns in (("k", width), ("v", width_v))}  # fmt: skip
        table = torch.randperm(BATCH * count, device="cuda").to(torch.int32).view(BATCH, count)
        return "attn_decode", given | {"block_table": table, "seqused_k": integers(*[ROWS] * BATCH), "causal": 1}
    given |= {"k": rows_of(heads_kv, width), "v": rows_of(heads_kv, width_v)}
    lse = torch.empty(batch, HEADS, rows, device="cuda")
    heads = torch.arange(1, HEADS + 1, device="cuda")
    given |= {
        "causal": {"causal": 1}, "window": {"causal": 1, "window_left": WINDOW - 1}, "GQA": {"causal": 1},
        "seqused": {"seqused_q": integers(ROWS, ROWS // 2), "seqused_k": integers(ROWS, ROWS // 2)},
        "log-sum-exp": {"lse": lse}, "sinks": {"sinks": torch.randn(HEADS, device="cuda")},
        "soft cap": {"softcap": 30.0}, "dropout": {"dropout": 0.1, "seed_value": 1},
        "ALiBi": {"alibi_slopes": (0.5**heads).expand(batch, HEADS)},
    }.get(feature, {})  # fmt: skip
    if feature == "bias":
        given["bias"] = torch.randn(1, 1, ROWS, ROWS, device="cuda", dtype=kind).expand(BATCH, HEADS, ROWS, ROWS)
    if feature == "varlen":
        starts = integers(0, *(sum(LENGTHS[: n + 1]) for n in range(len(LENGTHS))))
        given |= {f"cu_seqlens_{name}": starts for name in "qk"} | {f"max_seqlen_{name}": LENGTHS[0] for name in "qk"}
        given["causal"] = 1
    return "attn_fwd", given


def measure(release: str, path: Path) -> None:
    import torch

    with (
        capture.own_stream(),
        places.found(release) as place,
        Libraries(place.libraries, headers.read(place.headers)) as libraries,
    ):
        target = libraries.devices()[torch.cuda.current_device()]["target"]
        results: dict[str, Any] = {
            "gpu": state.nvidia_smi(), "torch": torch.__version__, "release": libraries.version,
            "pack": place.pack(target), "clocks": [], "rows": [],
        }  # fmt: skip

        def look() -> None:
            results["clocks"].append(state.nvidia_smi().get("clocks.sm", ""))

        for dtype in DTYPES:
            for width, width_v in WIDTHS:
                launches: dict[str, Callable[[], object]] = {}
                for feature in FEATURES:
                    entry, given = call(feature, width, width_v, dtype)
                    row: dict[str, Any] = {"feature": feature, "dtype": dtype, "widths": [width, width_v]}
                    results["rows"].append(row)
                    try:
                        launch: Launch = libraries.prepare(entry, **given)
                    except Refused as error:
                        row["refused"] = str(error)
                        continue
                    row |= {"images": launch.images, "kernels": [ran["kernel"] for ran in launch.variants]}
                    row["passed_over"] = launch.variants[0]["passed_over"]
                    launches[feature] = launch
                times = timing.measured(launches, 5, 14.0, look).milliseconds if launches else {}
                for row in results["rows"][-len(FEATURES) :]:
                    if row["feature"] in times:
                        took = statistics.median(times[row["feature"]])
                        amount = 2.0 * HEADS * pairs(row["feature"]) * (width + width_v)
                        row |= {"milliseconds": took, "tflops": amount / took / 1e9}
                with appear(path) as fresh:
                    fresh.write_text(json.dumps(results, indent=1) + "\n")


def implementation(row: dict[str, Any]) -> str:
    kernel = row["kernels"][0]
    return str(kernel.partition(".")[2] or kernel)


def reason(row: dict[str, Any]) -> str:
    """Why a general image serves a call: of what `explain` says of implementations that it passed over, what holds of
    all such calls, and of several the last; "" if that is nothing."""
    found = ""
    for clause in (row["passed_over"] or "").splitlines():  # kiln.h: a line for each
        lack = clause.partition(": ")[2]  # behind the implementation's name
        needed = lack.partition("its descriptor needs ")[2]
        said = f"descriptors need {needed}" if needed else lack.partition(": ")[2]
        found = said or found
    return found


def reasons(results: dict[str, Any]) -> list[str]:
    """All of them, each once."""
    general = [row for row in results["rows"] if "kernels" in row and implementation(row) == "general"]
    return [said for said in dict.fromkeys(map(reason, general)) if said]


def cell(row: dict[str, Any], numbered: list[str]) -> str:
    if "refused" in row:
        return "refused"
    name, why = implementation(row), ""
    if name == "general":
        said = reason(row)
        why = f" ({numbered.index(said) + 1 if said else '?'})"
    return f"{name} {row['tflops']:.0f}{why}"


def unexplained(results: dict[str, Any]) -> list[str]:
    found, numbered = [], reasons(results)
    for row in results["rows"]:
        if "?" in (said := cell(row, numbered)) or said == "refused":
            found.append(f"{row['feature']}, {row['dtype']}, {row['widths']}: {row.get('refused', row.get('kernels'))}")
    return found


def markdown(results: dict[str, Any]) -> str:
    gpu = results["gpu"]
    digest = (results["pack"] or {}).get("sha256", "unknown")
    parts = [
        f"# Attention: what serves each feature, on {gpu.get('name', 'a GPU')}",
        wrapped(
            f"Made by `benchmarks/attention/implementations.py`: driver {gpu.get('driver_version', 'unknown')}, SM "
            f"clock {clocks(results)} under load (at most {gpu.get('clocks.max.sm', 'unknown')}), "
            f"PyTorch {results['torch']}; release {results['release']}, sha256 of its pack `{digest}`. The "
            "implementation that `explain` names, and TFLOP/s of the products that rows see; "
            "medians of 5 rounds, the features of a column in turns."
        ),
        wrapped(
            f"{BATCH} sequences of {ROWS} rows, {HEADS} heads, rows before heads in memory. Causal are: causal, window "
            f"({WINDOW} keys), GQA (4 heads share one of keys), varlen ({', '.join(map(str, LENGTHS))} rows) and paged "
            f"prefill (pages of {PAGES} and of 16 keys, in random order). seqused: the second sequence has half of the "
            "rows. Strides: rows are 16 bytes, or 2, longer than their columns. bias: one matrix for all heads."
        ),
    ]
    numbered = reasons(results)
    for dtype in DTYPES:
        body = []
        for feature in FEATURES:
            mine = [r for r in results["rows"] if (r["feature"], r["dtype"]) == (feature, dtype)]
            body.append([feature, *(cell(row, numbered) for row in mine)])
        names = [f"{w}" if w == v else f"{w}/{v}" for w, v in WIDTHS]
        parts += [f"## {dtype}", piped(["feature", *names], body)]
    said = "\n".join(f"{place}. {why}" for place, why in enumerate(numbered, 1))
    every = dict.fromkeys(image for row in results["rows"] for image in row.get("images", ()))
    parts += ["## Why a general image", f"As `explain` says, by the recipe's `reason` or of a descriptor:\n\n{said}"]
    return "\n\n".join([*parts, "## Images", measured.listed(every, "What ran: key, target, variant.")]) + "\n"


def main() -> int:
    words = sys.argv[1:]
    if len(words) < 2 or len(words) > 3 or (len(words) == 3 and words[0] != "--page"):
        print(__doc__, file=sys.stderr)
        return 2
    if words[0] != "--page":
        measure(words[0], Path(words[1]))
        results = json.loads(Path(words[1]).read_text())
    else:
        results = json.loads(Path(words[1]).read_text())
        with appear(Path(words[2]) if words[2:] else PAGE) as fresh:
            fresh.write_text(markdown(results))
    missed = unexplained(results)
    print("\n".join(f"missed: {line}" for line in missed) or "passed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
