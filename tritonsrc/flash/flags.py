"""What a call asks for, as bits of the argument `flags`: what is no constant of an image. The recipe sets the same."""

import triton.language as tl

CU_Q = tl.constexpr(1)  # sequences of queries lie one after another; cu_q says where
CU_K = tl.constexpr(2)
USED_Q = tl.constexpr(4)  # used_q says how many rows of each sequence count
USED_K = tl.constexpr(8)
BOTTOM_RIGHT = tl.constexpr(16)  # the last row and the last key belong together, not the first
SINKS = tl.constexpr(32)
LSE = tl.constexpr(64)
BIAS = tl.constexpr(128)
ALIBI = tl.constexpr(256)
SOFTCAP = tl.constexpr(512)
DROPOUT = tl.constexpr(1024)
SEED = tl.constexpr(2048)  # the seed lies in device memory
OFFSET = tl.constexpr(4096)
SEED_OUT = tl.constexpr(8192)  # seed and offset are to be written
PAGED = tl.constexpr(16384)  # keys lie in pages, which a table lists
CACHE_BATCH = tl.constexpr(32768)  # cache_batch says which batch of the cache a sequence has
LEFTPAD = tl.constexpr(65536)  # leftpad says how many keys at the begin of each sequence do not count
SCALES = tl.constexpr(131072)  # cached elements are multiplied by a scale for each head
INTERLEAVED = tl.constexpr(262144)  # rotary embedding: columns 2 c and 2 c + 1 belong together
ONE_ANGLE = tl.constexpr(524288)  # all rows of q are rotated as the first
SUMS_Q = tl.constexpr(1048576)  # cu_q only says how long sequences are; each lies at the begin of its batch
SUMS_K = tl.constexpr(2097152)
LSE_BY_SEQUENCE = tl.constexpr(4194304)  # log-sum-exps lie sequence by sequence, although rows lie one after another
Q_SCALE = tl.constexpr(8388608)  # elements of q are multiplied by a scale for each key head; without it by 1
K_SCALE = tl.constexpr(16777216)
V_SCALE = tl.constexpr(33554432)
