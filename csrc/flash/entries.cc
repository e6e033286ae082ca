// The typed entries: each reads its parameters, and makes a call of the recipe's operation of them.
#include "call.h"
// Generated from the table of arguments: a type for each operation (see enter()), and the list of them.
#include "arguments.h"

using namespace kiln_flash;

#define LAUNCHED(Type, name)                                                                          \
  kiln_status kiln_##name(kiln_t kiln, const kiln_queue* queue, const kiln_##name##_params* params) { \
    return enter<Type>(kiln, queue, params, kiln_launch);                                             \
  }
#define FULL(Type, name)                                                                                        \
  LAUNCHED(Type, name)                                                                                          \
  kiln_status kiln_##name##_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_##name##_params* params, \
                                      uint64_t* bytes) {                                                        \
    return enter<Type>(kiln, queue, params, kiln_workspace_size, bytes);                                        \
  }                                                                                                             \
  kiln_status kiln_##name##_prepare(kiln_t kiln, const kiln_queue* queue, const kiln_##name##_params* params) { \
    return enter<Type>(kiln, queue, params, kiln_prepare);                                                      \
  }                                                                                                             \
  kiln_status kiln_##name##_explain(kiln_t kiln, const kiln_queue* queue, const kiln_##name##_params* params,   \
                                    kiln_variant_fn visit, void* user) {                                        \
    return enter<Type>(kiln, queue, params, kiln_explain, visit, user);                                         \
  }

extern "C" {
KILN_FLASH_OPERATIONS(FULL, LAUNCHED)
}  // extern "C"
