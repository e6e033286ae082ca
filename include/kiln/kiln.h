/* Kiln: the C interface of the runtime.
 *
 * Every function returns a kiln_status unless its declaration says otherwise. A status other than KILN_OK leaves a
 * sentence for the calling thread in kiln_error(). Nothing here throws, prints, aborts or changes the caller's
 * current device context.
 *
 * Threads: unless a declaration says otherwise, every function may be called from any number of threads at once with
 * the same kiln_t. The exceptions, all of them:
 *
 *   kiln_open      makes a new kiln_t; independent of all others.
 *   kiln_close     must be the last call on its kiln_t: no other call on it may be in progress or follow.
 *   kiln_error     speaks of the calling thread only.
 *
 * Waiting: a repeated call waits for no other thread. What is done once is done under a lock, so that of other threads
 * wait, while one
 *
 *   opens a driver or a pack, registers a family: those that do any of these on the same kiln_t, for whatever device;
 *   asks a driver about a device, at its first use: those that do so for another device of the vendor;
 *   loads an image (seconds, where the driver compiles PTX): those that need an image of the same family on the same
 *       device that is not loaded yet;
 *   decodes a group of a pack's images (milliseconds): those that load from the same pack for another device.
 *
 * Fork: a child of fork() that calls anything on a kiln_t of its parent gets KILN_E_FORKED (kiln_close releases host
 * memory only); it may kiln_open its own.
 *
 * Stability: structures that begin with `size` grow only at their end; enumerations are int32_t and append-only.
 */
#ifndef KILN_KILN_H
#define KILN_KILN_H

#include <stddef.h>
#include <stdint.h>

#include "kiln/version.h"

#if defined(__GNUC__)
#define KILN_API __attribute__((visibility("default")))
#else
#define KILN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---------------------------------------------------------------------------------------------------- */

typedef int32_t kiln_status;
enum {
    KILN_OK = 0,
    KILN_E_ARGUMENT = 1,      /* a null pointer, a negative size, a wrong rank or dtype, a broken requirement */
    KILN_E_UNSUPPORTED = 2,   /* no functional for this call; the sentence names the nearest that exists */
    KILN_E_NO_DEVICE = 3,     /* no driver, no device, or a device that no pack serves */
    KILN_E_DRIVER = 4,        /* the driver returned an error; the sentence has its name and number */
    KILN_E_PACK_NOT_FOUND = 5,
    KILN_E_PACK_MISMATCH = 6, /* a pack of another release than the library, not named, and not signed by a key named */
    KILN_E_PACK_CORRUPT = 7,  /* a pack that is truncated, malformed, or whose bytes have another digest */
    KILN_E_WORKSPACE = 8,     /* workspace missing, too small or not aligned to KILN_WORKSPACE_ALIGNMENT */
    KILN_E_NEWER_CALLER = 9,  /* a structure has a non-zero field that this library does not know */
    KILN_E_FORKED = 10,       /* the kiln_t belongs to the parent of this process */
    KILN_E_OUT_OF_MEMORY = 11,
    KILN_E_NOT_FOUND = 12,    /* no operation, variant or target of that name */
    KILN_E_QUEUE = 13,        /* the stream belongs to another device than the queue names, or cannot be used */
    KILN_E_RANGE = 14,        /* a value overflows: a stride or size that the kernel cannot address */
    KILN_E_RESOURCES = 15,    /* the image needs more shared memory or threads than this device gives */
    KILN_E_FAMILY = 16        /* a family's tables are malformed or of an ABI that this library does not know */
};

/* The last sentence left on the calling thread; never NULL, "" if none. Owned by the thread: valid until its next
 * call into Kiln. */
KILN_API const char* kiln_error(void);
/* A status's name, "KILN_E_ARGUMENT"; "KILN_E_?" for a number that this library does not know. Static. */
KILN_API const char* kiln_status_name(kiln_status status);
/* The version of this library, "0.1.0b". Static. */
KILN_API const char* kiln_version(void);

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* One opened runtime: registered families, devices, packs, loaded images. */
typedef struct kiln_runtime* kiln_t;

