"""A recipe of two kernels that no GPU needs to see: for the tests of recipes, tuning and plans."""

from __future__ import annotations

from pathlib import Path

KERNEL = """import triton
import triton.language as tl


@triton.jit
def norm(x_ptr, w_ptr, out_ptr, stride, columns, eps, flag, COLUMNS: tl.constexpr, GEMMA: tl.constexpr,
         KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, 0) / columns + eps)
    tl.store(out_ptr + row * stride + offsets, x * scale, mask=offsets < columns)


@triton.jit
def count(total_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.atomic_add(total_ptr, n)
"""
RECIPE = """family: small
summary: A norm.
operations:
  rms_norm:
    summary: out = x / rms(x)
    arguments:
      x: {tensor: dtype, rank: 2}
      w: {tensor: fp32, rank: 1, optional: true}
      out: {tensor: dtype, rank: 2}
      eps: {scalar: fp32}
      gemma: {scalar: bool}
    choices:
      dtype: {of: x.dtype, values: [fp16, bf16, fp8e4m3], core: [fp16, bf16]}
      columns_most: {of: columns, values: [64, 128, 256], match: next_larger}
      gemma: {of: gemma, values: [false, true]}
    define:
      rows: x.size[0]
      columns: x.size[1]
    require:
      - {that: "x.stride[1] == 1 and out.stride[1] == 1", otherwise: "x and out must be contiguous in their rows"}
      - {that: "out.size[0] == rows", otherwise: "out must have the rows of x"}
    skip_when: rows == 0
    workspace:
      total: 4 * max(rows, 1)
    kernels:
      norm:
        source: kernel.py
        choices: [dtype, columns_most, gemma]
        parameters:
          x_ptr: {type: "*dtype", value: x.data}
          w_ptr: {type: "*fp32", value: w.data}
          out_ptr: {type: "*dtype", value: out.data}
          stride: {type: i64, value: "x.stride[0]"}
          columns: {type: i32, value: columns}
          eps: {type: fp32, value: eps}
          flag: {type: i1, value: w.data != 0}
        constants: {COLUMNS: columns_most, GEMMA: gemma, KIND: dtype}
        specializations:
          aligned: {divisible_by_16: [x_ptr, out_ptr], divisible_by_8: [stride]}
          one: {equal_to_1: [columns], divisible_by_16: [x_ptr]}
          generic: {}
        grid: [rows]
        lookup:
          size: {of: rows * columns, edges: [1000, 100000]}
          rate: {of: rows // device.multiprocessors, edges: [4]}
        configurations:
          - targets: default
            core:
              - {BLOCK: [64, 256], num_warps: [1, 4]}
            full:
              - {BLOCK: 512, num_warps: 8}
            where: BLOCK >= columns_most
          - targets: [cdna]
            core:
              - {BLOCK: 256, num_warps: 4, waves_per_eu: [0, 2]}
          - targets: [gfx942, gfx950]
            core:
              - {BLOCK: 256, num_warps: 8, waves_per_eu: 1}
        heuristic:
          - {when: {size: {below: 1000}, dtype: bf16}, use: {num_warps: 1}}
          - {when: {rate: {at_least: 4}, targets: [nvidia]}, use: {BLOCK: 256, num_warps: 4}}
        spills:
          - {when: {targets: [gfx1100], BLOCK: 256}, bytes: 16, reason: "few registers"}
          - {when: {specialization: generic}, bytes: 8, reason: "narrow loads"}
        unavailable:
          - {when: {targets: [cdna2], dtype: fp8e4m3}, reason: "no fp8 there"}
      count:
        source: kernel.py
        when: gemma
        parameters:
          total_ptr: {type: "*int32", value: total}
          out_ptr: {type: "*bf16", value: out.data}
          n: {type: i32, value: "min(rows, 7)"}
        zero: [total]
        grid: [1, "cdiv(rows, BLOCK)"]
        configurations:
          - core: [{BLOCK: 16, num_warps: 1}]
"""


def write(folder: Path, recipe: str = RECIPE, kernel: str = KERNEL) -> Path:
    """Writes both files; gives the recipe's path."""
    (folder / "kernel.py").write_text(kernel)
    path = folder / "recipe.yaml"
    path.write_text(recipe)
    return path
