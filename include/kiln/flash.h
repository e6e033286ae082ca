/* Kiln: the flash family's typed entries (libkiln_flash.so). */
#ifndef KILN_FLASH_H
#define KILN_FLASH_H

#include "kiln/kiln.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The family's tables, for kiln_register_family(). Static. */
KILN_API const kiln_family* kiln_flash_family(void);

/* Attention forward: out = softmax(sm_scale * q k^T + mask) v.
 *
 * Shapes, in elements; any strides whose last is 1:
 *   q    [batch, heads, seqlen_q, head_dim]      fp16 or bf16
 *   k, v [batch, heads_kv, seqlen_k, head_dim]   as q; heads is a multiple of heads_kv
 *   out  as q
 *   lse  [batch, heads, seqlen_q] fp32, contiguous; the natural logarithm of the softmax's denominator. NULL: not
 *        wanted.
 */
typedef struct kiln_attn_fwd_params {
    uint64_t size;
    const kiln_tensor* q;
    const kiln_tensor* k;
    const kiln_tensor* v;
    const kiln_tensor* out;
    const kiln_tensor* lse;  /* NULL: none */
    float sm_scale;          /* 0: 1 / sqrt(head_dim) */
    int32_t causal;          /* non-zero: key j is seen by query i if j <= i (top-left aligned) */
    void* workspace;         /* as in kiln_call */
    uint64_t workspace_bytes;
    const char* const* force_keys; /* as in kiln_call */
    const char* force_target;
    int32_t force_count;
    int32_t reserved0;       /* zero */
} kiln_attn_fwd_params;
#define KILN_ATTN_FWD_PARAMS_INIT \
    {sizeof(kiln_attn_fwd_params), NULL, NULL, NULL, NULL, NULL, 0.0f, 0, NULL, 0, NULL, NULL, 0, 0}

/* Enqueues attention forward; registers the family with `kiln` at its first call. Threads: any. */
KILN_API kiln_status kiln_attn_fwd(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params);
/* How much workspace the same call needs. */
KILN_API kiln_status kiln_attn_fwd_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params,
                                             uint64_t* bytes);

#ifdef __cplusplus
}
#endif
#endif