enum { KILN_LOG_ERROR = 0, KILN_LOG_WARNING = 1, KILN_LOG_INFO = 2, KILN_LOG_DEBUG = 3 };
/* May be called from any thread that calls Kiln, also at once; it must not call Kiln. `message` is valid during the
 * call only. */
typedef void (*kiln_log_fn)(int32_t level, const char* message, void* user);
/* Gives the address of a driver's entry point, or NULL. `vendor` is one of KILN_VENDOR_*. Must not call Kiln. */
typedef void* (*kiln_resolve_fn)(int32_t vendor, const char* symbol, void* user);

typedef struct kiln_options {
    uint64_t size;
    const char* pack_path;     /* folders of packs, separated by ':', searched first; NULL: none */
    const char* trusted_packs; /* index digests to accept besides the families' own: 64 hexadecimal digits each,
                                  separated by ','; NULL: none. For libraries built without images. */
    kiln_log_fn log;           /* NULL: none */
    void* log_user;
    int32_t log_level;         /* messages above it are not made; default KILN_LOG_WARNING */
    int32_t reserved0;         /* zero */
    kiln_resolve_fn resolve;   /* NULL: libcuda.so.1 and the process's libamdhip64 */
    void* resolve_user;
    const char* trusted_keys;  /* public keys of minisign's, the 56 letters of a key's file each, separated by ',': a
                                  pack is accepted too if a signature beside it, <pack>.minisig as `kiln sign` makes
                                  it, is by one of these; NULL: none */
} kiln_options;
#define KILN_OPTIONS_INIT {sizeof(kiln_options), NULL, NULL, NULL, NULL, KILN_LOG_WARNING, 0, NULL, NULL, NULL}

/* Opens a runtime. Touches no driver: that happens on first use. `options` may be NULL. Strings are copied, and so is
 * the environment's KILN_PACK_PATH: folders of packs, which are searched after options.pack_path.
 * The caller owns *out and gives it to kiln_close. */
KILN_API kiln_status kiln_open(const kiln_options* options, kiln_t* out);
/* Releases all that belongs to `kiln`: unloads its images, closes what it opened. NULL is allowed. Work that was
 * launched must be done. Nothing calls a driver after this, so dlclose() of the library unloads it. */
KILN_API kiln_status kiln_close(kiln_t kiln);

/* ---- devices and queues ---------------------------------------------------------------------------------------- */

enum { KILN_VENDOR_NVIDIA = 1, KILN_VENDOR_AMD = 2 };

typedef struct kiln_device {
    uint64_t size;
    int32_t vendor;
    int32_t ordinal;         /* as the driver counts */
    int32_t multiprocessors;
    int32_t warp_size;
    const char* name;
    const char* id;          /* NVIDIA: the UUID; AMD: the PCI id */
    const char* target;      /* "sm_90", "gfx942" */
    const char* refusal;     /* NULL, or why no registered family can run on it, in one sentence. Of a device that
                                the driver fails to tell about, that failure; `multiprocessors` and `warp_size` are
                                0 then, and the other strings "". */
} kiln_device;
/* Returns non-zero to stop. `device` and its strings are valid during the call only. */
typedef int32_t (*kiln_device_fn)(const kiln_device* device, void* user);
/* Visits each device of each vendor whose driver is there. KILN_E_NO_DEVICE: neither vendor has a driver with devices.
 * Another status: a driver is there and could not be opened (KILN_E_DRIVER, the first such status where both fail); the
 * other vendor's devices were visited all the same. A visit that stops it makes it return KILN_OK. */
KILN_API kiln_status kiln_devices(kiln_t kiln, kiln_device_fn visit, void* user);

typedef struct kiln_queue {
    uint64_t size;
    int32_t vendor;  /* KILN_VENDOR_*; a null stream alone names none */
    int32_t device;  /* ordinal, or -1: the stream's own. Whose null stream is meant, the ordinal says: the current
                        context's if that is of this device, else its primary one's; -1: the current context's */
    void* stream;    /* CUstream or hipStream_t; borrowed for the call */
} kiln_queue;
#define KILN_QUEUE_INIT(vendor, stream) {sizeof(kiln_queue), (vendor), -1, (stream)}

