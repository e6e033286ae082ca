"""Small calls of every kernel of a release, for compute-sanitizer: without PyTorch, which is slow under it.

    compute-sanitizer --tool memcheck python3 sample.py PREFIX [WORD,...]

The words, all if none is given: "bf16", "fp16" and "fp32" are calls of every feature in that dtype; "wide" has every
head dimension in 16 bits, each kernel of which Hopper has several, and caches; "fp8" is forward of fp8; "gradients" are
those of Hopper's fused kernels, whose warps hand tiles on by mbarriers, of which racecheck reports every byte;
"products" are those of examples/matmul, if the release was made with it.

Whether results are right is what other tests are for. Prints what it ran. Fails, with exit code 1, if the release has
an image for this GPU whose kernel, of that head dimension, one of the words is to run (`word_of`), and no call ran.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import re
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
from common import cudadriver, ffi, make_context

BATCH, HEADS, HEADS_KV, ROWS, KEYS = 2, 4, 2, 70, 90
LATENT, LATENT_VALUES = 576, 512  # columns
CODES = {"fp32": ffi.FP32, "fp16": ffi.FP16, "bf16": ffi.BF16}
WORDS = (*CODES, "wide", "fp8", "gradients", "products")
RANDOM = np.random.default_rng(0)

Reached = tuple[str, str, int]  # operation, kernel, head dimension; 0: the kernel has one for all


def reached_by(variant: dict) -> Reached:
    """What a variant counts as."""
    operation, kernel, functional = (variant[name].decode() for name in ("operation", "kernel", "functional"))
    found = re.search(r"head_dim=(\d+)", functional)
    return operation, kernel, int(found[1]) if found else 0


def word_of(one: Reached) -> str:
    """Whose calls are to run it."""
    operation, kernel, _ = one
    if operation.startswith("matmul."):
        return "products"
    if operation == "flash.attn_fwd_fp8":
        return "fp8"
    return "gradients" if kernel.startswith(("attn_bwd_fused", "attn_bwd_delta", "attn_bwd_finish")) else "wide"


def missing(release: set[Reached], ran: set[Reached], words: Collection[str]) -> list[Reached]:
    """What the release has, these words are to run, and did not."""
    return sorted(one for one in release - ran if word_of(one) in words)


def as_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """bf16 by its bits: the upper half of fp32's."""
    values = values.astype(np.float32)
    if dtype == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16) if dtype == "fp16" else values


