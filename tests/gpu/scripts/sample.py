"""One small call of every kernel in every dtype, for compute-sanitizer: without PyTorch, which is slow under it.

    compute-sanitizer --tool memcheck python3 sample.py PREFIX [bf16,fp16,fp32,wide,gradients,products]

"wide" are heads of 128 and 256 in 16 bits, which on Hopper have kernels with a producer, and 64 rows over a cache;
"gradients" of these are another word: their warps hand tiles on by mbarriers, of which racecheck reports every byte.
"products" are those of examples/matmul, if the release was made with it.

Whether results are right is what other tests are for. Prints what it ran.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
from pathlib import Path

import numpy as np
from common import cudadriver, ffi, make_context

BATCH, HEADS, HEADS_KV, ROWS, KEYS = 2, 4, 2, 70, 90
CODES = {"fp32": ffi.FP32, "fp16": ffi.FP16, "bf16": ffi.BF16}
RANDOM = np.random.default_rng(0)


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
        matmul = prefix / "lib/libkiln_matmul.so"
        self.has_products = matmul.is_file()
        if self.has_products:
            self.kiln.register(ctypes.CDLL(str(matmul)), "matmul")

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

    def call(self, what: str, entry: str, params: ctypes.Structure, tensors: dict[str, ffi.Tensor | None]) -> None:
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(params, name, ctypes.pointer(tensor))
        queue = ffi.Queue(ctypes.sizeof(ffi.Queue), ffi.NVIDIA, 0, None)
        arguments = (self.kiln.handle, ctypes.byref(queue), ctypes.byref(params))
        size, workspace = ctypes.c_uint64(), None
        if entry != "kiln_dropout_mask":
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
        deterministic: bool = False,
    ) -> None:  # fmt: skip
        width_v = width_v or width
        q, k, v, dout = (
            self.normal(dtype, BATCH, h, n, wide)
            for h, n, wide in (
                (HEADS, ROWS, width), (HEADS_KV, KEYS, width), (HEADS_KV, KEYS, width_v), (HEADS, ROWS, width_v)
            )
        )  # fmt: skip
        out, dq, dk, dv = (self.normal(dtype, *tuple(like.sizes)[:4]) for like in (dout, q, k, v))
        lse = self.put(np.zeros((BATCH, HEADS, ROWS), np.float32), ffi.FP32)

        def has(name: str) -> bool:
            return extras in (name, "any")

        shared = {
            "q": q, "k": k, "v": v, "out": out, "lse": lse,
            "bias": self.normal(dtype, BATCH, HEADS, ROWS, KEYS) if has("bias") else None,
            "sinks": self.normal("fp32", HEADS) if has("any") else None,
            "alibi_slopes": self.normal("fp32", BATCH, HEADS) if has("bias") else None,
            "seqused_q": self.integers(ROWS, 33) if varlen else None,
            "seqused_k": self.integers(11, KEYS) if varlen else None,
        }  # fmt: skip
        numbers = {
            "causal": 1, "bottom_right": 1, "softcap": 9.0 if has("softcap") else 0.0,
            "dropout": 0.3 if has("dropout") else 0.0, "seed_value": 5,
        }  # fmt: skip
        what = f"{dtype}, {width} and {width_v} wide, {extras}{', padded sequences' if varlen else ''}"
        self.call(f"forward: {what}", "kiln_attn_fwd", ffi.AttnFwd(**numbers), shared)
        gradients = {"dout": dout, "dq": dq, "dk": dk, "dv": dv}
        if has("bias"):
            gradients["dbias"] = self.normal(dtype, BATCH, HEADS, ROWS, KEYS)
        if has("any"):
            gradients["dsinks"] = self.normal("fp32", HEADS)
        if backward:
            params = ffi.AttnBwd(**numbers, deterministic=int(deterministic))
            self.call(f"backward: {what}", "kiln_attn_bwd", params, shared | gradients)
        for tensor in (*shared.values(), *gradients.values()):
            if tensor is not None:
                tensor.memory.free()

    def decode(self, dtype: str, width: int, *, paged: bool, fp8: bool, append: bool, rows: int = 3) -> None:
        size, pages = (16, 2 * BATCH * 4) if paged else (64, BATCH)

        def cache() -> ffi.Tensor:
            shape = (pages, HEADS_KV, size, width)
            return self.put(np.full(shape, 0x38, np.uint8), ffi.FP8E4M3) if fp8 else self.normal(dtype, *shape)

        tensors = {
            "q": self.normal(dtype, BATCH, HEADS, rows, width), "out": self.normal(dtype, BATCH, HEADS, rows, width),
            "k_cache": cache(), "v_cache": cache(),
            "lse": self.put(np.zeros((BATCH, HEADS, rows), np.float32), ffi.FP32), "seqused_k": self.integers(60, 17),
        }  # fmt: skip
        if paged:
            tensors["block_table"] = self.put(np.arange(BATCH * 4, dtype=np.int32)[::-1].reshape(BATCH, 4), ffi.INT32)
        if fp8:
            tensors |= {name: self.put(np.ones(HEADS_KV, np.float32), ffi.FP32) for name in ("k_scale", "v_scale")}
        if append:
            tensors |= {name: self.normal(dtype, BATCH, HEADS_KV, rows, width) for name in ("k_new", "v_new")}
            tensors |= {name: self.normal(dtype, 64, width // 4) for name in ("rotary_cos", "rotary_sin")}
        for splits in (1, 4):
            what = f"decode: {dtype}, {width} wide, paged={paged}, fp8={fp8}, append={append}, splits={splits}"
            self.call(what, "kiln_attn_decode", ffi.AttnDecode(causal=1, splits=splits), tensors)
        for tensor in tensors.values():
            tensor.memory.free()

    def wide(self, dtype: str, backward: bool) -> None:
        """What Hopper's kernels with a producer take."""
        for width, extras, varlen in ((128, "none", True), (128, "bias", False), (256, "none", True)):
            self.attention(dtype, width, extras, varlen, backward)
        self.attention(dtype, 192, "none", True, backward, width_v=128)
        if backward:
            self.attention(dtype, 128, "none", True, deterministic=True)
        for paged in (False, True):
            self.decode(dtype, 128, paged=paged, fp8=False, append=False, rows=64)

    def product(self, dtype: str, rows: int, columns: int, depth: int) -> None:
        """Of dense matrices: by descriptors where rows are a multiple of 16 bytes."""
        a, b, c = (self.normal(dtype, *shape) for shape in ((rows, depth), (columns, depth), (rows, columns)))
        call = self.kiln.call([a, b, c], operation="matmul.matmul", device=0)
        (variant,) = self.kiln.explain(call)
        self.kiln.launch(call)
        cudadriver.call("cuCtxSynchronize")
        self.ran.append(f"{variant['kernel'].decode()}: {dtype}, {rows} x {columns} x {depth}")
        for tensor in (a, b, c):
            tensor.memory.free()

    def mask(self) -> None:
        mask = self.put(np.zeros((BATCH, HEADS, ROWS, KEYS), np.uint8), ffi.UINT8)
        params = ffi.DropoutMask(size=ctypes.sizeof(ffi.DropoutMask), dropout=0.3, seed_value=5)
        self.call("dropout mask", "kiln_dropout_mask", params, {"mask": mask})