/* ---- tensors and arguments ------------------------------------------------------------------------------------- */

typedef int32_t kiln_dtype;
enum {
    KILN_FP32 = 1, KILN_FP16 = 2, KILN_BF16 = 3, KILN_FP64 = 4, KILN_FP8E4M3 = 5, KILN_FP8E5M2 = 6,
    KILN_INT8 = 10, KILN_INT16 = 11, KILN_INT32 = 12, KILN_INT64 = 13,
    KILN_UINT8 = 20, KILN_UINT16 = 21, KILN_UINT32 = 22, KILN_UINT64 = 23, KILN_BOOL = 30
};

#define KILN_MAX_RANK 8
/* A view of device memory. Frozen: this structure never changes. */
typedef struct kiln_tensor {
    void* data;                      /* device pointer; borrowed until the launched work is done. A tensor without
                                        elements may have NULL, and is given all the same */
    kiln_dtype dtype;
    int32_t rank;
    int64_t sizes[KILN_MAX_RANK];    /* elements; the first `rank` count */
    int64_t strides[KILN_MAX_RANK];  /* elements, may be negative or 0 */
    uint64_t reserved[2];            /* zero */
} kiln_tensor;

enum { KILN_ARG_ABSENT = 0, KILN_ARG_TENSOR = 1, KILN_ARG_INT = 2, KILN_ARG_FLOAT = 3 };
typedef struct kiln_argument {
    int32_t kind;  /* KILN_ARG_*; booleans are integers */
    int32_t reserved;
    union {
        const kiln_tensor* tensor;
        int64_t integer;
        double real;
    } value;
} kiln_argument;

/* ---- operations ------------------------------------------------------------------------------------------------ */

/* The tables of a family; made by the generator, kept in the family's library, see family.h. */
typedef struct kiln_family kiln_family;

/* Makes a family's operations known to `kiln`. Registering the same tables again does nothing. The tables are
 * borrowed until kiln_close. */
KILN_API kiln_status kiln_register_family(kiln_t kiln, const kiln_family* family);

/* One operation of a registered family; owned by its kiln_t. */
typedef const struct kiln_operation_state* kiln_operation;
/* Finds "<family>.<operation>", e.g. "flash.attn_fwd". */
KILN_API kiln_status kiln_find_operation(kiln_t kiln, const char* name, kiln_operation* out);

typedef struct kiln_argument_info {
    uint64_t size;
    const char* name;
    int32_t kind;        /* KILN_ARG_TENSOR, KILN_ARG_INT or KILN_ARG_FLOAT */
    int32_t rank;        /* of a tensor; else 0 */
    kiln_dtype dtype;    /* of a tensor, or 0 where a choice decides */
    int32_t optional;
} kiln_argument_info;
typedef int32_t (*kiln_argument_fn)(const kiln_argument_info* argument, void* user);
/* Visits the arguments of an operation, in the order in which a call gives them. Strings live as long as the family. */
KILN_API kiln_status kiln_operation_arguments(kiln_operation operation, kiln_argument_fn visit, void* user);
typedef int32_t (*kiln_operation_fn)(const char* name, kiln_operation operation, void* user);
/* Visits the operations of all registered families. */
KILN_API kiln_status kiln_operations(kiln_t kiln, kiln_operation_fn visit, void* user);

#define KILN_WORKSPACE_ALIGNMENT 256

/* One call of an operation. */
typedef struct kiln_call {
    uint64_t size;
    kiln_operation operation;
    const kiln_queue* queue;
    const kiln_argument* arguments;   /* argument_count of them, in the operation's order */
    int32_t argument_count;
    int32_t force_count;
    const char* const* force_keys;    /* variants to use, by key (64 hexadecimal digits), at most one a kernel; the
                                         rest is chosen as always. A forced variant must be one of the call's own
                                         functional, have an image, and its specialisation must hold, else
                                         KILN_E_UNSUPPORTED; the sentence says why it has no image. */
    const char* force_target;         /* use this target's pack, by its PTX where the device has another
                                         architecture; NULL: the device's own. Never implicit. */
    void* workspace;                  /* device memory, KILN_WORKSPACE_ALIGNMENT; needed until the work is done */
    uint64_t workspace_bytes;
} kiln_call;
#define KILN_CALL_INIT {sizeof(kiln_call), NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0}

