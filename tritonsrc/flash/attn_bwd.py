"""Attention backward: the gradients of q, k and v (FlashAttention-2: Dao, 2023, arXiv:2307.08691, section 3.1,
algorithm 2).

With p = softmax's weights, D = rowsum(out * dout), dp = dout v^T and ds = p * (dp - D):

    dv = p^T dout,   dk = sm_scale * ds^T q,   dq = sm_scale * ds k.

Nothing of the size of p is kept: it is computed again from q, k and the log-sum-exp. Two kernels follow each other:
dq, a block of rows in each program, which walks over the keys, and leaves D on its way; then dk and dv, a block of
keys in each, which walks over the rows that see it. Each element is summed by one program in one order, so results are
the same every time. attn_bwd_scores.py has the gradients of bias and sinks.

out is rounded, so D is not quite what a row's p * dp sum to, and its ds not quite to 0. attn_bwd_dq sums ds besides,
leaves D as it should be for the others, and takes from dq what the sums missed (means.py).
"""

import triton
import triton.language as tl
from dropout import factors, seed_of
from flags import BIAS
from means import less_of_mean, mean_key, mean_place, missed, no_sums, rounded_and_summed, steepness_of
from rows import inner, inner_in_chunks, load_rows, scaled, store_rows, summed, summed_up, sums, turned
from scores import known, slope_of
from sequences import lse_place, place, sequence
from softmax import shift_of, weights_of
from window import bounds, span


@triton.jit
def add_keys(
    dq, ds_sums, q, dout, stride_qm, stride_gm, inside_q, lse, delta, k_ptr, v_ptr, start, stride_kn, stride_vn,
    width_qk, width_v,
    rows, rows_k, first, last, scale, softcap, keep_scale, bias_ptr, stride_bm, slope, distance,
    seed, offset, threshold, plane, flags,
    MASKED: tl.constexpr, PADDED: tl.constexpr, EXTRAS: tl.constexpr, BLOCK_N: tl.constexpr,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, CHUNK: tl.constexpr, ONES: tl.constexpr,
):  # fmt: skip
    """Adds what a block of keys gives to dq of a block of rows, and to the sums of ds (means.py); with CHUNK, q
    and dout are the addresses of the first."""
    EXACT: tl.constexpr = k_ptr.dtype.element_ty == tl.float32
    keys = start + tl.arange(0, BLOCK_N)
    inside = keys < rows_k
    if CHUNK:
        local_q = tl.arange(0, rows.shape[0])
        local_k = tl.arange(0, BLOCK_N)
        products = inner_in_chunks(
            q, local_q * stride_qm, inside_q, k_ptr + start * stride_kn, local_k * stride_kn, inside, width_qk, CHUNK
        )  # fmt: skip
        dp = inner_in_chunks(
            dout, local_q * stride_gm, inside_q, v_ptr + start * stride_vn, local_k * stride_vn, inside, width_v,
            CHUNK
        )  # fmt: skip
    else:
        k = load_rows(k_ptr, start, stride_kn, inside, width_qk, BLOCK_N, P0, P1, P2, False, MASKED, PADDED)
        products = inner(q, turned(k, P1, P2), P1, P2)
    p, steepness = weights_of(
        products, lse, scale, softcap, bias_ptr, stride_bm, slope, rows, keys, distance,
        (first <= last)[:, None] & inside[None, :],
        (keys[None, :] >= first[:, None]) & (keys[None, :] <= last[:, None]), flags, EXACT, False, MASKED, EXTRAS,
    )  # fmt: skip
    if not CHUNK:
        v = load_rows(v_ptr, start, stride_vn, inside, width_v, BLOCK_N, P0, P1, P2, True, MASKED, PADDED)
        dp = inner(dout, v, P1, P2)
    if EXTRAS == "dropout" or EXTRAS == "any":
        dp *= factors(keep_scale, seed, offset, threshold, plane, rows, start, flags, BLOCK_N, EXTRAS)
    ds = p * (dp - delta[:, None])
    ds, ds_sums = rounded_and_summed(ds_sums, ds, steepness, k_ptr.dtype.element_ty, ONES, EXTRAS)
    if CHUNK:
        k = load_rows(k_ptr, start, stride_kn, inside, width_qk, BLOCK_N, P0, P1, P2, False, MASKED, PADDED)
    return summed_up(ds, k, dq, P1, P2), ds_sums


