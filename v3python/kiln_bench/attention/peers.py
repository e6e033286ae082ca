"""The other sides: backends of PyTorch's scaled_dot_product_attention and, where they are installed, the packages
flash-attn (FlashAttention-2), flash_attn_interface (FlashAttention-3) and FlashInfer.

What they refuse they refuse themselves, but for what their functions have no argument for.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from kiln_bench.attention.problem import CacheProblem, Prepared, Problem, Side, dtype_of
from kiln_bench.attention.reference import GRADIENTS

if TYPE_CHECKING:
    import torch

Forward = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
_WORKSPACE = 256 << 20  # what FlashInfer's documentation asks for, twice


class NotAsked(RuntimeError):
    """A side's functions have no argument for what the call wants."""


def _gradients(problem: Problem, forward: Forward) -> Prepared:
    """The backward of a function that PyTorch differentiates."""
    import torch

    leaves = [tensor.detach().requires_grad_() for tensor in (problem.q, problem.k, problem.v)]
    out = forward(*leaves)
    found: list[Any] = []

    def run() -> None:
        found[:] = torch.autograd.grad(out, leaves, problem.dout, retain_graph=True)

    return Prepared([run], lambda: dict(zip(GRADIENTS, found)))


def _forward(problem: Problem, forward: Forward) -> Prepared:
    import torch

    found: list[Any] = []

    def run() -> None:
        with torch.no_grad():
            found[:] = [forward(problem.q, problem.k, problem.v)]

    return Prepared([run], lambda: {"out": found[0]})