/* The functions below that take a kiln_call check it in this order, and report the first failure:
 *
 *   1. the call's and the queue's structures, and each argument by itself: how many there are, kinds, ranks, dtypes
 *      that are the same in every call, NULL data, integers and addresses that are out of range;
 *   2. the driver, the device and the stream: on a host without a driver, KILN_E_NO_DEVICE hides all that follows;
 *   3. what the operation requires of its arguments together, in the recipe's order, then its choices, and dtypes that
 *      a choice decides. This is after the device, since a recipe's definitions may read its multiprocessors. A call
 *      for which there is nothing to do has succeeded here;
 *   4. the pack of the device's target, or of force_target, and in it an image for each kernel;
 *   5. kiln_launch: the workspace;
 *   6. kiln_launch, kiln_prepare: loading the images. Nothing was enqueued up to here.
 *
 * Python's kiln.jit checks 3 on a host without a GPU, by the same recipe: Operation.explain. */

/* How much workspace the same call of kiln_launch needs; 0 if none. Looks at no workspace field. Loads the pack's
 * index if need be, launches nothing. */
KILN_API kiln_status kiln_workspace_size(const kiln_call* call, uint64_t* bytes);
/* Enqueues the operation. Allocates nothing, neither on the device nor, once its images are loaded, on the host.
 * May be called while the stream is being captured into a graph; a driver that refuses to load code meanwhile (CUDA
 * does not) wants kiln_prepare before. */
KILN_API kiln_status kiln_launch(const kiln_call* call);
/* Loads what the same call of kiln_launch would load, and launches nothing. */
KILN_API kiln_status kiln_prepare(const kiln_call* call);
/* Waits until all that was enqueued on the queue's stream, by whomever, is done. KILN_E_DRIVER: some of it failed, or
 * the stream is being captured. For callers without a driver's interface of their own. */
KILN_API kiln_status kiln_synchronize(kiln_t kiln, const kiln_queue* queue);

/* ---- variants -------------------------------------------------------------------------------------------------- */

typedef struct kiln_variant {
    uint64_t size;
    const char* key;             /* 64 hexadecimal digits */
    const char* target;          /* "sm_90" */
    const char* operation;       /* "flash.attn_fwd" */
    const char* kernel;          /* "attn_fwd"; where it has several implementations, which: "matmul.hopper" */
    const char* functional;      /* "dtype=bf16 head_dim=64 padded=false extras=none" */
    const char* configuration;   /* "BLOCK_M=128 BLOCK_N=64 num_warps=4 num_stages=3" */
    const char* specialization;  /* "aligned" */
    const char* unavailable;     /* NULL, or why there is no image */
    int32_t has_ptx;
    int32_t registers;           /* per thread */
    int32_t shared_bytes;        /* per block */
    int32_t spill_bytes;         /* per thread */
    int32_t threads;             /* per block */
    int32_t reserved0;
    const char* passed_over;     /* of kiln_explain: why the call does not run the implementations that are tried before
                                    this one, a line for each, "hopper: it serves calls with k >= 64"; else NULL */
} kiln_variant;
typedef int32_t (*kiln_variant_fn)(const kiln_variant* variant, void* user);
/* Visits the variants of every pack that is found for `operation` (NULL: all) and `target` (NULL: every target of the
 * release). Needs no device and no driver. The strings are valid during the call only. */
KILN_API kiln_status kiln_variants(kiln_t kiln, const char* operation, const char* target, kiln_variant_fn visit,
                                   void* user);
/* Visits the variants, one a kernel, that the same call of kiln_launch would run. Needs a device, also where
 * force_target is given: launches nothing and looks at no workspace field, but checks the call as kiln_launch does. */
KILN_API kiln_status kiln_explain(const kiln_call* call, kiln_variant_fn visit, void* user);

#ifdef __cplusplus
}
#endif
#endif
