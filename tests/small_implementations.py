"""A recipe of one kernel with three implementations, the first with tensor descriptors: for the tests of recipes, plans
and tables."""

from __future__ import annotations

from pathlib import Path

GLUON = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


@gluon.jit
def wait(barrier):
    mbarrier.wait(barrier, 0)


@gluon.jit
def copy_tiles(x_desc, out_desc, rows, BLOCK: gl.constexpr, WIDTH: gl.constexpr):
    row = gl.program_id(0) * BLOCK
    tile = gl.allocate_shared_memory(x_desc.dtype, [BLOCK, WIDTH], x_desc.layout)
    barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(barrier, count=1)
    mbarrier.expect(barrier, x_desc.nbytes_per_cta)
    tma.async_load(x_desc, [row, 0], barrier, tile)
    wait(barrier)
    tma.async_store(out_desc, [row, 0], tile)
    tma.store_wait(0)
"""
TRITON = """import triton
import triton.language as tl


@triton.jit
def copy_described(x_desc, out_desc, rows, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0) * BLOCK
    out_desc.store([row, 0], x_desc.load([row, 0]))


@triton.jit
def copy(x_ptr, out_ptr, stride_x, stride_x_column, stride_out, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    x = tl.load(x_ptr + row * stride_x + column * stride_x_column, mask=row < rows)
    tl.store(out_ptr + row * stride_out + column, x, mask=row < rows)
"""
RECIPE = """family: tiles
summary: Copies.
operations:
  copy:
    arguments:
      x: {tensor: dtype, rank: 2}
      out: {tensor: dtype, rank: 2}
      limit: {scalar: int64}
    choices:
      dtype: {of: x.dtype, values: [fp16, fp32]}
      width: {of: "x.size[1]", values: [32, 64]}
    define:
      rows: x.size[0]
    require:
      - {that: "out.size[0] == rows and out.size[1] == x.size[1]", otherwise: "out must have the shape of x"}
      - {that: "out.stride[1] == 1", otherwise: "rows of out must be contiguous"}
    skip_when: rows == 0
    kernels:
      copy:
        choices: [dtype, width]
        grid: ["cdiv(rows, BLOCK)"]
        constants: {WIDTH: width}
        implementations:
          tiles:
            source: gluon_kernel.py
            function: copy_tiles
            language: gluon
            targets: [hopper]
            serves: rows >= limit
            ptx: "8.6"
            parameters:
              x_desc: {descriptor: x, box: [BLOCK, WIDTH]}
              out_desc: {descriptor: out, box: [BLOCK, WIDTH]}
              rows: {type: i32, value: rows}
            configurations:
              - core: [{BLOCK: [64, 128], num_warps: 4}]
          described:
            source: triton_kernel.py
            function: copy_described
            targets: [hopper, sm_120]
            ptx: "8.7"
            parameters:
              x_desc: {descriptor: x, box: [BLOCK, WIDTH]}
              out_desc: {descriptor: out, box: [BLOCK, WIDTH]}
              rows: {type: i32, value: rows}
            configurations:
              - core: [{BLOCK: 32, num_warps: 4}]
          plain:
            source: triton_kernel.py
            parameters:
              x_ptr: {type: "*dtype", value: x.data}
              out_ptr: {type: "*dtype", value: out.data}
              stride_x: {type: i64, value: "x.stride[0]"}
              stride_x_column: {type: i64, value: "x.stride[1]"}
              stride_out: {type: i64, value: "out.stride[0]"}
              rows: {type: i32, value: rows}
            specializations:
              aligned: {divisible_by_16: [x_ptr, out_ptr, stride_x, stride_out], equal_to_1: [stride_x_column]}
              generic: {}
            lookup:
              size: {of: rows, edges: [1000]}
            configurations:
              - core: [{BLOCK: [16, 64], num_warps: 4}]
            heuristic:
              - {when: {size: {at_least: 1000}}, use: {BLOCK: 64}}
"""


# The same, where one implementation alone depends on whether rows are counted: of others the images are equal.
TRITON_COUNTED = TRITON.replace(
    "rows, WIDTH: tl.constexpr, BLOCK: tl", "rows, COUNTED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl"
)
COUNTED = (
    RECIPE.replace("    define:\n", "      counted: {of: limit > 0, values: [false, true]}\n    define:\n")
    .replace("choices: [dtype, width]", "choices: [dtype, width, counted]")
    .replace("          plain:\n", "          plain:\n            constants: {WIDTH: width, COUNTED: counted}\n")
)


def write(folder: Path, recipe: str = RECIPE, gluon: str = GLUON, triton: str = TRITON) -> Path:
    """Writes the files; gives the recipe's path."""
    (folder / "gluon_kernel.py").write_text(gluon)
    (folder / "triton_kernel.py").write_text(triton)
    path = folder / "recipe.yaml"
    path.write_text(recipe)
    return path
