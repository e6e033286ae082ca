/* Kiln: the flash family's typed entries (libkiln_flash.so): attention forward, backward, and with a cache.
 *
 * Tensors are described by kiln_tensor: any strides whose last is 1, element offsets of 64 bits. Their elements lie in
 * device memory and are borrowed until the launched work is done; the descriptions, and force_keys, are read before an
 * entry returns. What an entry writes must not overlap what it reads, nor itself (by a stride of 0), unless its field
 * says so; a cache is appended to before it is read.
 *
 * `dtype` below is fp16, bf16 or fp32, one for the whole call. Head dimensions: 1 to 512; head_dim of q and k and
 * head_dim_v of v and out may differ. A release of the core profile has fp16 and bf16, without caches of fp8e4m3, and
 * head dimensions up to 128; `kiln list` tells what one has.
 *
 * Each entry registers the family with `kiln` at its first call, enqueues its kernels on the queue, and may be called
 * from any thread. Each *_workspace entry says how many bytes of device memory the same call needs (`workspace`,
 * `workspace_bytes`); it looks at no other memory. *_prepare loads what the same call would load, and *_explain visits
 * the variants that it would run, as kiln_prepare and kiln_explain do; both launch nothing. A call that no kernel
 * serves is KILN_E_UNSUPPORTED or KILN_E_ARGUMENT, with a sentence that names what is wrong.
 *
 * Parameter structures begin with their size: set it, and the defaults, with the _INIT macros.
 */
#ifndef KILN_FLASH_H
#define KILN_FLASH_H

#include "kiln/kiln.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The family's tables, for kiln_register_family(). Static. */
KILN_API const kiln_family* kiln_flash_family(void);

/* ---- attention forward ------------------------------------------------------------------------------------------ */

/* out = dropout(softmax(mask(score(sm_scale * q k^T)))) v, with
 * score(x) = softcap * tanh(x / softcap) + bias - slope * |i + keys - rows - j|, each part where it is asked for.
 *
 * Shapes:
 *   q    [batch, heads, rows, head_dim]
 *   k    [batch, heads_kv, keys, head_dim]    heads is a multiple of heads_kv
 *   v    [batch, heads_kv, keys, head_dim_v]
 *   out  [batch, heads, rows, head_dim_v]
 *   lse  [batch, heads, rows] fp32; the natural logarithm of the softmax's denominator, a sink's term included. With
 *        cu_seqlens_q [1, heads, all rows], or [batch, heads, at least max_seqlen_q rows], a batch for each sequence.
 *
 * Sequences of several lengths. Either they lie one after another, and the batch of those tensors is 1
 * (cu_seqlens: [batch + 1] int32, where each begins, and the end), or each lies at the start of its batch
 * (seqused: [batch] int32, how many rows count, or cu_seqlens and `padded`); cu_seqlens and seqused together say how
 * many rows from its begin on. Rows that do not count are not written.
 *
 * Masks: row i sees the keys from i + d - window_left to i + d + window_right; d is 0, or keys - rows if bottom_right.
 * A row that sees no key gets zeros and a log-sum-exp of minus infinity.
 *
 * Dropout is a function of seed, offset, batch, head, row and key alone (Philox4x32-10): the same on every device. seed
 * is seed_value, plus what lies at `seed` if that is given; so is offset.
 */
