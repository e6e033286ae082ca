/* Calls for C programs: of toy.mix, 500 rows of 64 bf16, two kernels; and of tiles.product, one kernel, which takes
 * descriptors unless k is 1024 or more. */
#ifndef TOY_CALL_H
#define TOY_CALL_H

#include <string.h>

#include "kiln/family.h"

const kiln_family* kiln_toy_family(void);
const kiln_family* kiln_tiles_family(void);

typedef struct toy_call {
  kiln_tensor x;
  kiln_argument arguments[7];
  kiln_queue queue;
  kiln_call call;
} toy_call;

/* `made` must not be moved afterwards: the call points into it. */
static inline void make_toy_call(toy_call* made, kiln_operation operation, int32_t vendor, void* stream) {
  memset(made, 0, sizeof *made);
  made->x.data = (void*)0x10000;
  made->x.dtype = KILN_BF16;
  made->x.rank = 2;
  made->x.sizes[0] = 500;
  made->x.sizes[1] = made->x.strides[0] = 64;
  made->x.strides[1] = 1;
  made->arguments[0].kind = made->arguments[1].kind = KILN_ARG_TENSOR;
  made->arguments[0].value.tensor = made->arguments[1].value.tensor = &made->x;
  for (int i = 3; i < 6; ++i) made->arguments[i].kind = KILN_ARG_INT, made->arguments[i].value.integer = i < 5;
  made->arguments[6].kind = KILN_ARG_FLOAT;
  made->arguments[6].value.real = 1.0;
  made->queue.size = sizeof made->queue;
  made->queue.vendor = vendor;
  made->queue.device = -1;
  made->queue.stream = stream;
  made->call.size = sizeof made->call;
  made->call.operation = operation;
  made->call.queue = &made->queue;
  made->call.arguments = made->arguments;
  made->call.argument_count = 7;
  made->call.workspace = (void*)0x100000;
  made->call.workspace_bytes = 1 << 20;
}

typedef struct tiles_call {
  kiln_tensor tensors[3];
  kiln_argument arguments[3];
  kiln_queue queue;
  kiln_call call;
} tiles_call;

/* The product of a [m, k] at `address`, and b and c a MiB behind each other. `made` must not be moved. */
static inline void make_tiles_call(tiles_call* made, kiln_operation operation, void* stream, uintptr_t address,
                                   int64_t m, int64_t k) {
  const int64_t sizes[3][2] = {{m, k}, {k, 256}, {m, 256}};
  memset(made, 0, sizeof *made);
  for (int i = 0; i < 3; ++i) {
    kiln_tensor* tensor = &made->tensors[i];
    tensor->data = (void*)(address + ((uintptr_t)i << 20));
    tensor->dtype = KILN_FP16;
    tensor->rank = 2;
    memcpy(tensor->sizes, sizes[i], sizeof sizes[i]);
    tensor->strides[0] = sizes[i][1], tensor->strides[1] = 1;
    made->arguments[i].kind = KILN_ARG_TENSOR;
    made->arguments[i].value.tensor = tensor;
  }
  made->queue = (kiln_queue)KILN_QUEUE_INIT(KILN_VENDOR_NVIDIA, stream);
  made->call = (kiln_call)KILN_CALL_INIT;
  made->call.operation = operation;
  made->call.queue = &made->queue;
  made->call.arguments = made->arguments;
  made->call.argument_count = 3;
}

#endif