def _each_cache(problem: CacheProblem, forward: Callable[[Any, Any], torch.Tensor]) -> Prepared:
    """Decoding by a function of keys and values."""
    import torch

    found: list[Any] = []

    def work(keys: torch.Tensor, values: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                found[:] = [forward(keys, values)]

        return run

    return Prepared([work(*cache) for cache in problem.caches], lambda: {"out": found[0]})


class Torch:
    """A backend of F.scaled_dot_product_attention."""

    def __init__(self, name: str, label: str, backend: str) -> None:
        from torch.nn.attention import SDPBackend

        self.name, self.label, self._backend = name, label, getattr(SDPBackend, backend)

    def training(self, problem: Problem, part: str) -> Prepared:
        shape = problem.shape
        if shape.softcap or shape.sinks:
            raise NotAsked("scaled_dot_product_attention has no soft cap and no sinks")
        if shape.deterministic and part == "backward":
            raise NotAsked("its backward is deterministic only where all of PyTorch is")
        is_plain = problem.starts is None and not shape.window
        forward = self._one_length(problem) if is_plain else self._several_lengths(problem, part)
        return (_gradients if part == "backward" else _forward)(problem, forward)

    def _one_length(self, problem: Problem) -> Forward:
        import torch
        from torch.nn.attention import sdpa_kernel

        shape, attention = problem.shape, torch.nn.functional.scaled_dot_product_attention
        if self.name == "math":
            _check_memory(shape.batch * shape.heads * shape.length**2 * 12)
        options = {"is_causal": shape.causal, "enable_gqa": shape.heads != shape.heads_kv}

        def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(self._backend):
                return attention(q, k, v, **options)

        return forward

    def _several_lengths(self, problem: Problem, part: str) -> Forward:
        """FlashAttention-2 by torch.nn.attention.varlen of PyTorch 2.10 and later; windows too. cuDNN by what that
        module calls for it, which has no gradient, no window and no shared heads."""
        import torch

        shape, starts = problem.shape, problem.starts
        is_cudnns = part == "forward" and starts is not None and shape.heads == shape.heads_kv and not shape.window
        if self.name == "cudnn" and is_cudnns and hasattr(torch.ops.aten, "_cudnn_attention_forward"):
            sizes = (starts, starts, shape.length, shape.length)

            def by_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
                given = map(problem.flat, (q, k, v))
                attention = torch.ops.aten._cudnn_attention_forward
                return problem.unflat(attention(*given, None, *sizes, True, 0.0, shape.causal, False)[0])

            return by_cudnn
        if starts is None:
            if self.name != "flash":
                raise NotAsked("scaled_dot_product_attention has no window")
            starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=problem.device) * shape.rows
        if self.name != "flash" or importlib.util.find_spec("torch.nn.attention.varlen") is None:
            raise NotAsked("scaled_dot_product_attention takes sequences of one length")
        from torch.nn.attention.varlen import varlen_attn

        known = inspect.signature(varlen_attn).parameters
        options: dict[str, Any] = {}
        if "window_size" in known:
            options["window_size"] = (shape.window - 1 if shape.window else -1, 0 if shape.causal else -1)
        elif shape.window:
            raise NotAsked("this PyTorch's varlen_attn has no window")
        else:
            options["is_causal"] = shape.causal
        if "enable_gqa" in known:
            options["enable_gqa"] = shape.heads != shape.heads_kv

        def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            given = map(problem.flat, (q, k, v))
            return problem.unflat(varlen_attn(*given, starts, starts, shape.length, shape.length, **options))

        return forward

    def decoding(self, problem: CacheProblem) -> Prepared:
        import torch
        from torch.nn.attention import sdpa_kernel

        shape, attention = problem.shape, torch.nn.functional.scaled_dot_product_attention
        if problem.table is not None:
            raise NotAsked("scaled_dot_product_attention takes no pages")
        if shape.cache_dtype != shape.dtype:
            raise NotAsked("scaled_dot_product_attention takes no cache of another dtype")
        is_grouped = shape.heads != shape.heads_kv

        def forward(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(self._backend):
                return attention(problem.q, keys, values, enable_gqa=is_grouped)

        return _each_cache(problem, forward)


def _check_memory(needed: int) -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        if needed > torch.cuda.mem_get_info()[0]:
            raise NotAsked("it keeps all scores, and there is not enough memory for them")


class Flash:
    """The package flash-attn, or FlashAttention-3's, whose functions have the same names."""

    def __init__(self, name: str, label: str, module: Any) -> None:
        self.name, self.label, self._module = name, label, module

    def training(self, problem: Problem, part: str) -> Prepared:
        shape, starts, module = problem.shape, problem.starts, self._module
        if shape.sinks:
            raise NotAsked("it has no sinks")
        options = {"causal": shape.causal, "window_size": (shape.window - 1, 0) if shape.window else (-1, -1)}
        options |= {"softcap": float(shape.softcap)} if shape.softcap else {}
        options |= {"deterministic": True} if shape.deterministic else {}

        def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if starts is None:
                rows_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
                return _first(module.flash_attn_func(*rows_first, **options)).transpose(1, 2)
            given = (*map(problem.flat, (q, k, v)), starts, starts, shape.length, shape.length)
            return problem.unflat(_first(module.flash_attn_varlen_func(*given, **options)))

        return (_gradients if part == "backward" else _forward)(problem, forward)

    def decoding(self, problem: CacheProblem) -> Prepared:
        if problem.scales is not None:
            raise NotAsked("flash_attn_with_kvcache takes no cache in fp8 with a scale for each head")
        attention, query, paged = self._module.flash_attn_with_kvcache, problem.q.transpose(1, 2), {}
        if problem.table is not None:
            # FlashAttention-3 calls it page_table.
            known = inspect.signature(attention).parameters
            paged = {"page_table" if "page_table" in known else "block_table": problem.table}

        def forward(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            caches = (keys.transpose(1, 2), values.transpose(1, 2))
            return _first(attention(query, *caches, cache_seqlens=problem.used, **paged)).transpose(1, 2)

        return _each_cache(problem, forward)


def _first(answer: Any) -> torch.Tensor:
    """Of some versions' tuples the result."""
    return answer[0] if isinstance(answer, tuple) else answer


class FlashInfer:
    """FlashInfer's wrappers, planned once. It wants rows before heads and no gaps: it gets copies that are."""

    name, label = "flashinfer", "FlashInfer"

    def __init__(self, module: Any) -> None:
        self._module = module

    def training(self, problem: Problem, part: str) -> Prepared:
        import torch

        if part == "backward":
            raise NotAsked("FlashInfer has no backward")
        shape, starts = problem.shape, problem.starts
        if shape.sinks:
            raise NotAsked("this wrapper of FlashInfer has no sinks")
        if starts is None:
            starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=problem.device) * shape.rows
        given = [problem.flat(tensor).contiguous() for tensor in (problem.q, problem.k, problem.v)]
        wrapper = self._module.BatchPrefillWithRaggedKVCacheWrapper(self._workspace(problem.device), "NHD")
        wrapper.plan(
            starts, starts, shape.heads, shape.heads_kv, shape.head_dim, head_dim_vo=shape.head_dim_v,
            causal=shape.causal, window_left=shape.window - 1 if shape.window else -1,
            q_data_type=dtype_of(shape.dtype), **({"logits_soft_cap": float(shape.softcap)} if shape.softcap else {}),
        )  # fmt: skip
        found: list[Any] = []

        def run() -> None:
            found[:] = [wrapper.run(*given)]

        return Prepared([run], lambda: {"out": problem.unflat(found[0])})

    def decoding(self, problem: CacheProblem) -> Prepared:
        import torch

        shape = problem.shape
        if problem.scales is not None:
            raise NotAsked("FlashInfer takes no cache in fp8 with a scale for each head")
        page = shape.page or shape.keys  # a contiguous cache is one page for each sequence
        pages = shape.keys // page
        places = {"dtype": torch.int32, "device": problem.device}
        table = problem.table if problem.table is not None else torch.arange(shape.batch, **places)
        wrapper = self._module.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace(problem.device), "NHD" if shape.rows_first else "HND",
            use_tensor_cores=shape.heads > shape.heads_kv,
        )  # fmt: skip
        starts = torch.arange(shape.batch + 1, **places) * pages
        lasts = torch.full((shape.batch,), page, **places)  # keys on each sequence's last page
        wrapper.plan(
            starts, table.flatten(), lasts, shape.heads, shape.heads_kv, shape.head_dim, page,
            q_data_type=dtype_of(shape.dtype), kv_data_type=dtype_of(shape.cache_dtype),
        )  # fmt: skip
        query = problem.q.squeeze(2)

        def forward(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            cache = (keys.transpose(1, 2), values.transpose(1, 2)) if shape.rows_first else (keys, values)
            return wrapper.run(query, cache).unsqueeze(2)

        return _each_cache(problem, forward)

    @staticmethod
    def _workspace(device: str) -> torch.Tensor:
        import torch

        return torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)


