"""Attention forward of heads of 64 and 128 columns for AMD's GPUs: attn_fwd.py with another loop over unmasked keys.

CDNA's matrix units work beside those of vectors. A wave keeps both busy only if it has something for each, so q k^T of
the next block of keys stands before the weights of this one (AHEAD); the loop carries a block of products for that. On
RDNA, where one unit does both, and on gfx950, which copies past the registers, these are better spent on more waves.
Blocks with masks, a few of many, are attn_fwd's.
"""

import triton
import triton.language as tl
from attn_fwd import Dropout, Keys, Queries, Scores, attend
from flags import LSE, SINKS
from rows import added, inner, load_rows, scaled, store_rows, zeros
from scores import LOG2E
from sequences import lse_place, place, sequence
from softmax import divisor_of, log_sum_exp, started, weighed, with_sink
from window import bounds, span

FP16_HEADROOM = tl.constexpr(8.0)  # weights up to 2^8, where HALF_UP_FP16 rounds them


@triton.jit
def rounded(weights, dtype: tl.constexpr, HALF_UP: tl.constexpr, HALF_UP_FP16: tl.constexpr):
    """Weights as factors of a product.

    Args:
        HALF_UP: of bf16, halves go up, not to even: an addition and half a permutation of bytes for each weight, in
            place of six instructions where none does it alone. For what is not negative. A NaN stays one: its lower
            half is 0 if arithmetic or bf16 made it, so the addition does not carry.
        HALF_UP_FP16: the same of fp16: an addition, which RDNA 3 issues beside a multiplication, and half of what cuts
            two weights off, in place of a conversion and half of what packs two. The addition is half a unit of normal
            numbers; those below 2^-14, whose unit of 2^-24 is larger, lose up to a unit, on average half of one. So
            weights go up to 2^8 (FP16_HEADROOM): of keys down to 2^-22 of the largest nothing is lost, and by all of N
            others at most N / 2^32 of the largest value.
    """
    if HALF_UP and dtype == tl.bfloat16:
        bits = (weights.to(tl.uint32, bitcast=True) + 0x8000) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    elif HALF_UP_FP16 and dtype == tl.float16:
        bits = weights.to(tl.uint32, bitcast=True) + 0x1000
        return bits.to(tl.float32, bitcast=True).to(tl.float16, fp_downcast_rounding="rtz")
    else:
        return weights.to(dtype)