typedef struct kiln_attn_fwd_params {
    uint64_t size;
    const kiln_tensor* q;
    const kiln_tensor* k;
    const kiln_tensor* v;
    const kiln_tensor* out;
    const kiln_tensor* lse;          /* NULL: none */
    const kiln_tensor* sinks;        /* [heads] fp32: the score of a key without value, seen by all rows. NULL: none */
    const kiln_tensor* bias;         /* [batch, heads, rows, keys] of dtype, or more rows and keys; strides but the last
                                        may be 0. With cu_seqlens rows and keys are max_seqlen_q and max_seqlen_k, or
                                        all rows and keys where these are 0. NULL: none */
    const kiln_tensor* alibi_slopes; /* [batch, heads] fp32; strides[0] may be 0. NULL: none */
    const kiln_tensor* seed;         /* int64, rank 0. NULL: 0 */
    const kiln_tensor* offset;       /* int64, rank 0. NULL: 0 */
    const kiln_tensor* seed_out;     /* int64, rank 0: the seed that was used. Both or neither */
    const kiln_tensor* offset_out;
    const kiln_tensor* cu_seqlens_q; /* NULL: sequences have the shape's lengths */
    const kiln_tensor* cu_seqlens_k;
    const kiln_tensor* seqused_q;
    const kiln_tensor* seqused_k;
    int64_t max_seqlen_q;            /* with cu_seqlens_q: no sequence is longer; 0: not known, and as long as all */
    int64_t max_seqlen_k;
    int64_t window_left;             /* below 0: unlimited, the default */
    int64_t window_right;
    int64_t seed_value;
    int64_t offset_value;
    float sm_scale;                  /* 0: 1 / sqrt(head_dim). Below 0 the call takes the images that have a bias */
    float softcap;                   /* 0: none; at most 1e30 */
    float dropout;                   /* the probability that a weight is dropped, at most 0.9999 */
    int32_t causal;                  /* non-zero: window_right is 0, whatever it says */
    int32_t bottom_right;            /* non-zero: the last row and the last key belong together, not the first */
    int32_t reserved0;               /* zero */
    void* workspace;                 /* as in kiln_call */
    uint64_t workspace_bytes;
    const char* const* force_keys;   /* as in kiln_call */
    const char* force_target;
    int32_t force_count;
    int32_t reserved1;               /* zero */
    int32_t padded;                  /* non-zero: cu_seqlens_q and cu_seqlens_k only tell how long sequences are; each
                                        lies at the start of its batch, as with seqused */
    int32_t reserved2;               /* zero */
    int32_t batch_invariant;         /* non-zero: a sequence's results have the same bits whatever else is in the batch,
                                        and however many sequences; zero, the default: what is fastest */
    int32_t reserved3;               /* zero */
} kiln_attn_fwd_params;
#define KILN_ATTN_FWD_PARAMS_INIT                                                                                   \
    {sizeof(kiln_attn_fwd_params), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,    \
     NULL, NULL, NULL, 0, 0, -1, -1, 0, 0, 0.0f, 0.0f, 0.0f, 0, 0, 0, NULL, 0, NULL, NULL, 0, 0, 0, 0, 0, 0}

KILN_API kiln_status kiln_attn_fwd(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params);
KILN_API kiln_status kiln_attn_fwd_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params,
                                             uint64_t* bytes);
KILN_API kiln_status kiln_attn_fwd_prepare(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params);
KILN_API kiln_status kiln_attn_fwd_explain(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params,
                                             kiln_variant_fn visit, void* user);

/* ---- attention forward of fp8 ------------------------------------------------------------------------------------- */

/* out = softmax(mask(sm_scale * (q_descale q) (k_descale k)^T)) (v_descale v), of q, k and v of fp8e4m3; out is of fp16 or
 * bf16. Shapes, sequences and masks are those of kiln_attn_fwd; head dimensions are multiples of 16 up to 128, and all
 * strides but the last multiples of 16 elements. Weights are rounded to e4m3 too; products are summed in fp32, or block
 * by block of 128 keys in what tensor cores have for it, and the sums of blocks in fp32. On Hopper alone.
 *
 * Scales must be above 0. Query heads that share a key head share its q_descale.
 */