# By the names that --sides takes: labels, and what makes the side.
NAMES = {
    "flash": "PyTorch, flash", "efficient": "PyTorch, efficient", "cudnn": "PyTorch, cuDNN", "math": "PyTorch, math",
    "flash-attn": "flash-attn 2", "flash-attn-3": "flash-attn 3", "flashinfer": "FlashInfer",
}  # fmt: skip
_BACKENDS = {
    "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "math": "MATH",
}  # fmt: skip
PACKAGES = {"flash-attn": "flash_attn", "flash-attn-3": "flash_attn_interface", "flashinfer": "flashinfer"}


def there(names: list[str]) -> tuple[list[Side], dict[str, str]]:
    """The sides of these names that are installed, and why others are not there."""
    found: list[Side] = []
    absent: dict[str, str] = {}
    for name in names:
        if name in _BACKENDS:
            found.append(Torch(name, NAMES[name], _BACKENDS[name]))
            continue
        package = PACKAGES[name]
        try:
            module = importlib.import_module(package)
        except ImportError as error:
            is_missing = isinstance(error, ModuleNotFoundError) and error.name == package
            absent[name] = "is not installed" if is_missing else f"cannot be imported ({error})"
            continue
        found.append(FlashInfer(module) if name == "flashinfer" else Flash(name, NAMES[name], module))
    return found, absent


def versions() -> dict[str, str]:
    """Of the packages that are installed, by the names of --sides."""
    found = {}
    for name, distribution in (
        ("flash-attn", "flash-attn"),
        ("flash-attn-3", "flash-attn-3"),
        ("flashinfer", "flashinfer-python"),
    ):
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            continue
    return found
