"""kiln.jit and a release on one GPU: the same calls by both. For a process of its own."""

from __future__ import annotations

import json
import math
import sys
import time
import types
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Scalars that mean something where they are not given; the others are 0.
NUMBERS = {"window_left": -1, "window_right": -1, "sm_scale": 0.125, "softcap": 1.0, "keep_scale": 1.0}
BATCH, HEADS, HEADS_KV, ROWS, KEYS, WIDTH = 2, 8, 2, 500, 900, 64
# Of these calls a release has kernels in Gluon for heads of 64, which kiln.jit leaves to others; for these it has none.
NARROW, NARROW_CALLS = 32, ("backward", "decoding")


def begin(prefix: Path) -> None:
    """Makes this process ready; `prefix`: the unpacked release."""
    global _prefix
    # No compiler makes the package's extension here, and kiln.jit needs none; its table of arguments is generated.
    sys.path += [str(ROOT / folder) for folder in ("v3python", "tests/gpu", "tests/runtime")]
    from kiln_build.native import argument_files, arguments

    kiln = types.ModuleType("kiln")
    kiln.__path__ = [str(ROOT / "bindings/python/kiln")]
    sys.modules["kiln"] = kiln
    generated = types.ModuleType("kiln._arguments")
    exec(argument_files.python_module(arguments.read(ROOT / arguments.TABLE)), generated.__dict__)
    sys.modules["kiln._arguments"] = kiln._arguments = generated
    _prefix = prefix


@cache
def ahead():
    from release import Flash

    return Flash(_prefix)


@cache
def manifest() -> dict:
    return json.loads((_prefix / "share/kiln/manifest.json").read_bytes())


@cache
def recipe():
    """The attention family's, of the release's profile and selection."""
    import kiln.jit

    return kiln.jit.Recipe(profile=manifest()["profile"], select=manifest()["selection"], interpret=False)


def call_of(name: str) -> tuple[str, dict[str, object], tuple[str, ...]]:
    """The operation of a call, its arguments by name, and which of them it writes."""
    import torch

    draw = torch.Generator("cuda").manual_seed(len(name))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, device="cuda").to(torch.bfloat16)

    def integers(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    if name == "dropout mask":
        mask = torch.empty(2, 3, 200, 333, dtype=torch.uint8, device="cuda")
        return "dropout_mask", {"mask": mask, "threshold": 1 << 30, "seed_value": 5, "offset_value": 7}, ("mask",)
    if name == "lengths of sequences":
        given = {"cu_seqlens": integers(0, 1, 300, 300, 700), "begins": integers(9, 0, 800, 400)}
        made = {"lengths": integers(*[0] * 4), "begins_out": integers(*[0] * 5)}
        return "seq_lengths", given | made | {"most": 350, "total": 1200}, ("lengths", "begins_out")
    width = NARROW if name in NARROW_CALLS else WIDTH
    q, k, v = normal(BATCH, HEADS, ROWS, width), *(normal(BATCH, HEADS_KV, KEYS, width) for _ in "kv")
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
    arguments: dict[str, object] = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "window_right": 0}
    if name == "forward":
        return "attn_fwd", arguments, ("out", "lse")
    if name == "forward of what is not aligned":
        odd = normal(BATCH, HEADS, ROWS, WIDTH + 1)[..., 1:]
        return "attn_fwd", arguments | {"q": odd, "window_left": 100}, ("out", "lse")
    if name == "forward of sequences":
        packed = {
            "q": normal(1, HEADS, ROWS, WIDTH),
            "out": torch.empty(1, HEADS, ROWS, WIDTH, dtype=q.dtype, device="cuda"),
        }
        packed |= {"k": normal(1, HEADS_KV, KEYS, WIDTH), "v": normal(1, HEADS_KV, KEYS, WIDTH), "lse": lse[:1].clone()}
        bounds = {"cu_seqlens_q": integers(0, 1, 200, 500), "cu_seqlens_k": integers(0, 200, 500, 900)}
        return "attn_fwd", arguments | packed | bounds | {"bottom_right": 1}, ("out", "lse")
    if name == "backward":
        recipe().operation("attn_fwd")(**filled("attn_fwd", arguments))
        grads = {f"d{of}": torch.empty_like(arguments[of]) for of in "qkv"}
        sinks = {"sinks": torch.zeros(HEADS, device="cuda"), "dsinks": torch.empty(HEADS, device="cuda")}
        more = {"dout": normal(*q.shape), "deterministic": 1}
        return "attn_bwd", arguments | grads | sinks | more, ("dq", "dk", "dv", "dsinks")
    assert name == "decoding"
    angle = torch.rand((KEYS, 16), generator=draw, device="cuda") * 6
    few = {"q": q[:, :, :2], "out": out[:, :, :2].contiguous(), "lse": lse[:, :, :2].contiguous()}
    few |= {
        "k_cache": k,
        "v_cache": v,
        "k_new": normal(BATCH, HEADS_KV, 2, width),
        "v_new": normal(BATCH, HEADS_KV, 2, width),
    }
    few |= {"rotary_cos": angle.cos().bfloat16(), "rotary_sin": angle.sin().bfloat16(), "seqused_k": integers(5, 800)}
    return "attn_decode", few | {"window_right": 0, "wanted_splits": 3}, ("out", "lse", "k_cache", "v_cache")


CALLS = (
    "forward", "forward of what is not aligned", "forward of sequences", "backward", "decoding", "dropout mask",
    "lengths of sequences",
)  # fmt: skip


