"""What the consumers of attn_fwd_fp8.py and fp8_unmasked.py have in common.

Tensor cores sum products of fp8 with about 14 bits. So weights times values are summed block by block from 0 on, and
the results added in fp32. Weights go up to 2^8, so that those of keys down to 2^-14 of the largest have all of e4m3's
bits.
"""

from typing import NamedTuple

from flags import K_SCALE, Q_SCALE, V_SCALE
from hopper_pieces import reinterpreted
from scores import LOG2E
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

HEADROOM = gl.constexpr(8.0)  # weights up to 2^8; e4m3 ends at 448


class Scales(NamedTuple):
    """What scores and results are multiplied by: sm_scale, and for each batch and key head one of q, k and v."""

    sm_scale: gl.tensor
    q_ptr: gl.tensor
    k_ptr: gl.tensor
    v_ptr: gl.tensor
    stride_qb: gl.tensor
    stride_qh: gl.tensor
    stride_kb: gl.tensor
    stride_kh: gl.tensor
    stride_vb: gl.tensor
    stride_vh: gl.tensor


class Shared(NamedTuple):
    """What lies in shared memory: tiles (hopper_tiles.announce), their rows, results, keys, values, and values
    transposed; the barriers that say whether these are there, or may be replaced; and for each consumer one that says
    that it is its turn to multiply."""

    tiles: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    out: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    vt: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor
    vt_full: gl.shared_memory_descriptor
    vt_empty: gl.shared_memory_descriptor
    may_multiply: gl.shared_memory_descriptor


@gluon.jit
def product(q, shared, done, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, SCORES: gl.constexpr):
    """Begins the product of rows and the done-th block of keys, once that is there."""
    stage = done % STAGES
    mbarrier.wait(shared.k_full.index(stage), done // STAGES & 1)
    k = shared.k.index(stage).reshape([BLOCK_N, q.shape[1]])
    zero = gl.zeros([64, BLOCK_N], gl.float32, SCORES)
    return warpgroup_mma(q, k.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def scores_of(products, shared, done, STAGES: gl.constexpr, UNDER_WAY: gl.constexpr = 0):
    """The scores once product() of the done-th block of keys is done, when UNDER_WAY later products need not be. The
    keys may be replaced then."""
    scores = warpgroup_mma_wait(UNDER_WAY, deps=[products])
    mbarrier.arrive(shared.k_empty.index(done % STAGES), count=1)
    return scores


@gluon.jit
def weigh_values(weights, shared, done, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, SUMS: gl.constexpr):
    """Begins the product of weights and the done-th block of values, once that is there."""
    stage = done % STAGES
    mbarrier.wait(shared.vt_full.index(stage), done // STAGES & 1)
    values = reinterpreted(shared.vt.index(stage), gl.float8e4nv, shared.vt.index(stage).shape, shared.vt.layout)
    zero = gl.zeros([64, HEAD_DIM], gl.float32, SUMS)
    return warpgroup_mma(weights, values.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def add_sums(acc, sums, correction, shared, done, STAGES: gl.constexpr):
    """The corrected output and what weigh_values() gives, once that is done; then its values may be replaced."""
    sums = warpgroup_mma_wait(0, deps=[sums])
    mbarrier.arrive(shared.vt_empty.index(done % STAGES), count=1)
    return acc * gl.convert_layout(correction, gl.SliceLayout(1, acc.type.layout))[:, None] + sums


@gluon.jit
def in_fp8(p, WEIGHTS: gl.constexpr):
    """Weights as factors, in the order of keys of transpose()."""
    KEYS: gl.constexpr = p.shape[1]
    p = p.reshape([64, KEYS // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([64, KEYS])
    # By itself the compiler takes each pair apart again to put four together.
    return gl.inline_asm_elementwise(
        """
        {
        .reg .b16 low, high;
        cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
        mov.b32 $0, {low, high};
        }
        """,
        "=r,f,f,f,f", [gl.convert_layout(p, WEIGHTS)], dtype=gl.float8e4nv, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def highest(row_max, scores, factor):
    """What weights are relative to: the largest score of each row so far, in base 2, less HEADROOM."""
    # In two steps, of which the first has many comparisons that do not wait for each other.
    KEYS: gl.constexpr = scores.shape[1]
    of_parts = gl.max(scores.reshape([64, KEYS // 16, 16]), 1)
    top = gl.convert_layout(gl.max(of_parts, 1), row_max.type.layout)
    return gl.maximum(row_max, top * factor - HEADROOM)


@gluon.jit
def scale_of(ptr, stride_b, stride_h, batch, head_kv, flags, FLAG: gl.constexpr):
    """What elements of a key head are multiplied by."""
    at = batch.to(gl.int64) * stride_b + head_kv.to(gl.int64) * stride_h
    return gl.load(ptr + at, mask=(flags & FLAG) != 0, other=1.0)


@gluon.jit
def factors(tile, call, scales):
    """What a tile's products are multiplied by, in base 2, and what its results are."""
    head_kv = tile.head // call.heads_per_kv
    flags = call.flags
    q_scale = scale_of(scales.q_ptr, scales.stride_qb, scales.stride_qh, tile.batch, head_kv, flags, Q_SCALE)
    k_scale = scale_of(scales.k_ptr, scales.stride_kb, scales.stride_kh, tile.batch, head_kv, flags, K_SCALE)
    v_scale = scale_of(scales.v_ptr, scales.stride_vb, scales.stride_vh, tile.batch, head_kv, flags, V_SCALE)
    # Not 0, of which -inf would be no multiple: a scale of 0 makes all scores alike, and so does this.
    return gl.maximum(scales.sm_scale * q_scale * k_scale, 1.2e-38) * LOG2E, v_scale