typedef struct kiln_attn_fwd_fp8_params {
    uint64_t size;
    const kiln_tensor* q;
    const kiln_tensor* k;
    const kiln_tensor* v;
    const kiln_tensor* out;
    const kiln_tensor* lse;          /* NULL: none */
    const kiln_tensor* q_descale;    /* [batch, heads_kv] fp32: what elements are multiplied by; with cu_seqlens_q, batch
                                        is the number of sequences. Strides may be 0. NULL: 1 */
    const kiln_tensor* k_descale;
    const kiln_tensor* v_descale;
    const kiln_tensor* sinks;        /* from here on as in kiln_attn_fwd_params */
    const kiln_tensor* cu_seqlens_q;
    const kiln_tensor* cu_seqlens_k;
    const kiln_tensor* seqused_q;
    const kiln_tensor* seqused_k;
    int64_t max_seqlen_q;
    int64_t max_seqlen_k;
    int64_t window_left;
    int64_t window_right;
    float sm_scale;                  /* 0: 1 / sqrt(head_dim); not below 0 */
    int32_t causal;
    int32_t bottom_right;
    int32_t padded;
    void* workspace;
    uint64_t workspace_bytes;
    const char* const* force_keys;
    const char* force_target;
    int32_t force_count;
    int32_t reserved1;               /* zero */
} kiln_attn_fwd_fp8_params;
#define KILN_ATTN_FWD_FP8_PARAMS_INIT                                                                               \
    {sizeof(kiln_attn_fwd_fp8_params), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
     0, 0, -1, -1, 0.0f, 0, 0, 0, NULL, 0, NULL, NULL, 0, 0}

KILN_API kiln_status kiln_attn_fwd_fp8(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_fp8_params* params);
KILN_API kiln_status kiln_attn_fwd_fp8_workspace(kiln_t kiln, const kiln_queue* queue,
                                                 const kiln_attn_fwd_fp8_params* params, uint64_t* bytes);
KILN_API kiln_status kiln_attn_fwd_fp8_prepare(kiln_t kiln, const kiln_queue* queue,
                                               const kiln_attn_fwd_fp8_params* params);
KILN_API kiln_status kiln_attn_fwd_fp8_explain(kiln_t kiln, const kiln_queue* queue,
                                               const kiln_attn_fwd_fp8_params* params, kiln_variant_fn visit,
                                               void* user);

/* ---- attention backward ----------------------------------------------------------------------------------------- */

/* The gradients of q, k, v, and of bias and sinks where they are wanted, of the forward call with the same parameters:
 * out and lse are its results, seed and offset what it used (seed_out and offset_out can be given as these; seed_value
 * and offset_value must then be 0, since they are added). dq, dk and dv have the shapes of q, k and v (dk and dv are
 * summed over the heads that share them). Rows of sequences that do not count are not written.
 */
typedef struct kiln_attn_bwd_params {
    uint64_t size;
    const kiln_tensor* q;
    const kiln_tensor* k;
    const kiln_tensor* v;
    const kiln_tensor* out;
    const kiln_tensor* dout;         /* as out */
    const kiln_tensor* lse;          /* as kiln_attn_fwd wrote it */
    const kiln_tensor* dq;
    const kiln_tensor* dk;
    const kiln_tensor* dv;
    const kiln_tensor* dbias;        /* [batch, heads, rows, keys] of dtype, or more, as bias; strides[0] or strides[1]
                                        0: summed over batches or heads. NULL: not wanted */
    const kiln_tensor* dsinks;       /* [heads] fp32. NULL: not wanted */
    const kiln_tensor* sinks;        /* from here on as in kiln_attn_fwd_params */
    const kiln_tensor* bias;
    const kiln_tensor* alibi_slopes;
    const kiln_tensor* seed;
    const kiln_tensor* offset;
    const kiln_tensor* cu_seqlens_q;
    const kiln_tensor* cu_seqlens_k;
    const kiln_tensor* seqused_q;
    const kiln_tensor* seqused_k;
    int64_t max_seqlen_q;
    int64_t max_seqlen_k;
    int64_t window_left;
    int64_t window_right;
    int64_t seed_value;
    int64_t offset_value;
    float sm_scale;
    float softcap;
    float dropout;
    int32_t causal;
    int32_t bottom_right;
    int32_t deterministic;           /* non-zero: equal bits from equal calls; zero, the default: what is fastest, which
                                        on Hopper may add to dq in any order */
    void* workspace;
    uint64_t workspace_bytes;
    const char* const* force_keys;
    const char* force_target;
    int32_t force_count;
    int32_t reserved1;               /* zero */
    int32_t padded;
    int32_t reserved2;               /* zero */
} kiln_attn_bwd_params;
#define KILN_ATTN_BWD_PARAMS_INIT                                                                                   \
    {sizeof(kiln_attn_bwd_params), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,    \
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, -1, -1, 0, 0, 0.0f, 0.0f, 0.0f, 0, 0, 0, NULL, 0, NULL, NULL,  \
     0, 0, 0, 0}

