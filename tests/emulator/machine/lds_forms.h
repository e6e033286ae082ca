/*
 * The instructions of LDS, as a list: X(name, what, bytes, half of the register, whether signed, operation)
 *
 * READ2 and WRITE2 move two elements whose offsets count elements; READ2_64 and WRITE2_64 count 64 of them. UPDATE is
 * an atomic, RETURN one that gives the old value. TRANSPOSE: `bytes` are the bits of an element. Names as gfx9 has
 * them, then as gfx11 and gfx12, then what has one name.
 */
#ifndef EMU_LDS_FORMS_H
#define EMU_LDS_FORMS_H

#define EMU_LDS_MOVES(X)                                 \
  X(ds_read_u8, READ, 1, WHOLE, 0)                       \
  X(ds_read_i8, READ, 1, WHOLE, 1)                       \
  X(ds_read_u16, READ, 2, WHOLE, 0)                      \
  X(ds_read_i16, READ, 2, WHOLE, 1)                      \
  X(ds_read_b32, READ, 4, WHOLE, 0)                      \
  X(ds_read_b64, READ, 8, WHOLE, 0)                      \
  X(ds_read_b96, READ, 12, WHOLE, 0)                     \
  X(ds_read_b128, READ, 16, WHOLE, 0)                    \
  X(ds_read_u8_d16, READ, 1, LOW_HALF, 0)                \
  X(ds_read_i8_d16, READ, 1, LOW_HALF, 1)                \
  X(ds_read_u16_d16, READ, 2, LOW_HALF, 0)               \
  X(ds_read_u8_d16_hi, READ, 1, HIGH_HALF, 0)            \
  X(ds_read_i8_d16_hi, READ, 1, HIGH_HALF, 1)            \
  X(ds_read_u16_d16_hi, READ, 2, HIGH_HALF, 0)           \
  X(ds_read2_b32, READ2, 4, WHOLE, 0)                    \
  X(ds_read2_b64, READ2, 8, WHOLE, 0)                    \
  X(ds_read2st64_b32, READ2_64, 4, WHOLE, 0)             \
  X(ds_read2st64_b64, READ2_64, 8, WHOLE, 0)             \
  X(ds_read_addtid_b32, READ_LANE, 4, WHOLE, 0)          \
  X(ds_write_b8, WRITE, 1, WHOLE, 0)                     \
  X(ds_write_b16, WRITE, 2, WHOLE, 0)                    \
  X(ds_write_b8_d16_hi, WRITE, 1, HIGH_HALF, 0)          \
  X(ds_write_b16_d16_hi, WRITE, 2, HIGH_HALF, 0)         \
  X(ds_write_b32, WRITE, 4, WHOLE, 0)                    \
  X(ds_write_b64, WRITE, 8, WHOLE, 0)                    \
  X(ds_write_b96, WRITE, 12, WHOLE, 0)                   \
  X(ds_write_b128, WRITE, 16, WHOLE, 0)                  \
  X(ds_write2_b32, WRITE2, 4, WHOLE, 0)                  \
  X(ds_write2_b64, WRITE2, 8, WHOLE, 0)                  \
  X(ds_write2st64_b32, WRITE2_64, 4, WHOLE, 0)           \
  X(ds_write2st64_b64, WRITE2_64, 8, WHOLE, 0)           \
  X(ds_write_addtid_b32, WRITE_LANE, 4, WHOLE, 0)        \
  X(ds_load_u8, READ, 1, WHOLE, 0)                       \
  X(ds_load_i8, READ, 1, WHOLE, 1)                       \
  X(ds_load_u16, READ, 2, WHOLE, 0)                      \
  X(ds_load_i16, READ, 2, WHOLE, 1)                      \
  X(ds_load_b32, READ, 4, WHOLE, 0)                      \
  X(ds_load_b64, READ, 8, WHOLE, 0)                      \
  X(ds_load_b96, READ, 12, WHOLE, 0)                     \
  X(ds_load_b128, READ, 16, WHOLE, 0)                    \
  X(ds_load_u8_d16, READ, 1, LOW_HALF, 0)                \
  X(ds_load_i8_d16, READ, 1, LOW_HALF, 1)                \
  X(ds_load_u16_d16, READ, 2, LOW_HALF, 0)               \
  X(ds_load_u8_d16_hi, READ, 1, HIGH_HALF, 0)            \
  X(ds_load_i8_d16_hi, READ, 1, HIGH_HALF, 1)            \
  X(ds_load_u16_d16_hi, READ, 2, HIGH_HALF, 0)           \
  X(ds_load_2addr_b32, READ2, 4, WHOLE, 0)               \
  X(ds_load_2addr_b64, READ2, 8, WHOLE, 0)               \
  X(ds_load_2addr_stride64_b32, READ2_64, 4, WHOLE, 0)   \
  X(ds_load_2addr_stride64_b64, READ2_64, 8, WHOLE, 0)   \
  X(ds_load_addtid_b32, READ_LANE, 4, WHOLE, 0)          \
  X(ds_store_b8, WRITE, 1, WHOLE, 0)                     \
  X(ds_store_b16, WRITE, 2, WHOLE, 0)                    \
  X(ds_store_b8_d16_hi, WRITE, 1, HIGH_HALF, 0)          \
  X(ds_store_b16_d16_hi, WRITE, 2, HIGH_HALF, 0)         \
  X(ds_store_b32, WRITE, 4, WHOLE, 0)                    \
  X(ds_store_b64, WRITE, 8, WHOLE, 0)                    \
  X(ds_store_b96, WRITE, 12, WHOLE, 0)                   \
  X(ds_store_b128, WRITE, 16, WHOLE, 0)                  \
  X(ds_store_2addr_b32, WRITE2, 4, WHOLE, 0)             \
  X(ds_store_2addr_b64, WRITE2, 8, WHOLE, 0)             \
  X(ds_store_2addr_stride64_b32, WRITE2_64, 4, WHOLE, 0) \
  X(ds_store_2addr_stride64_b64, WRITE2_64, 8, WHOLE, 0) \
  X(ds_store_addtid_b32, WRITE_LANE, 4, WHOLE, 0)