def filled(operation: str, some: dict[str, object]) -> dict[str, object]:
    """All arguments of a call: `some`, the others absent or as NUMBERS has them."""

    def other(argument: object) -> object:
        number = NUMBERS.get(argument.name, 0)
        return {"tensor": None, "int": number, "float": float(number)}[argument.kind]

    model = recipe()._loaded.operation(operation)
    assert set(some) <= {argument.name for argument in model.arguments}
    return {argument.name: some.get(argument.name, other(argument)) for argument in model.arguments}


def run_ahead(operation: str, arguments: dict[str, object]) -> list[dict]:
    """Launches the release's images; tells which."""
    import torch
    from release import decoded
    from storage import describe

    kiln, stream = ahead().kiln, torch.cuda.current_stream().cuda_stream
    values = [describe(v) if isinstance(v, torch.Tensor) else v for v in arguments.values()]
    name = f"flash.{operation}"
    size = kiln.workspace_size(kiln.call(values, operation=name, stream=stream))
    workspace = torch.empty(size + 1, dtype=torch.uint8, device="cuda")
    call = kiln.call(
        values, operation=name, stream=stream, workspace=workspace.data_ptr(), workspace_bytes=size
    )  # fmt: skip
    explained = [decoded(variant) for variant in kiln.explain(call)]
    kiln.launch(call)
    torch.cuda.synchronize()
    return explained


def compared(name: str) -> dict[str, object]:
    """One call by both: by kernel what differs, whether all bits are equal, and the largest difference."""
    import torch

    import kiln.jit

    operation, some, written = call_of(name)
    arguments, results = filled(operation, some), []
    before = {what: arguments[what].clone() for what in written}
    begun, explained = time.monotonic(), []
    for here in (False, True):
        own = arguments | {what: tensor.clone() for what, tensor in before.items()}
        for what in written:
            if not what.endswith("_cache"):
                own[what].view(torch.uint8).fill_(255)
        if here:
            recipe().operation(operation)(**own)
        else:
            explained = run_ahead(operation, own)
        torch.cuda.synchronize()
        results.append([own[what] for what in written])
    rows = kiln.jit.compare(
        recipe().operation(operation).explain(**own), explained, _prefix / "share/kiln/manifest.json"
    )  # fmt: skip
    pairs = [(one.double(), other.double()) for one, other in zip(*results)]
    far = max(((one - other).abs() / (1 + other.abs())).nan_to_num(0.0).max().item() for one, other in pairs)
    whole = all((one.isnan() == other.isnan()).all().item() for one, other in pairs)
    equal = all(torch.equal(one.view(torch.uint8), other.view(torch.uint8)) for one, other in zip(*results))
    return {
        "kernels": [row.kernel for row in rows],
        "differences": [clause for row in rows for clause in row.differences],
        "bits": equal,
        "far": far if whole else math.inf,
        "seconds": round(time.monotonic() - begun, 1),
    }


def engine_and_interpreter() -> dict[str, float]:
    """The typed layer compiled, interpreted on the CPU, and compiled again: the largest differences from PyTorch's."""
    import torch

    import kiln.jit

    draw, far = torch.Generator().manual_seed(1), {}
    q, k, v = (torch.randn(2, h, 40, WIDTH, generator=draw).bfloat16() for h in (4, 2, 2))
    leaves = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
    dout = torch.randn(expected.shape, generator=draw).bfloat16()
    grads = torch.autograd.grad(expected, leaves, dout.double())
    compiled = kiln.jit.Engine(recipe())
    interpreted = kiln.jit.Engine(kiln.jit.Recipe(interpret=True))
    for step, (engine, device) in enumerate(((compiled, "cuda"), (interpreted, "cpu"), (compiled, "cuda"))):
        given = [tensor.to(device) for tensor in (q, k, v, dout)]
        out, lse = engine.attn_fwd(*given[:3], causal=True, for_backward=True)
        found = engine.attn_bwd(given[3], *given[:3], out, lse, causal=True)[:3]
        pairs = zip((out, *found), (expected, *grads))
        far[f"{engine.name} {step}"] = max((a.cpu().double() - b).abs().max().item() for a, b in pairs)
    return far


def strangers_family() -> float:
    """A family whose output is zeroed before an atomic kernel, compiled here."""
    import torch

    import kiln.jit

    norm = kiln.jit.Recipe(ROOT / "examples" / "family" / "recipe.yaml", interpret=False).operation("rms_norm")
    x, w = torch.randn(100, 1000, device="cuda"), torch.randn(1000, device="cuda")
    out, total = torch.empty_like(x), torch.full((1,), 7.0, device="cuda")
    norm(x, w, out, total, 1e-6)
    expected = w * x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt()
    return max((out - expected).abs().max().item(), abs(total.item() / x.square().sum().item() - 1))


def refusals() -> list[str]:
    """What is refused on a GPU."""
    import torch

    import kiln.jit

    told, q = [], torch.ones(1, 2, 16, 600, device="cuda", dtype=torch.bfloat16)
    compiled, interpreted = (kiln.jit.Engine(kiln.jit.Recipe(interpret=mode)) for mode in (False, True))
    for engine, tensor in ((compiled, q), (compiled, q.cpu()), (interpreted, q)):
        try:
            engine.attn_fwd(tensor, tensor, tensor)
        except kiln.jit.errors.KilnError as error:
            told.append(f"{type(error).__name__}: {error}")
    return told
