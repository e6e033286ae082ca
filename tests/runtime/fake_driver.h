/* A recording stand-in for both vendors' drivers, for tests on machines without a GPU: given to a runtime through
 * kiln_options.resolve. It keeps devices, contexts, streams and loaded images, copies each launch's parameters byte by
 * byte, counts every call and fails any of them on demand.
 *
 * A fake image is the text "FAKE <symbol> <static shared bytes> <size of each parameter>...", NUL-terminated. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FAKE_NVIDIA = 1, FAKE_AMD = 2, FAKE_DEVICES = 5 };

typedef struct fake_launch {
  int32_t vendor, device; /* device: current at the call */
  char symbol[64];
  uint32_t grid[3], block[3], shared, cluster;
  void* stream;
  uint32_t parameter_count;
  uint32_t sizes[80];
  uint64_t values[80]; /* the bytes of each, zero-extended */
} fake_launch;

typedef struct fake_zero {
  int32_t vendor, device;
  uint64_t address, bytes;
  uint32_t launches_before;
  void* stream;
} fake_zero;

/* Forgets everything; the calling thread's current context becomes none (AMD: device 0). */
void fake_reset(void);
/* kiln_resolve_fn */
void* fake_resolve(int32_t vendor, const char* symbol, void* user);
/* Makes the `nth` call from now on (1: the next) of an entry point return `code`, and all later ones if `sticky`. */
void fake_fail(const char* symbol, int nth, int code, int sticky);
/* Makes an entry point absent. */
void fake_hide(const char* symbol);
void fake_set_version(int cuda, int hip);
void fake_set_device_count(int32_t vendor, int count);
/* How the architecture is told on AMD: 0 R0600 layout, 1 at another offset, 2 not at all. */
void fake_set_properties(int mode);

/* CUDA: a context of a device, number 0 its primary one; and streams. AMD: streams of a device. */
void* fake_context(int device, int number);
void* fake_green_stream(int device);
void* fake_stream(int32_t vendor, int device, int number);
void fake_set_current(int32_t vendor, void* context_or_device); /* AMD: the ordinal */
void* fake_get_current(int32_t vendor);

int fake_count(const char* symbol); /* calls of an entry point */
int fake_last_error(void);          /* AMD: what the calling thread's hipGetLastError() would return */
int fake_loaded(void);              /* images loaded now */
int fake_launches(void);
const fake_launch* fake_get_launch(int number);
int fake_zeros(void);
const fake_zero* fake_get_zero(int number);
/* Stops recording launches, for measurements. */
void fake_set_recording(int on);

#ifdef __cplusplus
}
#endif
#endif
