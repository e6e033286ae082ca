/* What the tests do with the executor's HIP runtime, hip.c; executor.py has the same by ctypes. */
#ifndef EXECUTOR_HIP_H
#define EXECUTOR_HIP_H

#include "machine.h"

enum { HIP_PIECES = 64, HIP_SENTENCE = 900 };

/* Settings, for launches to come, and what became of those since hip_begin(). */
struct hip_executor {
  uint64_t schedule_seed, contents_seed; /* as of struct emu_launch */
  uint64_t limit;                        /* instructions of a wave; 0: the machine's own */
  uint32_t flags;                        /* enum emu_launch_flag */
  uint32_t shortened;                    /* 1: launches lack the last groups of the first axis that has several */
  const struct emu_program *replaced, *replacement; /* of which launches take the second in place of the first */

  uint64_t launches, instructions, unwritten;
  struct emu_fault fault;      /* the latest; check 0: none */
  char sentence[HIP_SENTENCE]; /* of it */
};

/* The program of a code object; null: it cannot be executed. `size` is how long it says that it is. */
typedef const struct emu_program* hip_loader(const void* code, uint64_t size);

/* Begins anew, with one device of an architecture: "gfx942". 0, or 1 if it is not known. */
int hip_begin(const char* target, hip_loader* loader);
struct hip_executor* hip_executor(void);
/* Lends bytes to the kernels until hip_disown(). 0, or 1 if there is no room for more. */
int hip_own(uint64_t address, uint64_t bytes, int writable, const char* name);
void hip_disown(void);
/* kiln_resolve_fn */
void* hip_resolve(int32_t vendor, const char* symbol, void* user);

#endif