@triton.jit
def copied(factor):
    """The same in another register. The compiler must not see through it, or it would take both for one. So it does not
    know that a transcendental result may be read, and puts no wait before: on RDNA 3 the old value would be copied."""
    return tl.inline_asm_elementwise(
        "s_waitcnt_depctr depctr_va_vdst(0)\nv_mov_b32 $0, $1", "=v,v", [factor], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def scaled_by_two(rows, factor):
    """scaled() of one piece, by two copies of the factor, a half of the columns by each.

    RDNA 3 issues two multiplications at once where their first operands are of different banks of registers, and their
    second ones too, which one factor for both cannot be.
    """
    ROWS: tl.constexpr = rows[0].shape[0]
    HALF: tl.constexpr = rows[0].shape[1] // 2
    first, second = tl.split(tl.permute(tl.reshape(rows[0], [ROWS, 2, HALF]), [0, 2, 1]))
    copy = copied(factor)
    both = tl.join(first * factor[:, None], second * copy[:, None])
    return (tl.reshape(tl.permute(both, [0, 2, 1]), [ROWS, 2 * HALF]),)


@triton.jit
def near(stride):
    """A stride in 32 bits: as it is from 0 to 2^23, by which 64 rows of 2-byte numbers lie within 2^30 bytes."""
    return tl.minimum(tl.maximum(stride, 0), 1 << 23).to(tl.int32)


@triton.jit
def load_near_piece(
    ptr, rows, width, BEGIN: tl.constexpr, SIZE: tl.constexpr, TRANSPOSED: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """load_piece() of rows that are all there, whose offsets have 32 bits: they are summed before the base is added."""
    columns = BEGIN + tl.arange(0, SIZE)
    AXIS: tl.constexpr = 0 if TRANSPOSED else 1
    addresses = ptr + (tl.expand_dims(rows, AXIS) + tl.expand_dims(columns, 1 - AXIS))
    if PADDED:
        return tl.load(addresses, mask=tl.expand_dims(columns < width, 1 - AXIS), other=0.0)
    else:
        return tl.load(addresses)


@triton.jit
def load_block(
    ptr, start, stride, width, ROWS: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr,
    TRANSPOSED: tl.constexpr, PADDED: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """load_rows() of rows that are all there.

    Args:
        NEAR: by a scalar base and offsets of 32 bits, whose sums are no vector instructions; for strides that near()
            does not change.
    """
    if NEAR:
        ptr += start * stride
        rows = tl.arange(0, ROWS) * near(stride)
        if P2 > 0:
            return (
                load_near_piece(ptr, rows, width, 0, P0, TRANSPOSED, PADDED),
                load_near_piece(ptr, rows, width, P0, P1, TRANSPOSED, PADDED),
                load_near_piece(ptr, rows, width, P0 + P1, P2, TRANSPOSED, PADDED),
            )
        elif P1 > 0:
            return (
                load_near_piece(ptr, rows, width, 0, P0, TRANSPOSED, PADDED),
                load_near_piece(ptr, rows, width, P0, P1, TRANSPOSED, PADDED),
            )
        else:
            return (load_near_piece(ptr, rows, width, 0, P0, TRANSPOSED, PADDED),)
    else:
        every = tl.full([ROWS], True, tl.int1)
        return load_rows(ptr, start, stride, every, width, ROWS, P0, P1, P2, TRANSPOSED, False, PADDED)


@triton.jit
def attn_fwd_amd(
    q_ptr, k_ptr, v_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr, sm_scale,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, width_v, window_left, window_right, flags,
    out_ptr, lse_ptr, sinks_ptr, stride_ob, stride_oh, stride_om, stride_lb, stride_lh, tiles,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, PADDED: tl.constexpr, UNMASKED_LOOP: tl.constexpr,
    AHEAD: tl.constexpr, HALF_UP: tl.constexpr, HALF_UP_FP16: tl.constexpr, NEAR: tl.constexpr,
    TWO_FACTORS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """attn_fwd of calls without extras; its arguments.

    Args:
        AHEAD: products of the next block of keys are computed beside the weights of this one.
        HALF_UP, HALF_UP_FP16: as rounded() says.
        NEAR: as load_block() says; of other strides all blocks are those with masks.
        TWO_FACTORS: as scaled_by_two() says; of heads of one piece.
    """
    batch, head, number = place(tl.program_id(0), tiles, heads, batches, seqlen_q, cu_q_ptr, flags, BLOCK_M, False)
    head_kv = head // heads_per_kv
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
    batch_k, start_k, rows_k = sequence(batch, seqlen_k, cu_k_ptr, used_k_ptr, flags, True)
    # Under a causal mask the last rows see most: longest first, so that the last to start are short.
    first_row = (tl.cdiv(rows_q, BLOCK_M) - 1 - number) * BLOCK_M
    if first_row >= 0:
        row_q = start_q + first_row
        q_ptr += batch_q * stride_qb + head.to(tl.int64) * stride_qh + row_q * stride_qm
        k_ptr += batch_k * stride_kb + head_kv.to(tl.int64) * stride_kh + start_k * stride_kn
        v_ptr += batch_k * stride_vb + head_kv.to(tl.int64) * stride_vh + start_k * stride_vn
        column = tl.arange(0, BLOCK_M)
        rows = first_row + column
        inside = rows < rows_q
        q = load_rows(q_ptr, 0, stride_qm, inside, width_qk, BLOCK_M, P0, P1, P2, False, True, PADDED)
        shift, left, right = bounds(rows_q, rows_k, window_left, window_right, flags)
        first, last, begin, end, whole_begin, whole_end = span(
            first_row, first_row + BLOCK_M - 1, rows, shift, left, right, rows_k, BLOCK_N
        )
        if NEAR and (near(stride_kn) != stride_kn or near(stride_vn) != stride_vn):
            whole_end = whole_begin
        acc = zeros(BLOCK_M, P0, P1, P2)
        row_max, row_sum = started(BLOCK_M)
        if UNMASKED_LOOP:
            factor = sm_scale * LOG2E
            HEADROOM: tl.constexpr = FP16_HEADROOM if HALF_UP_FP16 and v_ptr.dtype.element_ty == tl.float16 else 0.0
            if AHEAD:
                # With a mask, since there may be no block.
                there = tl.full([BLOCK_N], True, tl.int1) & (whole_begin < whole_end)
                k = load_rows(k_ptr, whole_begin, stride_kn, there, width_qk, BLOCK_N, P0, P1, P2, True, True, PADDED)
                products = inner(q, k, P1, P2)
            for start in tl.range(whole_begin, whole_end, BLOCK_N):
                # What is asked for first comes first. Behind the last block there is none: it comes once more.
                if AHEAD:
                    begin_k = tl.minimum(start + BLOCK_N, whole_end - BLOCK_N)
                else:
                    begin_k = start
                k = load_block(k_ptr, begin_k, stride_kn, width_qk, BLOCK_N, P0, P1, P2, True, PADDED, NEAR)
                if AHEAD:
                    v = load_block(v_ptr, start, stride_vn, width_v, BLOCK_N, P0, P1, P2, False, PADDED, NEAR)
                    next_products = inner(q, k, P1, P2)
                else:
                    products = inner(q, k, P1, P2)
                p, correction, row_max, row_sum = weighed(row_max, row_sum, products, factor, False, HEADROOM)
                if TWO_FACTORS:
                    tl.static_assert(P1 == 0)
                    acc = scaled_by_two(acc, correction)
                else:
                    acc = scaled(acc, correction, P1, P2)
                if not AHEAD:
                    v = load_block(v_ptr, start, stride_vn, width_v, BLOCK_N, P0, P1, P2, False, PADDED, NEAR)
                acc = added(rounded(p, v[0].dtype, HALF_UP, HALF_UP_FP16), v, acc, P1, P2)
                if AHEAD:
                    products = next_products
        else:
            whole_end = whole_begin
        block = Queries(q, stride_qm, rows, inside, first, last)
        keys = Keys(rows_k, stride_kn, stride_vn, width_qk, width_v)
        score = Scores(sm_scale, 1.0, q_ptr, stride_qm, 0.0, 0)
        drop = Dropout(0, 0, 0, 1.0, 0)
        whole = whole_end - whole_begin
        for step in tl.range(begin, end - whole, BLOCK_N, num_stages=1, disable_licm=True):
            start = tl.where(step < whole_begin, step, step + whole)
            acc, row_max, row_sum = attend(
                acc, row_max, row_sum, block, k_ptr, v_ptr, start, start, keys, score, drop, flags,
                True, PADDED, "none", BLOCK_N, P0, P1, P2, 0,
            )  # fmt: skip

        if flags & SINKS:
            correction, row_max, row_sum = with_sink(row_max, row_sum, tl.load(sinks_ptr + head) * LOG2E)
            acc = scaled(acc, correction, P1, P2)
        acc = scaled(acc, 1.0 / divisor_of(row_sum), P1, P2)
        # Where results go is computed here: addresses known before the loops hold registers in them.
        out_ptr += batch_q * stride_ob + head.to(tl.int64) * stride_oh + row_q * stride_om
        store_rows(out_ptr, column * stride_om, inside, width_v, acc, P0, P1, P2, PADDED)
        if flags & LSE:
            batch_l, start_l = lse_place(batch, batch_q, start_q, flags)
            lse_ptr += batch_l * stride_lb + head.to(tl.int64) * stride_lh + start_l + first_row
            tl.store(lse_ptr + column, log_sum_exp(row_max, row_sum), mask=inside)