@triton.jit
def attn_bwd_dq(
    q_ptr, k_ptr, v_ptr, bias_ptr, slopes_ptr, seed_ptr, offset_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    sm_scale, softcap, keep_scale, seed, offset, stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_bb, stride_bh, stride_bm, stride_sb,
    batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, width_v, window_left, window_right, threshold, flags,
    out_ptr, dout_ptr, dq_ptr, lse_ptr, delta_ptr, stride_ob, stride_oh, stride_om, stride_gb, stride_gh, stride_gm,
    stride_dqb, stride_dqh, stride_dqm, stride_lb, stride_lh, stride_db, stride_dh, sinks_ptr, means_ptr, tiles,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, EXTRAS: tl.constexpr, PADDED: tl.constexpr,
    UNMASKED_LOOP: tl.constexpr, CHUNK: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONES: tl.constexpr,
):  # fmt: skip
    """dq, and delta = D, by `tiles` programs (sequences.place).

    Arguments as of attn_fwd; dout as out, its strides are g; delta [batch, heads, seqlen_q] fp32, its strides are d;
    means as attn_bwd_means has left them, SPAN being a multiple of BLOCK_M; ONES as rounded_and_summed() says.
    """
    tl.static_assert(SPAN % BLOCK_M == 0, "a block of rows has one mean key")
    KNOWN: tl.constexpr = known(EXTRAS, q_ptr.dtype.element_ty, UNMASKED_LOOP)
    EXACT: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
    batch, head, block = place(tl.program_id(0), tiles, heads, batches, seqlen_q, cu_q_ptr, flags, BLOCK_M, False)
    plane = batch * heads + head
    head_kv = head // heads_per_kv
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
    batch_k, start_k, rows_k = sequence(batch, seqlen_k, cu_k_ptr, used_k_ptr, flags, True)
    first_row = (tl.cdiv(rows_q, BLOCK_M) - 1 - block) * BLOCK_M
    if first_row < 0:
        return
    row_q = start_q + first_row
    q_ptr += batch_q * stride_qb + head.to(tl.int64) * stride_qh + row_q * stride_qm
    out_ptr += batch_q * stride_ob + head.to(tl.int64) * stride_oh + row_q * stride_om
    dout_ptr += batch_q * stride_gb + head.to(tl.int64) * stride_gh + row_q * stride_gm
    dq_ptr += batch_q * stride_dqb + head.to(tl.int64) * stride_dqh + row_q * stride_dqm
    batch_l, start_l = lse_place(batch, batch_q, start_q, flags)
    lse_ptr += batch_l * stride_lb + head.to(tl.int64) * stride_lh + start_l + first_row
    delta_ptr += batch_q * stride_db + head.to(tl.int64) * stride_dh + row_q
    k_ptr += batch_k * stride_kb + head_kv.to(tl.int64) * stride_kh + start_k * stride_kn
    v_ptr += batch_k * stride_vb + head_kv.to(tl.int64) * stride_vh + start_k * stride_vn
    bias_ptr += batch.to(tl.int64) * stride_bb + head.to(tl.int64) * stride_bh

    column = tl.arange(0, BLOCK_M)
    rows = first_row + column
    inside = rows < rows_q
    dout = load_rows(dout_ptr, 0, stride_gm, inside, width_v, BLOCK_M, P0, P1, P2, False, True, PADDED)
    out = load_rows(out_ptr, 0, stride_om, inside, width_v, BLOCK_M, P0, P1, P2, False, True, PADDED)
    delta = summed(out, dout, P1, P2)
    if CHUNK:
        q = q_ptr
        dout = dout_ptr
    else:
        q = load_rows(q_ptr, 0, stride_qm, inside, width_qk, BLOCK_M, P0, P1, P2, False, True, PADDED)
    lse = shift_of(tl.load(lse_ptr + column, mask=inside, other=0.0), EXACT)
    slope = slope_of(slopes_ptr, batch, stride_sb, head, flags, KNOWN)
    if KNOWN == "dropout" or KNOWN == "any":
        seed, offset = seed_of(seed_ptr, offset_ptr, seed, offset, flags)
    shift, left, right = bounds(rows_q, rows_k, window_left, window_right, flags)
    first, last, begin, end, whole_begin, whole_end = span(
        first_row, first_row + BLOCK_M - 1, rows, shift, left, right, rows_k, BLOCK_N
    )
    if KNOWN == "bias" or KNOWN == "any":
        last = tl.where(inside, last, -1)  # other rows have no bias
    if not UNMASKED_LOOP:
        whole_end = whole_begin
    whole = whole_end - whole_begin

    dq = sums(BLOCK_M, P0, P1, P2, EXACT)
    ds_sums = no_sums(BLOCK_M, ONES, KNOWN)
    if UNMASKED_LOOP:
        for start in tl.range(whole_begin, whole_end, BLOCK_N):
            dq, ds_sums = add_keys(
                dq, ds_sums, q, dout, stride_qm, stride_gm, inside, lse, delta, k_ptr, v_ptr, start,
                stride_kn, stride_vn, width_qk, width_v, rows, rows_k, first, last, sm_scale, softcap,
                keep_scale, bias_ptr, stride_bm, slope, rows_k - rows_q, seed, offset, threshold, plane, flags,
                False, PADDED, KNOWN, BLOCK_N, P0, P1, P2, CHUNK, ONES,
            )  # fmt: skip
    for step in tl.range(begin, end - whole, BLOCK_N, disable_licm=True):
        dq, ds_sums = add_keys(
            dq, ds_sums, q, dout, stride_qm, stride_gm, inside, lse, delta, k_ptr, v_ptr,
            tl.where(step < whole_begin, step, step + whole), stride_kn, stride_vn, width_qk, width_v,
            rows, rows_k, first, last, sm_scale, softcap, keep_scale, bias_ptr, stride_bm, slope, rows_k - rows_q,
            seed, offset, threshold, plane, flags,
            True, PADDED, KNOWN, BLOCK_N, P0, P1, P2, CHUNK, ONES,
        )  # fmt: skip
    delta, surplus, share = missed(ds_sums, delta, lse, sinks_ptr, head, flags, EXACT, ONES, KNOWN)
    tl.store(delta_ptr + column, delta, mask=inside)
    group = tl.where((flags & BIAS) != 0, head, head_kv)
    groups = tl.where((flags & BIAS) != 0, heads, heads // heads_per_kv)
    means_ptr += mean_place(batch, group, groups, start_q, first_row, seqlen_q, flags, SPAN) * width_qk
    mean = mean_key(means_ptr, width_qk, P0, P1, P2)
    if KNOWN == "softcap" or KNOWN == "any":
        surplus -= share * steepness_of(
            mean, q_ptr, column * stride_qm, inside, width_qk, sm_scale, softcap, flags, P0, P1, P2, PADDED
        )
    dq = less_of_mean(dq, surplus, mean, P1, P2)
    dq = scaled(dq, tl.full([BLOCK_M], 1.0, tl.float32) * sm_scale, P1, P2)
    store_rows(dq_ptr, column * stride_dqm, inside, width_qk, dq, P0, P1, P2, PADDED)


@triton.jit
def add_rows(
    dk, dv, k, v, stride_kn, stride_vn, q_ptr, dout_ptr, lse_ptr, delta_ptr, start, stride_qm, stride_gm, width_qk,
    width_v, keys, rows_q, rows_k, first, last, scale, softcap, keep_scale, bias_ptr, stride_bm, slope, distance,
    seed, offset, threshold, plane, first_key, flags,
    MASKED: tl.constexpr, PADDED: tl.constexpr, EXTRAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Adds what a block of rows gives to dk and dv of a block of keys. Scores are transposed: [BLOCK_N, BLOCK_M]. With
    CHUNK, k and v are the addresses of the first."""
    EXACT: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
    rows = start + tl.arange(0, BLOCK_M)
    inside = rows < rows_q
    if CHUNK:
        local_q = tl.arange(0, BLOCK_M)
        local_k = tl.arange(0, BLOCK_N)
        products = inner_in_chunks(
            k, local_k * stride_kn, keys < rows_k, q_ptr + start * stride_qm, local_q * stride_qm, inside, width_qk,
            CHUNK,
        )  # fmt: skip
        dp = inner_in_chunks(
            v, local_k * stride_vn, keys < rows_k, dout_ptr + start * stride_gm, local_q * stride_gm, inside, width_v,
            CHUNK,
        )  # fmt: skip
    else:
        q = load_rows(q_ptr, start, stride_qm, inside, width_qk, BLOCK_M, P0, P1, P2, False, MASKED, PADDED)
        products = inner(k, turned(q, P1, P2), P1, P2)
    if MASKED:
        lse = tl.load(lse_ptr + rows, mask=inside, other=0.0)
    else:
        lse = tl.load(lse_ptr + rows)
    p, steepness = weights_of(
        products, shift_of(lse, EXACT), scale, softcap, bias_ptr, stride_bm, slope, rows, keys, distance,
        inside[:, None] & (keys < rows_k)[None, :],
        (rows[None, :] >= first[:, None]) & (rows[None, :] <= last[:, None]), flags, EXACT, True, MASKED, EXTRAS,
    )  # fmt: skip
    dout = load_rows(dout_ptr, start, stride_gm, inside, width_v, BLOCK_M, P0, P1, P2, False, MASKED, PADDED)
    if not CHUNK:
        dp = inner(v, turned(dout, P1, P2), P1, P2)
    weights = p
    if EXTRAS == "dropout" or EXTRAS == "any":
        keep = factors(keep_scale, seed, offset, threshold, plane, rows, first_key, flags, BLOCK_N, EXTRAS).T
        weights = p * keep
        dp *= keep
    dv = summed_up(weights.to(dout[0].dtype), dout, dv, P1, P2)
    if MASKED:
        delta = tl.load(delta_ptr + rows, mask=inside, other=0.0)
    else:
        delta = tl.load(delta_ptr + rows)
    ds = p * (dp - delta[None, :])
    if EXTRAS == "softcap" or EXTRAS == "any":
        ds *= steepness
    if CHUNK:
        q = load_rows(q_ptr, start, stride_qm, inside, width_qk, BLOCK_M, P0, P1, P2, False, MASKED, PADDED)
    dk = summed_up(ds.to(q[0].dtype), q, dk, P1, P2)
    return dk, dv


@triton.jit
def attn_bwd_dk_dv(
    q_ptr, k_ptr, v_ptr, bias_ptr, slopes_ptr, seed_ptr, offset_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    sm_scale, softcap, keep_scale, seed, offset, stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_bb, stride_bh, stride_bm, stride_sb,
    batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, width_v, window_left, window_right, threshold, flags,
    dout_ptr, dk_ptr, dv_ptr, lse_ptr, delta_ptr, stride_gb, stride_gh, stride_gm,
    stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn, stride_lb, stride_lh, stride_db, stride_dh,
    tiles,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, EXTRAS: tl.constexpr, PADDED: tl.constexpr,
    UNMASKED_LOOP: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk and dv, by `tiles` programs (sequences.place, of keys). Arguments as of attn_bwd_dq, which has left delta.
    The query heads that share a key head are summed here, one after another."""
    KNOWN: tl.constexpr = known(EXTRAS, q_ptr.dtype.element_ty, UNMASKED_LOOP)
    EXACT: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
    heads_kv = heads // heads_per_kv
    batch, head_kv, block = place(tl.program_id(0), tiles, heads_kv, batches, seqlen_k, cu_k_ptr, flags, BLOCK_N, True)
    first_key = block * BLOCK_N  # under a causal mask the first keys are seen by most: longest first
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
    batch_k, start_k, rows_k = sequence(batch, seqlen_k, cu_k_ptr, used_k_ptr, flags, True)
    if first_key >= rows_k:
        return
    row_k = start_k + first_key
    row_q = start_q
    batch_l, start_l = lse_place(batch, batch_q, start_q, flags)
    k_ptr += batch_k * stride_kb + head_kv.to(tl.int64) * stride_kh + row_k * stride_kn
    v_ptr += batch_k * stride_vb + head_kv.to(tl.int64) * stride_vh + row_k * stride_vn
    dk_ptr += batch_k * stride_dkb + head_kv.to(tl.int64) * stride_dkh + row_k * stride_dkn
    dv_ptr += batch_k * stride_dvb + head_kv.to(tl.int64) * stride_dvh + row_k * stride_dvn

    column = tl.arange(0, BLOCK_N)
    keys = first_key + column
    inside = keys < rows_k
    if CHUNK:
        k = k_ptr
        v = v_ptr
    else:
        k = load_rows(k_ptr, 0, stride_kn, inside, width_qk, BLOCK_N, P0, P1, P2, False, True, PADDED)
        v = load_rows(v_ptr, 0, stride_vn, inside, width_v, BLOCK_N, P0, P1, P2, False, True, PADDED)
    if KNOWN == "dropout" or KNOWN == "any":
        seed, offset = seed_of(seed_ptr, offset_ptr, seed, offset, flags)

    dk = sums(BLOCK_N, P0, P1, P2, EXACT)
    dv = sums(BLOCK_N, P0, P1, P2, EXACT)
    shift, left, right = bounds(rows_q, rows_k, window_left, window_right, flags)
    first, last, begin, end, whole_begin, whole_end = span(
        first_key, first_key + BLOCK_N - 1, keys, -shift, right, left, rows_q, BLOCK_M
    )
    if not UNMASKED_LOOP:
        whole_end = whole_begin
    whole = whole_end - whole_begin
    for member in range(heads_per_kv):
        head = head_kv * heads_per_kv + member
        q_rows = q_ptr + batch_q * stride_qb + head.to(tl.int64) * stride_qh + row_q * stride_qm
        dout_rows = dout_ptr + batch_q * stride_gb + head.to(tl.int64) * stride_gh + row_q * stride_gm
        lse_rows = lse_ptr + batch_l * stride_lb + head.to(tl.int64) * stride_lh + start_l
        delta_rows = delta_ptr + batch_q * stride_db + head.to(tl.int64) * stride_dh + row_q
        bias_plane = bias_ptr + batch.to(tl.int64) * stride_bb + head.to(tl.int64) * stride_bh
        slope = slope_of(slopes_ptr, batch, stride_sb, head, flags, KNOWN)
        if UNMASKED_LOOP:
            for start in tl.range(whole_begin, whole_end, BLOCK_M):
                dk, dv = add_rows(
                    dk, dv, k, v, stride_kn, stride_vn, q_rows, dout_rows, lse_rows, delta_rows, start,
                    stride_qm, stride_gm, width_qk, width_v,
                    keys, rows_q, rows_k, first, last, sm_scale, softcap, keep_scale, bias_plane, stride_bm, slope,
                    rows_k - rows_q, seed, offset, threshold, batch * heads + head, first_key, flags,
                    False, PADDED, KNOWN, BLOCK_M, BLOCK_N, P0, P1, P2, CHUNK,
                )  # fmt: skip
        for step in tl.range(begin, end - whole, BLOCK_M, disable_licm=True):
            dk, dv = add_rows(
                dk, dv, k, v, stride_kn, stride_vn, q_rows, dout_rows, lse_rows, delta_rows,
                tl.where(step < whole_begin, step, step + whole),
                stride_qm, stride_gm, width_qk, width_v,
                keys, rows_q, rows_k, first, last, sm_scale, softcap, keep_scale, bias_plane, stride_bm, slope,
                rows_k - rows_q, seed, offset, threshold, batch * heads + head, first_key, flags,
                True, PADDED, KNOWN, BLOCK_M, BLOCK_N, P0, P1, P2, CHUNK,
            )  # fmt: skip
    dk = scaled(dk, tl.full([BLOCK_N], 1.0, tl.float32) * sm_scale, P1, P2)
    store_rows(dk_ptr, column * stride_dkn, inside, width_qk, dk, P0, P1, P2, PADDED)
    store_rows(dv_ptr, column * stride_dvn, inside, width_v, dv, P0, P1, P2, PADDED)
