/*
 * The vector memory instructions, as lists.
 *
 * Loads and stores: X(prefix, space, name, bytes of a lane, half of the register, whether signed)
 * Atomics:          X(prefix, space, name, bytes, operation)
 * Names as gfx9 has them, then as gfx11 and gfx12.
 */
#ifndef EMU_MEMORY_FORMS_H
#define EMU_MEMORY_FORMS_H

#define EMU_LOAD_FORMS(X, P, S)               \
  X(P, S, load_ubyte, 1, WHOLE, 0)            \
  X(P, S, load_sbyte, 1, WHOLE, 1)            \
  X(P, S, load_ushort, 2, WHOLE, 0)           \
  X(P, S, load_sshort, 2, WHOLE, 1)           \
  X(P, S, load_dword, 4, WHOLE, 0)            \
  X(P, S, load_dwordx2, 8, WHOLE, 0)          \
  X(P, S, load_dwordx3, 12, WHOLE, 0)         \
  X(P, S, load_dwordx4, 16, WHOLE, 0)         \
  X(P, S, load_ubyte_d16, 1, LOW_HALF, 0)     \
  X(P, S, load_sbyte_d16, 1, LOW_HALF, 1)     \
  X(P, S, load_short_d16, 2, LOW_HALF, 0)     \
  X(P, S, load_ubyte_d16_hi, 1, HIGH_HALF, 0) \
  X(P, S, load_sbyte_d16_hi, 1, HIGH_HALF, 1) \
  X(P, S, load_short_d16_hi, 2, HIGH_HALF, 0) \
  X(P, S, load_u8, 1, WHOLE, 0)               \
  X(P, S, load_i8, 1, WHOLE, 1)               \
  X(P, S, load_u16, 2, WHOLE, 0)              \
  X(P, S, load_i16, 2, WHOLE, 1)              \
  X(P, S, load_b32, 4, WHOLE, 0)              \
  X(P, S, load_b64, 8, WHOLE, 0)              \
  X(P, S, load_b96, 12, WHOLE, 0)             \
  X(P, S, load_b128, 16, WHOLE, 0)            \
  X(P, S, load_d16_u8, 1, LOW_HALF, 0)        \
  X(P, S, load_d16_i8, 1, LOW_HALF, 1)        \
  X(P, S, load_d16_b16, 2, LOW_HALF, 0)       \
  X(P, S, load_d16_hi_u8, 1, HIGH_HALF, 0)    \
  X(P, S, load_d16_hi_i8, 1, HIGH_HALF, 1)    \
  X(P, S, load_d16_hi_b16, 2, HIGH_HALF, 0)

#define EMU_STORE_FORMS(X, P, S)               \
  X(P, S, store_byte, 1, WHOLE, 0)             \
  X(P, S, store_short, 2, WHOLE, 0)            \
  X(P, S, store_byte_d16_hi, 1, HIGH_HALF, 0)  \
  X(P, S, store_short_d16_hi, 2, HIGH_HALF, 0) \
  X(P, S, store_dword, 4, WHOLE, 0)            \
  X(P, S, store_dwordx2, 8, WHOLE, 0)          \
  X(P, S, store_dwordx3, 12, WHOLE, 0)         \
  X(P, S, store_dwordx4, 16, WHOLE, 0)         \
  X(P, S, store_b8, 1, WHOLE, 0)               \
  X(P, S, store_b16, 2, WHOLE, 0)              \
  X(P, S, store_d16_hi_b8, 1, HIGH_HALF, 0)    \
  X(P, S, store_d16_hi_b16, 2, HIGH_HALF, 0)   \
  X(P, S, store_b32, 4, WHOLE, 0)              \
  X(P, S, store_b64, 8, WHOLE, 0)              \
  X(P, S, store_b96, 12, WHOLE, 0)             \
  X(P, S, store_b128, 16, WHOLE, 0)

/* Memory to LDS, past the registers. */
#define EMU_COPY_FORMS(X, P, S)           \
  X(P, S, load_lds_ubyte, 1, WHOLE, 0)    \
  X(P, S, load_lds_sbyte, 1, WHOLE, 1)    \
  X(P, S, load_lds_ushort, 2, WHOLE, 0)   \
  X(P, S, load_lds_sshort, 2, WHOLE, 1)   \
  X(P, S, load_lds_dword, 4, WHOLE, 0)    \
  X(P, S, load_lds_dwordx3, 12, WHOLE, 0) \
  X(P, S, load_lds_dwordx4, 16, WHOLE, 0)

