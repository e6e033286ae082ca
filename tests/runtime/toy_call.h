/* A call of toy.mix for C programs: 500 rows of 64 bf16, two kernels. */
#ifndef TOY_CALL_H
#define TOY_CALL_H

#include <string.h>

#include "kiln/family.h"

const kiln_family* kiln_toy_family(void);

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

#endif