KILN_API kiln_status kiln_attn_bwd(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params);
KILN_API kiln_status kiln_attn_bwd_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params,
                                             uint64_t* bytes);
KILN_API kiln_status kiln_attn_bwd_prepare(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params);
KILN_API kiln_status kiln_attn_bwd_explain(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params,
                                             kiln_variant_fn visit, void* user);

/* ---- attention with a cache of keys and values ------------------------------------------------------------------ */

/* Attention of new queries over cached keys and values, of which those of this call may be appended first: decoding
 * (few rows, keys split over programs and reduced), and prefill in chunks (many rows).
 *
 * Shapes:
 *   q        [batch, heads, rows, head_dim], or with cu_seqlens_q [1, heads, all rows, head_dim]
 *   k_cache  [batches, heads_kv, keys, head_dim], batches at least batch unless cache_batch is given; or with
 *            block_table [pages, heads_kv, page_size, head_dim]
 *   v_cache  the same with head_dim_v; both of dtype, or of fp8e4m3 (with fp16 and bf16 queries), times k_scale and
 *            v_scale; a page has 1 to 65536 keys
 *   out      [batch, heads, rows, head_dim_v], or as q
 *   lse      [batch, heads, rows] fp32, or as q; NULL: not wanted
 *   k_new    [batch, heads_kv, new_rows, head_dim] of dtype; v_new the same with head_dim_v
 *
 * Sequence b has seqused_k[b] keys in the cache, and new_rows more after this call has appended k_new and v_new behind
 * them, but no more than it has room for (keys, or what its row of block_table lists): what does not fit is neither
 * written nor seen. Its last row and its last key belong together: row i sees the keys from i + d - window_left to
 * i + d + window_right with d = keys - rows, from which ALiBi counts too. leftpad[b] keys at the start of its cache are
 * not seen.
 *
 * Latent keys, as DeepSeek's models decode (absorbed): v_cache may be the first columns of k_cache, in the same memory.
 * Of head_dim 576 and head_dim_v 512 it must be, and such calls are served on Hopper alone, in fp16 and bf16, without
 * softcap and alibi_slopes, if each key begins at a multiple of 16 bytes. Of keys that are appended so, the first
 * columns of k_new must be v_new, and rotary_cos NULL.
 *
 * Rotary embedding (rotary_cos given): the first rotary_dim = 2 * rotary_cos.sizes[1] elements of k_new's row i are
 * rotated by the angles of position seqused_k[b] + i, and those of q's row i by those of the same position, or of
 * seqused_k[b] where nothing is masked (neither causal nor a window), as flash-attention does. A position behind
 * rotary_cos's last row takes the last. Halves: element c is paired with c + rotary_dim / 2; interleaved: 2 c with
 * 2 c + 1.
 */