class Sample:
    """Calls, whose memory is of exactly the size that they may touch."""

    def __init__(self, prefix: Path) -> None:
        self.library = ffi.Library(prefix / "lib")
        self.flash = ctypes.CDLL(str(prefix / "lib/libkiln_flash.so"))
        self.kiln = ffi.Kiln(self.library, None)
        self.kiln.register(self.flash, "flash")
        self.ran: list[str] = []
        self.reached: set[Reached] = set()
        matmul = prefix / "lib/libkiln_matmul.so"
        self.has_products = matmul.is_file()
        if self.has_products:
            self.kiln.register(ctypes.CDLL(str(matmul)), "matmul")
        device = self.kiln.devices()[0]
        self.multiprocessors = device["multiprocessors"]
        found = self.kiln.variants(None, device["target"].decode())
        self.variants = [variant for variant in found if variant["unavailable"] is None]
        self.release = {reached_by(variant) for variant in self.variants}

    def dtypes(self, operation: str) -> list[str]:
        """Those of an operation's images in the release."""
        functionals = [v["functional"].decode().split() for v in self.variants if v["operation"].decode() == operation]
        return [dtype for dtype in CODES if any(f"dtype={dtype}" in words for words in functionals)]

    def widths(self, kernel: str) -> list[int]:
        """The head dimensions of a kernel, or of its implementations, in the release."""
        return sorted({width for _, name, width in self.release if name.split(".")[0] == kernel or name == kernel})

    def has(self, kernel: str) -> bool:
        return bool(self.widths(kernel))

    @property
    def has_fp8_caches(self) -> bool:
        return any(b"cache_dtype=fp8e4m3" in variant["functional"] for variant in self.variants)

    def key(self, kernel: str, *words: str) -> bytes:
        """Of a variant of a kernel that has these words in its functional."""
        return next(
            variant["key"] for variant in self.variants
            if variant["kernel"].decode() == kernel and set(words) <= set(variant["functional"].decode().split())
        )  # fmt: skip

    def put(self, array: np.ndarray, code: int) -> ffi.Tensor:
        array = np.ascontiguousarray(array)
        memory = cudadriver.Memory(array)
        view = ffi.tensor(memory.address.value, code, array.shape)
        view.memory = memory  # it must live as long
        return view

    def normal(self, dtype: str, *shape: int) -> ffi.Tensor:
        return self.put(as_dtype(RANDOM.standard_normal(shape), dtype), CODES[dtype])

    def integers(self, *values: int) -> ffi.Tensor:
        return self.put(np.array(values, np.int32), ffi.INT32)

    def call(
        self, what: str, entry: str, params: ctypes.Structure, tensors: dict[str, ffi.Tensor | None],
        keys: tuple[bytes, ...] = (),
    ) -> None:  # fmt: skip
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(params, name, ctypes.pointer(tensor))
        queue = ffi.Queue(ctypes.sizeof(ffi.Queue), ffi.NVIDIA, 0, None)
        arguments = (self.kiln.handle, ctypes.byref(queue), ctypes.byref(params))
        size, workspace = ctypes.c_uint64(), None
        if entry == "kiln_dropout_mask":  # it has nothing that explains it
            self.reached |= {one for one in self.release if one[0] == "flash.dropout_mask"}
        else:
            names = (ctypes.c_char_p * max(len(keys), 1))(*keys)
            params.force_keys, params.force_count = names, len(keys)
            seen: set[Reached] = set()
            visit = ffi.VariantFn(lambda variant, _: seen.add(reached_by(ffi._fields(variant.contents))) or 0)
            self.library.check(getattr(self.flash, f"{entry}_explain")(*arguments, visit, None))
            self.reached |= seen
            self.library.check(getattr(self.flash, f"{entry}_workspace")(*arguments, ctypes.byref(size)))
        if size.value:
            workspace = cudadriver.Memory(np.full(size.value, 255, np.uint8))
            params.workspace, params.workspace_bytes = workspace.address.value, size.value
        self.library.check(getattr(self.flash, entry)(*arguments))
        cudadriver.call("cuCtxSynchronize")
        self.ran.append(what)
        if workspace:
            workspace.free()

    def attention(
        self, dtype: str, width: int, extras: str, varlen: bool, backward: bool = True, width_v: int = 0,
        deterministic: bool = False, rows: int = ROWS, keys: int = KEYS, batch_invariant: bool = False,
    ) -> None:  # fmt: skip
        """`batch_invariant`: of forward, whose choice of kernels it narrows."""
        width_v = width_v or width
        q, k, v, dout = (
            self.normal(dtype, BATCH, h, n, wide)
            for h, n, wide in (
                (HEADS, rows, width), (HEADS_KV, keys, width), (HEADS_KV, keys, width_v), (HEADS, rows, width_v)
            )
        )  # fmt: skip
        out, dq, dk, dv = (self.normal(dtype, *tuple(like.sizes)[:4]) for like in (dout, q, k, v))
        lse = self.put(np.zeros((BATCH, HEADS, rows), np.float32), ffi.FP32)

        def has(name: str) -> bool:
            return extras in (name, "any")

        shared = {
            "q": q, "k": k, "v": v, "out": out, "lse": lse,
            "bias": self.normal(dtype, BATCH, HEADS, rows, keys) if has("bias") else None,
            "sinks": self.normal("fp32", HEADS) if has("any") else None,
            "alibi_slopes": self.normal("fp32", BATCH, HEADS) if has("bias") else None,
            "seqused_q": self.integers(rows, 33) if varlen else None,
            "seqused_k": self.integers(11, keys) if varlen else None,
        }  # fmt: skip
        numbers = {
            "causal": 1, "bottom_right": 1, "softcap": 9.0 if has("softcap") else 0.0,
            "dropout": 0.3 if has("dropout") else 0.0, "seed_value": 5,
        }  # fmt: skip
        forward = ffi.AttnFwd(**numbers, batch_invariant=int(batch_invariant))
        sizes = f"{rows} rows, {keys} keys, {width} and {width_v} wide"
        what = f"{dtype}, {sizes}, {extras}{', padded sequences' if varlen else ''}"
        self.call(f"forward: {what}", "kiln_attn_fwd", forward, shared)
        gradients = {"dout": dout, "dq": dq, "dk": dk, "dv": dv}
        if has("bias"):
            gradients["dbias"] = self.normal(dtype, BATCH, HEADS, rows, keys)
        if has("any"):
            gradients["dsinks"] = self.normal("fp32", HEADS)
        if backward:
            params = ffi.AttnBwd(**numbers, deterministic=int(deterministic))
            self.call(f"backward: {what}", "kiln_attn_bwd", params, shared | gradients)
        for tensor in (*shared.values(), *gradients.values()):
            if tensor is not None:
                tensor.memory.free()

    def decode(
        self, dtype: str, width: int, *, paged: bool, fp8: bool, append: bool, rows: int = 3, latent: bool = False,
        keys: tuple[bytes, ...] = (), splits: tuple[int, ...] = (1, 4),
    ) -> None:  # fmt: skip
        """`latent`: values are the first columns of one head of keys. `keys`: what is forced."""
        size, pages = (16, 2 * BATCH * 4) if paged else (64, BATCH)
        heads_kv, width_v = (1, LATENT_VALUES) if latent else (HEADS_KV, width)

        def cache() -> ffi.Tensor:
            shape = (pages, heads_kv, size, width)
            return self.put(np.full(shape, 0x38, np.uint8), ffi.FP8E4M3) if fp8 else self.normal(dtype, *shape)

        k_cache = cache()
        if latent:
            v_cache = ffi.tensor(
                k_cache.data, CODES[dtype], (pages, 1, size, width_v), (size * width, size * width, width, 1)
            )
            v_cache.memory = None
        else:
            v_cache = cache()
        tensors = {
            "q": self.normal(dtype, BATCH, HEADS, rows, width), "out": self.normal(dtype, BATCH, HEADS, rows, width_v),
            "k_cache": k_cache, "v_cache": v_cache,
            "lse": self.put(np.zeros((BATCH, HEADS, rows), np.float32), ffi.FP32), "seqused_k": self.integers(60, 17),
        }  # fmt: skip
        if paged:
            tensors["block_table"] = self.put(np.arange(BATCH * 4, dtype=np.int32)[::-1].reshape(BATCH, 4), ffi.INT32)
        if fp8:
            tensors |= {name: self.put(np.ones(HEADS_KV, np.float32), ffi.FP32) for name in ("k_scale", "v_scale")}
        if append:
            tensors |= {name: self.normal(dtype, BATCH, HEADS_KV, rows, width) for name in ("k_new", "v_new")}
            tensors |= {name: self.normal(dtype, 64, width // 4) for name in ("rotary_cos", "rotary_sin")}
        for count in splits:
            what = f"decode: {dtype}, {rows} rows, {width} wide, {paged=}, {fp8=}, {append=}, splits={count}"
            self.call(what, "kiln_attn_decode", ffi.AttnDecode(causal=1, splits=count), tensors, keys)
        for tensor in tensors.values():
            if tensor.memory is not None:
                tensor.memory.free()

    def wide(self, dtype: str) -> None:
        """Of every head dimension what Hopper's kernels with a producer take, and what they do not."""
        for width in self.widths("attn_fwd"):
            self.attention(dtype, width, "none", True, False, batch_invariant=True)
            if dtype == "bf16":
                self.attention(dtype, width, "dropout", False)
        for width in sorted({128, 256} & {*self.widths("attn_fwd.hopper")}):
            self.attention(dtype, width, "bias", False, False)
        for width in self.widths("attn_fwd.hopper_few"):
            rows = 520 if width <= 64 else 130
            self.attention(dtype, width, "none", False, False, rows=rows, keys=rows)
        for width in self.widths("attn_fwd.hopper_narrow"):
            self.attention(dtype, width, "none", True, width_v=128)
        for width in self.widths("attn_decode.general"):
            self.decode(dtype, width, paged=True, fp8=False, append=False)
        if self.has("attn_decode_reduce.general"):
            key = self.key("attn_decode_reduce.general", f"dtype={dtype}")
            self.decode(dtype, 64, paged=False, fp8=False, append=False, keys=(key,), splits=(4,))
        for width, paged in itertools.product(self.widths("attn_prefill"), (False, True)):
            self.decode(dtype, width, paged=paged, fp8=False, append=False, rows=64)
        for width in self.widths("attn_decode.hopper"):
            self.decode(dtype, width, paged=False, fp8=True, append=False)
        if self.has("attn_decode.latent"):
            # Heads that share the key head are rows of a block: one block of each size.
            for rows, paged in itertools.product((3, 7, 16), (False, True)):
                self.decode(dtype, LATENT, paged=paged, fp8=False, append=False, rows=rows, latent=True)

    def gradients(self, dtype: str) -> None:
        """Of Hopper's fused kernels, of more keys than those leave to others."""
        for width, deterministic in itertools.product(self.widths("attn_bwd_fused"), (False, True)):
            self.attention(dtype, width, "none", True, deterministic=deterministic, keys=520)

    def fp8(self, dtype: str, width: int, heads: int, rows: int, causal: bool) -> None:
        """Forward of e4m3, with scales."""
        numbers = RANDOM.integers(0x20, 0x38, (3, BATCH, heads, max(rows, KEYS), width), np.uint8)
        q, k, v = (
            self.put(numbers[n, :, :, :length], ffi.FP8E4M3) for n, length in enumerate((rows, KEYS, KEYS))
        )  # fmt: skip
        tensors = {
            "q": q, "k": k, "v": v, "out": self.normal(dtype, BATCH, heads, rows, width),
            "lse": self.put(np.zeros((BATCH, heads, rows), np.float32), ffi.FP32),
            **{f"{name}_descale": self.put(np.ones((BATCH, heads), np.float32), ffi.FP32) for name in "qkv"},
        }  # fmt: skip
        if causal:
            tensors |= {"seqused_q": self.integers(rows, 33), "seqused_k": self.integers(11, KEYS)}
        what = f"forward: fp8 to {dtype}, {heads} heads, {rows} rows, {width} wide, {causal=}"
        params = ffi.AttnFwdFp8(causal=int(causal), bottom_right=int(causal))
        self.call(what, "kiln_attn_fwd_fp8", params, tensors)
        for tensor in tensors.values():
            tensor.memory.free()

    def all_fp8(self) -> None:
        for dtype in self.dtypes("flash.attn_fwd_fp8"):
            for width in self.widths("attn_fwd_fp8.hopper"):
                self.fp8(dtype, width, HEADS, ROWS, True)
            if self.has("attn_fwd_fp8.unmasked"):
                # With two tiles of 192 rows for a head, or three of 128: one round of blocks, or two.
                self.fp8(dtype, 128, self.multiprocessors // (2 * BATCH), 384, False)

    def lengths(self) -> None:
        """Of sequences, and where they begin."""
        numbers = [self.integers(*range(0, 10 * count, 10)) for count in (4, 3, 3, 4)]
        call = self.kiln.call([*numbers, 20, 30], operation="flash.seq_lengths", device=0)
        self.launch("lengths of sequences", call, numbers)

    def launch(self, what: str, call: ffi.Call, tensors: list[ffi.Tensor]) -> None:
        """A call of an operation that has no entry."""
        variants = self.kiln.explain(call)
        self.reached |= set(map(reached_by, variants))
        self.kiln.launch(call)
        cudadriver.call("cuCtxSynchronize")
        self.ran.append(f"{variants[0]['kernel'].decode()}: {what}")
        for tensor in tensors:
            tensor.memory.free()

    def product(self, dtype: str, rows: int, columns: int, depth: int) -> None:
        """Of dense matrices: by descriptors where rows are a multiple of 16 bytes."""
        a, b, c = (self.normal(dtype, *shape) for shape in ((rows, depth), (columns, depth), (rows, columns)))
        call = self.kiln.call([a, b, c], operation="matmul.matmul", device=0)
        self.launch(f"{dtype}, {rows} x {columns} x {depth}", call, [a, b, c])

    def mask(self) -> None:
        mask = self.put(np.zeros((BATCH, HEADS, ROWS, KEYS), np.uint8), ffi.UINT8)
        params = ffi.DropoutMask(size=ctypes.sizeof(ffi.DropoutMask), dropout=0.3, seed_value=5)
        self.call("dropout mask", "kiln_dropout_mask", params, {"mask": mask})


def main() -> int:
    words = sys.argv[2].split(",") if len(sys.argv) > 2 else [*WORDS]
    if unknown := set(words) - set(WORDS):
        print(f"sample.py: unknown {', '.join(sorted(unknown))}; the words are {', '.join(WORDS)}", file=sys.stderr)
        return 2
    make_context()
    sample = Sample(Path(sys.argv[1]))
    run(sample, words)
    sample.kiln.close()
    print(json.dumps(sample.ran, indent=0))
    if left := missing(sample.release, sample.reached, words):
        print(f"{len(left)} of {len(sample.release)} kernels of the release were never called: {left}")
        return 1
    print(f"{len(sample.ran)} calls")  # run_all.sh looks for it: what a sanitizer found may hide the exit code
    return 0


def run(sample: Sample, words: Collection[str]) -> None:
    # Of a release with fewer of them the rest is called.
    there = sample.dtypes("flash.attn_fwd")
    dtypes = [word for word in words if word in there]
    for dtype in dtypes:
        for extras in ("none", "bias", "softcap", "dropout", "any"):
            sample.attention(dtype, 64, extras, varlen=extras == "none")
        sample.attention(dtype, 40, "none", varlen=False)
        for paged, append in itertools.product((False, True), repeat=2):
            sample.decode(dtype, 64, paged=paged, fp8=False, append=append)
        if dtype != "fp32" and sample.has_fp8_caches:
            sample.decode(dtype, 64, paged=True, fp8=True, append=True)
    if dtypes:
        sample.mask()
        sample.lengths()
    for word, calls in (("wide", sample.wide), ("gradients", sample.gradients)):
        for dtype in there:
            if word in words and dtype != "fp32":
                calls(dtype)
    if "fp8" in words:
        sample.all_fp8()
    if sample.has_products and "products" in words:
        shapes = ((130, 264, 264), (128, 256, 64), (33, 70, 50))
        for dtype, shape in itertools.product(sample.dtypes("matmul.matmul"), shapes):
            sample.product(dtype, *shape)


if __name__ == "__main__":
    sys.exit(main())