/* Y: as X, of atomics: name, name with the old value, bytes, operation */
#define EMU_LDS_ATOMICS(Y)                                 \
  Y(ds_add_u32, ds_add_rtn_u32, 4, ADD)                    \
  Y(ds_sub_u32, ds_sub_rtn_u32, 4, SUB)                    \
  Y(ds_rsub_u32, ds_rsub_rtn_u32, 4, REVERSE_SUB)          \
  Y(ds_inc_u32, ds_inc_rtn_u32, 4, INC)                    \
  Y(ds_dec_u32, ds_dec_rtn_u32, 4, DEC)                    \
  Y(ds_min_i32, ds_min_rtn_i32, 4, SMIN)                   \
  Y(ds_max_i32, ds_max_rtn_i32, 4, SMAX)                   \
  Y(ds_min_u32, ds_min_rtn_u32, 4, UMIN)                   \
  Y(ds_max_u32, ds_max_rtn_u32, 4, UMAX)                   \
  Y(ds_and_b32, ds_and_rtn_b32, 4, AND)                    \
  Y(ds_or_b32, ds_or_rtn_b32, 4, OR)                       \
  Y(ds_xor_b32, ds_xor_rtn_b32, 4, XOR)                    \
  Y(ds_add_u64, ds_add_rtn_u64, 8, ADD)                    \
  Y(ds_sub_u64, ds_sub_rtn_u64, 8, SUB)                    \
  Y(ds_rsub_u64, ds_rsub_rtn_u64, 8, REVERSE_SUB)          \
  Y(ds_inc_u64, ds_inc_rtn_u64, 8, INC)                    \
  Y(ds_dec_u64, ds_dec_rtn_u64, 8, DEC)                    \
  Y(ds_min_i64, ds_min_rtn_i64, 8, SMIN)                   \
  Y(ds_max_i64, ds_max_rtn_i64, 8, SMAX)                   \
  Y(ds_min_u64, ds_min_rtn_u64, 8, UMIN)                   \
  Y(ds_max_u64, ds_max_rtn_u64, 8, UMAX)                   \
  Y(ds_and_b64, ds_and_rtn_b64, 8, AND)                    \
  Y(ds_or_b64, ds_or_rtn_b64, 8, OR)                       \
  Y(ds_xor_b64, ds_xor_rtn_b64, 8, XOR)                    \
  Y(ds_add_f32, ds_add_rtn_f32, 4, ADD_F)                  \
  Y(ds_min_f32, ds_min_rtn_f32, 4, MIN_F)                  \
  Y(ds_max_f32, ds_max_rtn_f32, 4, MAX_F)                  \
  Y(ds_min_num_f32, ds_min_num_rtn_f32, 4, MIN_F)          \
  Y(ds_max_num_f32, ds_max_num_rtn_f32, 4, MAX_F)          \
  Y(ds_add_f64, ds_add_rtn_f64, 8, ADD_F)                  \
  Y(ds_min_f64, ds_min_rtn_f64, 8, MIN_F)                  \
  Y(ds_max_f64, ds_max_rtn_f64, 8, MAX_F)                  \
  Y(ds_pk_add_f16, ds_pk_add_rtn_f16, 4, PK_ADD_F16)       \
  Y(ds_pk_add_bf16, ds_pk_add_rtn_bf16, 4, PK_ADD_BF16)    \
  Y(ds_cmpst_b32, ds_cmpst_rtn_b32, 4, COMPARE_SWAP)       \
  Y(ds_cmpst_b64, ds_cmpst_rtn_b64, 8, COMPARE_SWAP)       \
  Y(ds_cmpstore_b32, ds_cmpstore_rtn_b32, 4, COMPARE_SWAP) \
  Y(ds_cmpstore_b64, ds_cmpstore_rtn_b64, 8, COMPARE_SWAP)

/* X(name, bytes): atomics that exist with the old value only */
#define EMU_LDS_SWAPS(X)     \
  X(ds_wrxchg_rtn_b32, 4)    \
  X(ds_wrxchg_rtn_b64, 8)    \
  X(ds_storexchg_rtn_b32, 4) \
  X(ds_storexchg_rtn_b64, 8)

/* X(name, what, bits of an element) */
#define EMU_LDS_LANES(X)                 \
  X(ds_permute_b32, PERMUTE, 0)          \
  X(ds_bpermute_b32, BPERMUTE, 0)        \
  X(ds_bpermute_fi_b32, BPERMUTE_ALL, 0) \
  X(ds_swizzle_b32, SWIZZLE, 0)          \
  X(ds_read_b64_tr_b16, TRANSPOSE, 16)   \
  X(ds_read_b64_tr_b8, TRANSPOSE, 8)     \
  X(ds_read_b64_tr_b4, TRANSPOSE, 4)     \
  X(ds_read_b96_tr_b6, TRANSPOSE, 6)

#endif
