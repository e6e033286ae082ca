/* What the parts of the fake driver share. */
#ifndef FAKE_INTERNAL_H
#define FAKE_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

#define EXPORT __attribute__((visibility("default")))

enum { PARAMETERS = 128, CONTEXTS = 3, STREAMS = 4 };

typedef struct Context {
  int device, green;
} Context;
typedef struct Stream {
  int vendor, device, made; /* made: by the caller, who destroys it */
  Context* context;
} Stream;
typedef struct Parameter {
  uint32_t offset, size; /* bytes, in the buffer of all of them */
} Parameter;
typedef struct Image {
  struct Image* next;
  int number, live, device; /* device: the current one when it was loaded */
  char symbol[256];
  int fixed, dynamic; /* bytes of shared memory: static, and dynamic that is allowed */
  int count;
  Parameter parameters[PARAMETERS];
} Image;

extern pthread_mutex_t fake_lock; /* of all that follows */

/* ---- fake_driver.c ---- */

extern int fake_versions[3], fake_counts[3], fake_properties; /* by vendor */

/* Counts the call of an entry point; the code that it is to fail with, or 0. */
int fake_enter(const char* name);
/* The calling thread's device, or -1. */
int fake_current_device(int vendor);
Context* fake_pop(void);
void fake_push(Context* context);
/* A failure as HIP remembers it for the calling thread, until hipGetLastError() asks for it. */
void fake_remember(int code);
int fake_take_remembered(void);

/* Images: `bad` and `stale` are the codes for what is none, and for one that was unloaded. */
int fake_load(int vendor, Image** out, const void* code, int bad);
int fake_unload(Image* image, int stale);
/* What a launch has in common for both vendors. */
int fake_launch(int vendor, Image* image, const unsigned* grid, const unsigned* block, unsigned shared, Stream* stream,
                unsigned cluster, void** parameters, void** extra, int end);

/* Memory: addresses that nothing lies at. `stream`: where it is ordered, or NULL. */
int fake_allocate(uint64_t* address, size_t bytes, void* stream, int full);
int fake_free(uint64_t address, void* stream, int unknown);
int fake_set(uint64_t address, int value, size_t bytes, void* stream);
int fake_set_rows(uint64_t address, size_t pitch, int value, size_t width, size_t height, void* stream);
int fake_copy(uint64_t to, uint64_t from, size_t bytes, void* stream);
Stream* fake_make_stream(int vendor, Context* context);
int fake_destroy_stream(Stream* stream, int unknown);

/* ---- fake_image.c ---- */

/* Reads what an image says of its kernel; its length in bytes, or 0 if it is none. */
size_t fake_read_image(const void* code, Image* image);

/* ---- fake_map.c ---- */

/* cuTensorMapEncodeTiled: 0, or the code of a value that it refuses. */
int fake_encode(Map* map, int type, unsigned rank, uint64_t address, const uint64_t* sizes, const uint64_t* strides,
                const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion, int fill);
/* Whether each tensor map among a launch's arguments was encoded, and its sizes and strides follow it. */
int fake_check_maps(const Image* image, const void* const* arguments);

/* ---- fake_record.c ---- */

/* A call begins; what it notes stands in the record if it succeeds: `format` gives members of JSON. */
void fake_begin(void);
__attribute__((format(printf, 1, 2))) void fake_note(const char* format, ...);
/* "name": the bytes in hexadecimal digits */
void fake_note_bytes(const char* name, const void* bytes, size_t size);
/* What was read of it. */
void fake_note_image(const Image* image);
/* "arguments": the bytes of each of a kernel's; 0 where there is none at an address */
int fake_note_arguments(const Image* image, const void* const* arguments);
/* It ended: its line is written. Gives `result` back, which HIP remembers if it is a failure. */
int fake_end(int vendor, const char* name, int result);
void fake_open_record(const char* path);
void fake_forget_record(void);

/* An entry point: counted, failed on demand, recorded. `parameters` with their types, `arguments` without. */
#define FAKE_ENTRY(vendor, name, parameters, arguments)                          \
  static int name##_body parameters;                                             \
  EXPORT int name parameters {                                                   \
    fake_begin();                                                                \
    int failure_ = fake_enter(#name);                                            \
    return fake_end(vendor, #name, failure_ ? failure_ : name##_body arguments); \
  }                                                                              \
  static int name##_body parameters

#endif
