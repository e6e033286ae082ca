"""Kernels as authors write them, whose recipes `kiln recipes --new` writes for tests/jit/test_jit_skeleton.py."""

import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=inside) + tl.load(y_ptr + offsets, mask=inside), inside)


@triton.jit
def softmax(OUT, X, in_row_stride, out_row_stride, n_rows, n_cols, BLOCK_SIZE: tl.constexpr):
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0)):
        cols = tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + row * in_row_stride + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - tl.max(x, 0))
        tl.store(OUT + row * out_row_stride + cols, (e / tl.sum(e, 0)).to(OUT.dtype.element_ty), mask=cols < n_cols)


@triton.jit
def layer_norm(X, Y, W, B, Mean, Rstd, stride, N, eps, HAS_BIAS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    X += row * stride
    Y += row * stride
    total = tl.zeros([BLOCK_SIZE], tl.float32)
    squares = tl.zeros([BLOCK_SIZE], tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        total += x
        squares += x * x
    mean = tl.sum(total, 0) / N
    rstd = 1 / tl.sqrt(tl.sum(squares, 0) / N - mean * mean + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * tl.load(W + cols, mask=cols < N).to(tl.float32)
        if HAS_BIAS:
            y += tl.load(B + cols, mask=cols < N).to(tl.float32)
        tl.store(Y + cols, y.to(Y.dtype.element_ty), mask=cols < N)


@triton.jit
def column_sums(DY, Sums, n_rows, n_cols, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row[:, None] < n_rows) & (col[None, :] < n_cols)
    dy = tl.load(DY + row[:, None] * n_cols + col[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.atomic_add(Sums + col, tl.sum(dy, 0), mask=col < n_cols)


@triton.jit
def scale_heads(
    x_ptr, scale_ptr, out_ptr, tokens, heads, dim,
    stride_xb, stride_xt, stride_xh, stride_scale, stride_ob, stride_ot, stride_oh,
    DIM: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """out = x * scale, of a scale for each token and element of a head."""
    batch = tl.program_id(0) // tokens
    token = tl.program_id(0) % tokens
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, DIM)[None, :]
    inside = (head < heads) & (i < dim)
    scale = tl.load(scale_ptr + token * stride_scale + i, mask=i < dim, other=0.0)
    x = tl.load(x_ptr + batch * stride_xb + token * stride_xt + head * stride_xh + i, mask=inside, other=0.0)
    tl.store(out_ptr + batch * stride_ob + token * stride_ot + head * stride_oh + i, x * scale, mask=inside)


@triton.jit
def row_norms(x_ptr, norms_ptr, rows, columns, flavour, stride_x, stride_norms, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride_x + column, mask=column < columns, other=0.0).to(tl.float32)
        total += x * x
    tl.store(norms_ptr + row * stride_norms, tl.sqrt(tl.sum(total)))


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
           ACTIVATION: tl.constexpr):  # fmt: skip
    pid = tl.program_id(axis=0)
    tiles_n = tl.cdiv(N, BLOCK_N)
    in_group = GROUP_M * tiles_n
    first_m = pid // in_group * GROUP_M
    height = min(tl.cdiv(M, BLOCK_M) - first_m, GROUP_M)
    pid_m = first_m + ((pid % in_group) % height)
    pid_n = (pid % in_group) // height
    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == "leaky_relu":
        acc = tl.where(acc >= 0, acc, 0.01 * acc)
    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=inside)