typedef struct kiln_attn_decode_params {
    uint64_t size;
    const kiln_tensor* q;
    const kiln_tensor* k_cache;
    const kiln_tensor* v_cache;
    const kiln_tensor* out;
    const kiln_tensor* lse;          /* NULL: none */
    const kiln_tensor* k_new;        /* both or neither; with seqused_k, not with cu_seqlens_q. NULL: none */
    const kiln_tensor* v_new;
    const kiln_tensor* seqused_k;    /* [batch] int32; k_new and block_table need it. NULL: all keys of k_cache count */
    const kiln_tensor* cu_seqlens_q; /* [batch + 1] int32. NULL: all sequences have q's rows */
    const kiln_tensor* block_table;  /* [batch, at least the pages of the longest sequence] int32: numbers of pages, the
                                        last dimension contiguous. NULL: none */
    const kiln_tensor* cache_batch;  /* [batch] int32: the batch of the cache that each sequence has; not with
                                        block_table. NULL: its own number */
    const kiln_tensor* leftpad;      /* [batch] int32; not with block_table. NULL: 0 */
    const kiln_tensor* rotary_cos;   /* [positions, rotary_dim / 2] of dtype, rows contiguous; as many positions as the
                                        longest sequence has keys (max_seqlen_k), or more; rotary_dim at most head_dim.
                                        Both or neither; needs k_new. NULL: nothing is rotated */
    const kiln_tensor* rotary_sin;
    const kiln_tensor* k_scale;      /* [heads_kv] fp32: what cached elements are multiplied by, and new ones divided;
                                        with fp8e4m3, and only there */
    const kiln_tensor* v_scale;
    const kiln_tensor* sinks;        /* [heads] fp32. NULL: none */
    const kiln_tensor* alibi_slopes; /* [batch, heads] fp32; strides[0] may be 0. NULL: none */
    int64_t max_seqlen_q;            /* with cu_seqlens_q: no sequence is longer; 0: not known */
    int64_t max_seqlen_k;            /* no sequence has more keys, new ones included; 0: as many as the cache or the
                                        block table holds. The speed depends on it, and the least rows of rotary_cos */
    int64_t window_left;             /* below 0: unlimited, the default */
    int64_t window_right;
    int64_t splits;                  /* into how many parts the keys are split, at most 128; 0: as it is fastest, or
                                        with batch_invariant a number that depends on rows and heads alone */
    float sm_scale;                  /* 0: 1 / sqrt(head_dim) */
    float softcap;                   /* 0: none */
    int32_t causal;                  /* non-zero: window_right is 0 */
    int32_t rotary_interleaved;
    void* workspace;
    uint64_t workspace_bytes;
    const char* const* force_keys;
    const char* force_target;
    int32_t force_count;
    int32_t reserved1;               /* zero */
    int32_t batch_invariant;         /* non-zero: a sequence's result has the same bits whatever keys the others of the
                                        batch have, and however many there are, as long as max_seqlen_q (without
                                        cu_seqlens_q: the number of rows) is the same; zero, the default: what is
                                        fastest */
    int32_t reserved2;               /* zero */
} kiln_attn_decode_params;
#define KILN_ATTN_DECODE_PARAMS_INIT                                                                                \
    {sizeof(kiln_attn_decode_params), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
     NULL, NULL, NULL, NULL, NULL, 0, 0, -1, -1, 0, 0.0f, 0.0f, 0, 0, NULL, 0, NULL, NULL, 0, 0, 0, 0}

KILN_API kiln_status kiln_attn_decode(kiln_t kiln, const kiln_queue* queue, const kiln_attn_decode_params* params);
KILN_API kiln_status kiln_attn_decode_workspace(kiln_t kiln, const kiln_queue* queue,
                                                const kiln_attn_decode_params* params, uint64_t* bytes);
KILN_API kiln_status kiln_attn_decode_prepare(kiln_t kiln, const kiln_queue* queue,
                                              const kiln_attn_decode_params* params);
KILN_API kiln_status kiln_attn_decode_explain(kiln_t kiln, const kiln_queue* queue,
                                              const kiln_attn_decode_params* params, kiln_variant_fn visit, void* user);

/* ---- what dropout keeps ----------------------------------------------------------------------------------------- */

/* Writes the mask that the calls above draw: for tests, and to apply it elsewhere. */
typedef struct kiln_dropout_mask_params {
    uint64_t size;
    const kiln_tensor* mask;         /* [batch, heads, rows, keys]: 1 where a weight is kept; where it is not, 0 in
                                        uint8, -1 in fp16, bf16 and fp32 */
    const kiln_tensor* seed;         /* as in kiln_attn_fwd_params */
    const kiln_tensor* offset;
    int64_t seed_value;
    int64_t offset_value;
    float dropout;
    int32_t reserved0;               /* zero */
    const char* force_target;
} kiln_dropout_mask_params;
#define KILN_DROPOUT_MASK_PARAMS_INIT {sizeof(kiln_dropout_mask_params), NULL, NULL, NULL, 0, 0, 0.0f, 0, NULL}

KILN_API kiln_status kiln_dropout_mask(kiln_t kiln, const kiln_queue* queue, const kiln_dropout_mask_params* params);

#ifdef __cplusplus
}
#endif
#endif