#define EMU_ATOMIC_FORMS(X, P, S)              \
  X(P, S, atomic_swap, 4, SWAP)                \
  X(P, S, atomic_cmpswap, 4, COMPARE_SWAP)     \
  X(P, S, atomic_add, 4, ADD)                  \
  X(P, S, atomic_sub, 4, SUB)                  \
  X(P, S, atomic_smin, 4, SMIN)                \
  X(P, S, atomic_umin, 4, UMIN)                \
  X(P, S, atomic_smax, 4, SMAX)                \
  X(P, S, atomic_umax, 4, UMAX)                \
  X(P, S, atomic_and, 4, AND)                  \
  X(P, S, atomic_or, 4, OR)                    \
  X(P, S, atomic_xor, 4, XOR)                  \
  X(P, S, atomic_inc, 4, INC)                  \
  X(P, S, atomic_dec, 4, DEC)                  \
  X(P, S, atomic_swap_x2, 8, SWAP)             \
  X(P, S, atomic_cmpswap_x2, 8, COMPARE_SWAP)  \
  X(P, S, atomic_add_x2, 8, ADD)               \
  X(P, S, atomic_sub_x2, 8, SUB)               \
  X(P, S, atomic_smin_x2, 8, SMIN)             \
  X(P, S, atomic_umin_x2, 8, UMIN)             \
  X(P, S, atomic_smax_x2, 8, SMAX)             \
  X(P, S, atomic_umax_x2, 8, UMAX)             \
  X(P, S, atomic_and_x2, 8, AND)               \
  X(P, S, atomic_or_x2, 8, OR)                 \
  X(P, S, atomic_xor_x2, 8, XOR)               \
  X(P, S, atomic_inc_x2, 8, INC)               \
  X(P, S, atomic_dec_x2, 8, DEC)               \
  X(P, S, atomic_add_f32, 4, ADD_F)            \
  X(P, S, atomic_add_f64, 8, ADD_F)            \
  X(P, S, atomic_min_f64, 8, MIN_F)            \
  X(P, S, atomic_max_f64, 8, MAX_F)            \
  X(P, S, atomic_pk_add_f16, 4, PK_ADD_F16)    \
  X(P, S, atomic_pk_add_bf16, 4, PK_ADD_BF16)  \
  X(P, S, atomic_swap_b32, 4, SWAP)            \
  X(P, S, atomic_cmpswap_b32, 4, COMPARE_SWAP) \
  X(P, S, atomic_add_u32, 4, ADD)              \
  X(P, S, atomic_sub_u32, 4, SUB)              \
  X(P, S, atomic_min_i32, 4, SMIN)             \
  X(P, S, atomic_min_u32, 4, UMIN)             \
  X(P, S, atomic_max_i32, 4, SMAX)             \
  X(P, S, atomic_max_u32, 4, UMAX)             \
  X(P, S, atomic_and_b32, 4, AND)              \
  X(P, S, atomic_or_b32, 4, OR)                \
  X(P, S, atomic_xor_b32, 4, XOR)              \
  X(P, S, atomic_inc_u32, 4, INC)              \
  X(P, S, atomic_dec_u32, 4, DEC)              \
  X(P, S, atomic_swap_b64, 8, SWAP)            \
  X(P, S, atomic_cmpswap_b64, 8, COMPARE_SWAP) \
  X(P, S, atomic_add_u64, 8, ADD)              \
  X(P, S, atomic_sub_u64, 8, SUB)              \
  X(P, S, atomic_min_i64, 8, SMIN)             \
  X(P, S, atomic_min_u64, 8, UMIN)             \
  X(P, S, atomic_max_i64, 8, SMAX)             \
  X(P, S, atomic_max_u64, 8, UMAX)             \
  X(P, S, atomic_and_b64, 8, AND)              \
  X(P, S, atomic_or_b64, 8, OR)                \
  X(P, S, atomic_xor_b64, 8, XOR)              \
  X(P, S, atomic_inc_u64, 8, INC)              \
  X(P, S, atomic_dec_u64, 8, DEC)              \
  X(P, S, atomic_min_f32, 4, MIN_F)            \
  X(P, S, atomic_max_f32, 4, MAX_F)            \
  X(P, S, atomic_min_num_f32, 4, MIN_F)        \
  X(P, S, atomic_max_num_f32, 4, MAX_F)

/* Caches written back or made anew: nothing to do where every access is done at once. */
#define EMU_CACHE_FORMS(X) \
  X(buffer_wbl2, 0)        \
  X(buffer_inv, 0)         \
  X(buffer_invl2, 0)       \
  X(buffer_wbinvl1, 0)     \
  X(buffer_wbinvl1_vol, 0) \
  X(buffer_gl0_inv, 0)     \
  X(buffer_gl1_inv, 0)     \
  X(global_inv, EMU_LOADS) \
  X(global_wb, EMU_STORES) \
  X(global_wbinv, EMU_STORES)

#endif
