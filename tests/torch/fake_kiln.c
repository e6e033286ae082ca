/* Stands for libkiln.so.0 and libkiln_flash.so beneath libkiln_torch.so: every entry goes to one function of the test.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int32_t (*Enter)(const char* entry, void* kiln, const void* queue, const void* params, uint64_t* bytes);
static Enter enter;
static int opened, open_status;
static void *resolve, *resolve_user;
static char sentence[1024];

void kiln_fake_set(Enter function) { enter = function; }
int kiln_fake_opened(void) { return opened; }
void kiln_fake_open_status(int status) { open_status = status; }
void* kiln_fake_resolve(void) { return resolve; }
const char* kiln_error(void) { return sentence; }
int32_t kiln_set_error(int32_t status, const char* text) {
  snprintf(sentence, sizeof sentence, "%s", text);
  return status;
}
struct options {
  uint64_t size;
  const char *path, *trusted;
  void *log, *log_user;
  int32_t level, reserved;
  void *resolve, *resolve_user;
};
int32_t kiln_open(const struct options* options, void** out) {
  resolve = options->resolve, resolve_user = options->resolve_user;
  if (open_status) return kiln_set_error(open_status, "it does not open");
  *out = (void*)(uintptr_t)(0x1000 + ++opened);
  return 0;
}
int32_t kiln_operations(void* kiln, void* visit, void* user) { return (void)kiln, (void)visit, (void)user, 0; }

#define ENTRY(name) \
  int32_t name(void* kiln, const void* queue, const void* params) { return enter(#name, kiln, queue, params, 0); }
#define SIZED(name)                                                                  \
  int32_t name(void* kiln, const void* queue, const void* params, uint64_t* bytes) { \
    return enter(#name, kiln, queue, params, bytes);                                 \
  }
ENTRY(kiln_attn_fwd)
ENTRY(kiln_attn_bwd)
ENTRY(kiln_attn_decode)
ENTRY(kiln_dropout_mask)
SIZED(kiln_attn_bwd_workspace)
SIZED(kiln_attn_decode_workspace)
