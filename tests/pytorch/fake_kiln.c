/* Stands for libkiln.so.0 and libkiln_flash.so beneath libkiln_torch.so: every entry goes to one function of the test.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int32_t (*Enter)(const char* entry, void* kiln, const void* queue, const void* params, uint64_t* bytes);
static Enter enter;
static int opened, open_status;
static void *resolve, *resolve_user;
static struct {
  void (*write)(int32_t level, const char* message, void* user);
  void* user;
  int32_t level;
} messages;
static int closed;
static char sentence[1024];

void kiln_fake_set(Enter function) { enter = function; }
int kiln_fake_opened(void) { return opened; }
int kiln_fake_closed(void) { return closed; }
/* The level that the runtime was opened with; -1: it got no log, and the message goes nowhere. */
int kiln_fake_log(int level, const char* message) {
  if (messages.write) messages.write(level, message, messages.user);
  return messages.write ? messages.level : -1;
}
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
  void (*log)(int32_t, const char*, void*);
  void* log_user;
  int32_t level, reserved;
  void *resolve, *resolve_user;
};
int32_t kiln_open(const struct options* options, void** out) {
  resolve = options->resolve, resolve_user = options->resolve_user;
  messages.write = options->log, messages.user = options->log_user, messages.level = options->level;
  if (open_status) return kiln_set_error(open_status, "it does not open");
  *out = (void*)(uintptr_t)(0x1000 + ++opened);
  return 0;
}
int32_t kiln_close(void* kiln) { return (void)kiln, ++closed, 0; }
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
ENTRY(kiln_attn_fwd_fp8)
ENTRY(kiln_dropout_mask)
SIZED(kiln_attn_fwd_fp8_workspace)
SIZED(kiln_attn_bwd_workspace)
SIZED(kiln_attn_decode_workspace)