def main() -> None:
    words = sys.argv[2].split(",") if len(sys.argv) > 2 else [*CODES, "wide", "gradients", "products"]
    dtypes = [word for word in words if word in CODES]
    make_context()
    sample = Sample(Path(sys.argv[1]))
    for dtype in dtypes:
        for extras in ("none", "bias", "softcap", "dropout", "any"):
            sample.attention(dtype, 64, extras, varlen=extras == "none")
        sample.attention(dtype, 40, "none", varlen=False)
        for paged, append in itertools.product((False, True), repeat=2):
            sample.decode(dtype, 64, paged=paged, fp8=False, append=append)
        if dtype != "fp32":
            sample.decode(dtype, 64, paged=True, fp8=True, append=True)
    if "wide" in words:
        for dtype in ("bf16", "fp16"):
            sample.wide(dtype, "gradients" in words)
    if sample.has_products and "products" in words:
        for dtype, shape in itertools.product(("bf16", "fp16"), ((130, 264, 264), (128, 256, 64), (33, 70, 50))):
            sample.product(dtype, *shape)
    if dtypes:
        sample.mask()
    sample.kiln.close()
    print(json.dumps(sample.ran, indent=0))
    print(f"{len(sample.ran)} calls")


if __name__ == "__main__":
    main()
