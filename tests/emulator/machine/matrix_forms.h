/*
 * The matrix instructions: D (m x n) = A (m x k) times B (k x n) plus C, in as many blocks.
 *
 * X(name, m, n, k, blocks, type of A, type of B, type of C and D, layout, passes of four clocks)
 *
 * Names as LLVM writes them: gfx90a's first, then those of gfx942 and gfx950, then WMMA, of gfx11 and gfx12 alike.
 */
#ifndef EMU_MATRIX_FORMS_H
#define EMU_MATRIX_FORMS_H

#define EMU_MATRIX_FORMS(X)                                                        \
  X(v_mfma_f32_32x32x1f32, 32, 32, 1, 2, F32, F32, F32, MFMA, 16)                  \
  X(v_mfma_f32_16x16x1f32, 16, 16, 1, 4, F32, F32, F32, MFMA, 8)                   \
  X(v_mfma_f32_4x4x1f32, 4, 4, 1, 16, F32, F32, F32, MFMA, 2)                      \
  X(v_mfma_f32_32x32x2f32, 32, 32, 2, 1, F32, F32, F32, MFMA, 16)                  \
  X(v_mfma_f32_16x16x4f32, 16, 16, 4, 1, F32, F32, F32, MFMA, 8)                   \
  X(v_mfma_f32_32x32x4f16, 32, 32, 4, 2, F16, F16, F32, MFMA, 16)                  \
  X(v_mfma_f32_16x16x4f16, 16, 16, 4, 4, F16, F16, F32, MFMA, 8)                   \
  X(v_mfma_f32_4x4x4f16, 4, 4, 4, 16, F16, F16, F32, MFMA, 2)                      \
  X(v_mfma_f32_32x32x8f16, 32, 32, 8, 1, F16, F16, F32, MFMA, 16)                  \
  X(v_mfma_f32_16x16x16f16, 16, 16, 16, 1, F16, F16, F32, MFMA, 8)                 \
  X(v_mfma_i32_32x32x4i8, 32, 32, 4, 2, I8, I8, I32, MFMA, 16)                     \
  X(v_mfma_i32_16x16x4i8, 16, 16, 4, 4, I8, I8, I32, MFMA, 8)                      \
  X(v_mfma_i32_4x4x4i8, 4, 4, 4, 16, I8, I8, I32, MFMA, 2)                         \
  X(v_mfma_i32_32x32x8i8, 32, 32, 8, 1, I8, I8, I32, MFMA, 16)                     \
  X(v_mfma_i32_16x16x16i8, 16, 16, 16, 1, I8, I8, I32, MFMA, 8)                    \
  X(v_mfma_f32_32x32x2bf16, 32, 32, 2, 2, BF16, BF16, F32, MFMA, 16)               \
  X(v_mfma_f32_16x16x2bf16, 16, 16, 2, 4, BF16, BF16, F32, MFMA, 8)                \
  X(v_mfma_f32_4x4x2bf16, 4, 4, 2, 16, BF16, BF16, F32, MFMA, 2)                   \
  X(v_mfma_f32_32x32x4bf16, 32, 32, 4, 1, BF16, BF16, F32, MFMA, 16)               \
  X(v_mfma_f32_16x16x8bf16, 16, 16, 8, 1, BF16, BF16, F32, MFMA, 8)                \
  X(v_mfma_f32_32x32x4bf16_1k, 32, 32, 4, 2, BF16, BF16, F32, MFMA, 16)            \
  X(v_mfma_f32_16x16x4bf16_1k, 16, 16, 4, 4, BF16, BF16, F32, MFMA, 8)             \
  X(v_mfma_f32_4x4x4bf16_1k, 4, 4, 4, 16, BF16, BF16, F32, MFMA, 2)                \
  X(v_mfma_f32_32x32x8bf16_1k, 32, 32, 8, 1, BF16, BF16, F32, MFMA, 16)            \
  X(v_mfma_f32_16x16x16bf16_1k, 16, 16, 16, 1, BF16, BF16, F32, MFMA, 8)           \
  X(v_mfma_f64_16x16x4f64, 16, 16, 4, 1, F64, F64, F64, MFMA_F64, 8)               \
  X(v_mfma_f64_4x4x4f64, 4, 4, 4, 4, F64, F64, F64, MFMA_F64, 4)                   \
  X(v_mfma_f32_32x32x1_2b_f32, 32, 32, 1, 2, F32, F32, F32, MFMA, 16)              \
  X(v_mfma_f32_16x16x1_4b_f32, 16, 16, 1, 4, F32, F32, F32, MFMA, 8)               \
  X(v_mfma_f32_4x4x1_16b_f32, 4, 4, 1, 16, F32, F32, F32, MFMA, 2)                 \
  X(v_mfma_f32_32x32x2_f32, 32, 32, 2, 1, F32, F32, F32, MFMA, 16)                 \
  X(v_mfma_f32_16x16x4_f32, 16, 16, 4, 1, F32, F32, F32, MFMA, 8)                  \
  X(v_mfma_f32_32x32x4_xf32, 32, 32, 4, 1, XF32, XF32, F32, MFMA, 8)               \
  X(v_mfma_f32_16x16x8_xf32, 16, 16, 8, 1, XF32, XF32, F32, MFMA, 4)               \
  X(v_mfma_f32_32x32x4_2b_f16, 32, 32, 4, 2, F16, F16, F32, MFMA, 16)              \
  X(v_mfma_f32_16x16x4_4b_f16, 16, 16, 4, 4, F16, F16, F32, MFMA, 8)               \
  X(v_mfma_f32_4x4x4_16b_f16, 4, 4, 4, 16, F16, F16, F32, MFMA, 2)                 \
  X(v_mfma_f32_32x32x8_f16, 32, 32, 8, 1, F16, F16, F32, MFMA, 8)                  \
  X(v_mfma_f32_16x16x16_f16, 16, 16, 16, 1, F16, F16, F32, MFMA, 4)                \
  X(v_mfma_f32_32x32x4_2b_bf16, 32, 32, 4, 2, BF16, BF16, F32, MFMA, 16)           \
  X(v_mfma_f32_16x16x4_4b_bf16, 16, 16, 4, 4, BF16, BF16, F32, MFMA, 8)            \
  X(v_mfma_f32_4x4x4_16b_bf16, 4, 4, 4, 16, BF16, BF16, F32, MFMA, 2)              \
  X(v_mfma_f32_32x32x8_bf16, 32, 32, 8, 1, BF16, BF16, F32, MFMA, 8)               \
  X(v_mfma_f32_16x16x16_bf16, 16, 16, 16, 1, BF16, BF16, F32, MFMA, 4)             \
  X(v_mfma_i32_32x32x4_2b_i8, 32, 32, 4, 2, I8, I8, I32, MFMA, 16)                 \
  X(v_mfma_i32_16x16x4_4b_i8, 16, 16, 4, 4, I8, I8, I32, MFMA, 8)                  \
  X(v_mfma_i32_4x4x4_16b_i8, 4, 4, 4, 16, I8, I8, I32, MFMA, 2)                    \
  X(v_mfma_i32_32x32x16_i8, 32, 32, 16, 1, I8, I8, I32, MFMA, 8)                   \
  X(v_mfma_i32_16x16x32_i8, 16, 16, 32, 1, I8, I8, I32, MFMA, 4)                   \
  X(v_mfma_f64_16x16x4_f64, 16, 16, 4, 1, F64, F64, F64, MFMA_F64, 8)              \
  X(v_mfma_f64_4x4x4_4b_f64, 4, 4, 4, 4, F64, F64, F64, MFMA_F64, 4)               \
  X(v_mfma_f32_16x16x32_fp8_fp8, 16, 16, 32, 1, FP8, FP8, F32, MFMA, 4)            \
  X(v_mfma_f32_16x16x32_fp8_bf8, 16, 16, 32, 1, FP8, BF8, F32, MFMA, 4)            \
  X(v_mfma_f32_16x16x32_bf8_fp8, 16, 16, 32, 1, BF8, FP8, F32, MFMA, 4)            \
  X(v_mfma_f32_16x16x32_bf8_bf8, 16, 16, 32, 1, BF8, BF8, F32, MFMA, 4)            \
  X(v_mfma_f32_32x32x16_fp8_fp8, 32, 32, 16, 1, FP8, FP8, F32, MFMA, 8)            \
  X(v_mfma_f32_32x32x16_fp8_bf8, 32, 32, 16, 1, FP8, BF8, F32, MFMA, 8)            \
  X(v_mfma_f32_32x32x16_bf8_fp8, 32, 32, 16, 1, BF8, FP8, F32, MFMA, 8)            \
  X(v_mfma_f32_32x32x16_bf8_bf8, 32, 32, 16, 1, BF8, BF8, F32, MFMA, 8)            \
  X(v_mfma_f32_16x16x32_f16, 16, 16, 32, 1, F16, F16, F32, MFMA, 4)                \
  X(v_mfma_f32_32x32x16_f16, 32, 32, 16, 1, F16, F16, F32, MFMA, 8)                \
  X(v_mfma_f32_16x16x32_bf16, 16, 16, 32, 1, BF16, BF16, F32, MFMA, 4)             \
  X(v_mfma_f32_32x32x16_bf16, 32, 32, 16, 1, BF16, BF16, F32, MFMA, 8)             \
  X(v_mfma_i32_16x16x64_i8, 16, 16, 64, 1, I8, I8, I32, MFMA, 4)                   \
  X(v_mfma_i32_32x32x32_i8, 32, 32, 32, 1, I8, I8, I32, MFMA, 8)                   \
  X(v_mfma_f32_16x16x128_f8f6f4, 16, 16, 128, 1, NAMED, NAMED, F32, MFMA, 4)       \
  X(v_mfma_f32_32x32x64_f8f6f4, 32, 32, 64, 1, NAMED, NAMED, F32, MFMA, 8)         \
  X(v_mfma_scale_f32_16x16x128_f8f6f4, 16, 16, 128, 1, NAMED, NAMED, F32, MFMA, 4) \
  X(v_mfma_scale_f32_32x32x64_f8f6f4, 32, 32, 64, 1, NAMED, NAMED, F32, MFMA, 8)   \
  X(v_wmma_f32_16x16x16_f16, 16, 16, 16, 1, F16, F16, F32, WMMA, 0)                \
  X(v_wmma_f32_16x16x16_bf16, 16, 16, 16, 1, BF16, BF16, F32, WMMA, 0)             \
  X(v_wmma_f16_16x16x16_f16, 16, 16, 16, 1, F16, F16, F16, WMMA, 0)                \
  X(v_wmma_bf16_16x16x16_bf16, 16, 16, 16, 1, BF16, BF16, BF16, WMMA, 0)           \
  X(v_wmma_i32_16x16x16_iu8, 16, 16, 16, 1, IU8, IU8, I32, WMMA, 0)                \
  X(v_wmma_i32_16x16x16_iu4, 16, 16, 16, 1, IU4, IU4, I32, WMMA, 0)                \
  X(v_wmma_i32_16x16x32_iu4, 16, 16, 32, 1, IU4, IU4, I32, WMMA, 0)                \
  X(v_wmma_f32_16x16x16_fp8_fp8, 16, 16, 16, 1, FP8, FP8, F32, WMMA, 0)            \
  X(v_wmma_f32_16x16x16_fp8_bf8, 16, 16, 16, 1, FP8, BF8, F32, WMMA, 0)            \
  X(v_wmma_f32_16x16x16_bf8_fp8, 16, 16, 16, 1, BF8, FP8, F32, WMMA, 0)            \
  X(v_wmma_f32_16x16x16_bf8_bf8, 16, 16, 16, 1, BF8, BF8, F32, WMMA, 0)

#endif
