"""The family compiled without a GPU: functionals of the full profile to Triton's IR, and of each kernel an image for
each target, held against what it was asked to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kiln_build.ledger import file as ledger_file
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "tritonsrc/flash/recipe.yaml"
PROCESSORS = len(os.sched_getaffinity(0))
TARGETS = tuple(sorted(ledger_file.targets_of(ROOT / "ledger")))
pytestmark = pytest.mark.slow(60)

PRELUDE = """
import contextlib, dataclasses, importlib.util, json, sys
from pathlib import Path
from kiln_recipe import targets
from kiln_recipe.compile import compile, lock, toolchain
from kiln_recipe.images import elf, judge
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from kiln_recipe.images.image import Image

# Not imported here: what Triton reads from the environment while it is imported must be ours already.
wheels = lock.read_lock(Path("input", lock.LOCK_NAME)).members_of("triton")
chain = toolchain.find_toolchain(Path(importlib.util.find_spec("triton").origin).parents[1], wheels)
compile.prepare_worker(chain)
flash = recipe.load(Path("tritonsrc/flash/recipe.yaml"))
def variants(words, profile):
    return plan.make_plan([flash], targets.parse(words), profile, ()).variants
"""

LOWER = """
@contextlib.contextmanager
def stop(digest):
    yield Image(b"", None)  # as if an image of this IR were there already: nothing is compiled

done, part, parts, all_of_them = {}, *map(int, sys.argv[1:])
# Block sizes and options are another matter: one variant of each functional and specialization.
chosen = {}
for variant in variants("sm_90", "full"):
    chosen.setdefault((variant.kernel, variant.functional, variant.specialization), variant)
distinct = {(v.spec.function, v.spec.signature, v.spec.constants, v.spec.divisible): v for v in chosen.values()}
seen, taken = set(), []
for variant in distinct.values():
    values = {(variant.kernel, value) for value in variant.functional.split()}
    if all_of_them or values - seen or variant.kernel not in {other.kernel for other in taken}:
        seen |= values
        taken.append(variant)
for number, variant in enumerate(taken):
    if number % parts == part:
        assert len(compile.compile_variant(variant.spec, chain, stop).ir) == 64
        done[variant.kernel] = done.get(variant.kernel, 0) + 1
print(json.dumps({"functionals": len(chosen), "distinct": len(distinct), "kernels": done}))
"""

SAMPLE = """
found = {}
for variant in variants(sys.argv[1], "core"):
    words = dict(word.split("=") for word in variant.functional.split())
    # Everything at once, and the smallest or largest head of the core profile.
    size = int(words.get("head_dim", 0)) * (1 if sys.argv[2] == "largest" else -1)
    weight = (words.get("extras") == "any", size, words.get("dtype") == "bf16")
    if variant.specialization != "generic" or variant.kernel not in found:
        if variant.kernel not in found or weight > found[variant.kernel][0]:
            found[variant.kernel] = (weight, variant)
target = targets.by_name(sys.argv[1])
answer = {}
for kernel, (_, variant) in found.items():
    image = compile.compile_variant(variant.spec, chain).image
    row = {"verdict": judge.verdict(image.info, target, variant.parameter_count, variant.spill_allowance),
           "types": [kind for _, kind in variant.spec.signature if kind != "constexpr"],
           "warps": dict(variant.spec.options)["num_warps"], "info": dataclasses.asdict(image.info)}
    facts = elf.amd_facts(image.code) if target.vendor == "amd" else elf.nvidia_facts(image.code)
    answer[kernel] = row | {"facts": dataclasses.asdict(facts)}
print(json.dumps(answer))
"""
SIZES = {"i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "fp32": 4, "i64": 8, "u64": 8, "fp64": 8}


def start(code: str, *words: object) -> subprocess.Popen:
    """A process that runs `code` behind the prelude: workers empty their environment."""
    command = [sys.executable, "-c", PRELUDE + code, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "v3python")}
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def answer(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err[-4000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["some", "all"])
def test_functionals_of_the_full_profile_have_an_ir(every):
    """Of each kernel those in which a value of a choice is for the first time; with --slow all."""
    answers = [
        answer(process) for process in [start(LOWER, part, PROCESSORS, int(every)) for part in range(PROCESSORS)]
    ]
    counts: dict[str, int] = {}
    for one in answers:
        for kernel, count in one["kernels"].items():
            counts[kernel] = counts.get(kernel, 0) + count
    assert set(counts) == set(functions("sm_90"))
    assert answers[0]["functionals"] > 2000
    if every:
        assert sum(counts.values()) == answers[0]["distinct"]
        # Three dtypes, twelve head sizes, five kinds of extras, two specializations, and two paddings for 64 and 128.
        assert counts["attn_bwd_dq"] >= 3 * 12 * 5 * 2
    else:
        assert counts["attn_bwd_dq"] >= 12 + 2, "each head size, and other dtypes"


@pytest.fixture(scope="module", params=["smallest", pytest.param("largest", marks=pytest.mark.heavy)])
def samples(request):
    """What SAMPLE answers, by target: as many of them at a time as there are processors."""
    pool = ThreadPoolExecutor(PROCESSORS)
    yield {t: pool.submit(lambda target: answer(start(SAMPLE, target, request.param)), t) for t in TARGETS}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("target", TARGETS)
def test_a_sample_of_each_kernel_is_what_it_was_asked_to_be(samples, target):
    rows = samples[target].result()
    known = functions(target)
    planned = plan.make_plan([recipe.load(RECIPE)], (targets.by_name(target),), "core")
    assert set(rows) == {variant.kernel for variant in planned.variants} <= set(known)
    for kernel, row in rows.items():
        info, facts = row["info"], row["facts"]
        assert row["verdict"] == [], f"{kernel}: {row['verdict']}"
        assert info["symbol"] == known[kernel]
        if target.startswith("gfx"):
            assert facts["target"].split(":")[0] == target
            assert facts["wavefront_size"] == targets.by_name(target).warp_size
            assert facts["max_flat_workgroup_size"] == row["warps"] * facts["wavefront_size"]
        else:
            assert facts["sm"] == int(target.removeprefix("sm_"))
            # Two consumers, or three, and producers that fill a warpgroup; of fp8 some of these transpose.
            is_specialized = kernel.startswith(("attn_fwd.hopper", "attn_fwd_fp8.", "attn_bwd_fused.", "attn_prefill"))
            groups = 4 if kernel == "attn_fwd_fp8.unmasked" else 3 if is_specialized else 1
            assert facts["threads"] == row["warps"] * 32 * groups
        parameters = facts["arguments"] if target.startswith("gfx") else facts["parameters"]
        if not any(kind.startswith("tensordesc") for kind in row["types"]):  # tests/runtime/test_descriptors.py
            assert _layout(row["types"]) == [(p["offset"], p["size"]) for p in parameters][: len(row["types"])], kernel


def functions(target: str) -> dict[str, str]:
    """The function of each kernel that the recipe has for a target, by the kernel's full name."""
    operations = recipe.load(RECIPE).operations
    kernels = [kernel for operation in operations for kernel in operation.kernels]
    return {kernel.name: kernel.function for kernel in kernels if kernel.is_for(targets.by_name(target))}


def _layout(types: list[str]) -> list[tuple[int, int]]:
    """Where the runtime puts arguments of these types: each at a multiple of its size (launch.cc)."""
    offset, result = 0, []
    for kind in types:
        size = 8 if kind.startswith("*") else SIZES[kind]
        offset = -(-offset // size) * size
        result.append((offset, size))
        offset += size
    return result
