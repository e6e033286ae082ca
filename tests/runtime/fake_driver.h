/* A recording stand-in for both vendors' drivers, for tests on machines without a GPU. A runtime gets it through
 * kiln_options.resolve, or a program under the names libcuda.so.1 and libamdhip64.so.6. It keeps devices, contexts,
 * streams, loaded images and memory, records every call, and fails any of them on demand.
 *
 * Images are real ones, of which it reads what their kernel takes (fake_image.c), or the text
 * "FAKE <symbol> <static shared bytes> <size of each parameter>...", NUL-terminated.
 *
 * The record: a line of JSON for each call, in the order in which they ended; recorded.py reads it.
 *   {"call": entry, "result": code, "device": the current one after it, or -1, ...}
 * and, if it succeeded, where the entry has them:
 *   module       of an image, counted from 1
 *   symbol, static, parameters, code
 *                of a loaded image: its kernel, bytes of static shared memory, offset and size of each parameter, all
 *                as it says itself, and its bytes in hexadecimal digits
 *   symbol, grid, block, shared, cluster, stream, arguments, overlaps (of cuLaunchKernelEx)
 *                of a launch: the last are the bytes of each parameter, as many as the image says
 *   buffer       of a launch whose parameters came in one: its bytes
 *   address, bytes, value, stream    of memory that is set, copied, taken or given back
 *   address, element_type, swizzle, promotion, sizes, strides, box, steps
 *                of a tensor map, as cuTensorMapEncodeTiled is given them: from the innermost dimension on
 *   pitch, rows  of memory that is set by rows: from one to the next, and how many; `bytes` is then of each
 *   context, attribute
 * fake_mark() adds {"call": "mark", "text": ...}.
 *
 * A launch fails unless each parameter of 128 bytes is a tensor map that was encoded, and those behind it are its sizes
 * (int32_t) and strides (int64_t, elements). Compiled with -DFAKE_WITHOUT_MAPS it has no cuTensorMapEncodeTiled.
 *
 * Environment variables, read when it is loaded:
 *   FAKE_DRIVER_RECORD  a file that the record is written to as well, line by line
 *   FAKE_DRIVER_VERSION what cuDriverGetVersion() says, in place of 12080
 *   FAKE_DRIVER_FAIL    what is to fail, as fake_fail() has it: "entry:nth:code", separated by ',' */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdint.h>

/* What the fake driver's tensor maps are: all that was encoded, dimensions counted from the innermost as the driver
 * counts them. FAKE_SMALL_TENSOR is the bit that drivers up to 13.1 are to have cleared for small tensors. */
#define FAKE_MAP "FAKEMAP"
#define FAKE_SMALL_TENSOR (1ull << 21)
enum { FAKE_RANK = 5 };
typedef struct Map {
  char magic[8];
  uint64_t layout; /* rank, element type << 8, swizzle << 16, FAKE_SMALL_TENSOR, promotion << 24 */
  uint64_t address;
  uint64_t sizes[FAKE_RANK];
  uint64_t strides[FAKE_RANK - 1]; /* bytes */
  uint16_t box[FAKE_RANK];
  uint16_t zero[5];
  uint32_t checksum;
  uint32_t end[2];
} Map;

#ifdef __cplusplus
extern "C" {
#endif

enum { FAKE_NVIDIA = 1, FAKE_AMD = 2, FAKE_DEVICES = 5 };

/* Forgets everything; the calling thread's current context becomes none (AMD: device 0). */
void fake_reset(void);
/* kiln_resolve_fn */
void* fake_resolve(int32_t vendor, const char* symbol, void* user);
/* Makes the `nth` call from now on (1: the next) of an entry point return `code`, and all later ones if `sticky`. */
void fake_fail(const char* symbol, int nth, int code, int sticky);
/* Makes each call of an entry point last so much longer. */
void fake_delay(const char* symbol, int milliseconds);
/* Makes an entry point absent, for fake_resolve(). */
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
int fake_allocated(void);           /* pieces of memory, and streams made by the caller, that live now */
int fake_launches(void);
/* The record since fake_reset(): `bytes` of it, valid until the next call of an entry point. */
const char* fake_record(uint64_t* bytes);
/* Stops recording, for measurements. */
void fake_set_recording(int on);
/* A line of the caller's own in the record. */
void fake_mark(const char* text);

#ifdef __cplusplus
}
#endif
#endif
