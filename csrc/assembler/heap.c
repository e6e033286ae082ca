/* The memory of an assembler, at the same addresses in each of its runs, whatever the host.
 *
 * ptxas breaks some ties by the order of pointers, so what it writes depends on where malloc puts things: on random
 * addresses, and on the version of the C library. This library, preloaded into it (LD_PRELOAD; compile/assembler.py),
 * serves all memory from fixed addresses, and hands out addresses by nothing but the sequence of calls. It needs no
 * privilege, unlike personality(ADDR_NO_RANDOMIZE), which containers may refuse.
 *
 * What the C library allocates for itself (buffers of files, whose size is the file system's) comes from a heap of its
 * own, so that it moves nothing of the program's. Time is no input either: it stands still.
 *
 * Which addresses are handed out decides bytes of images. A change here is a change of image.FORMAT
 * (v3python/kiln_recipe/images/image.py).
 */
#include <elf.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

/* Where x86-64 Linux itself puts nothing: programs and their brk lie below, mappings above, also under legacy layout
 * (`ulimit -s unlimited`), which begins at a third of the 128 TiB. */
#define FIRST_ADDRESS 0x100000000000u
#define HEAP_BYTES (UINT64_C(1) << 42)
#define GROWTH (UINT64_C(4) << 20)

enum { PROGRAM, LIBRARIES, HEAPS };
enum { UNIT = 16, FINE = 1024 / UNIT, CLASSES = FINE + 4 * 54 };

/* Before each block. */
typedef struct {
  uint32_t size_class;
  uint32_t heap;
  uint64_t shift; /* of an aligned block: from the block to what was handed out */
} Header;

typedef struct {
  uint8_t *next, *end;  /* of what is mapped and was never handed out */
  void* freed[CLASSES]; /* lists, each block holds the next one's address; the last freed is handed out first */
} Heap;

static Heap heaps[HEAPS] = {
    {(uint8_t*)FIRST_ADDRESS, (uint8_t*)FIRST_ADDRESS, {0}},
    {(uint8_t*)(FIRST_ADDRESS + HEAP_BYTES), (uint8_t*)(FIRST_ADDRESS + HEAP_BYTES), {0}},
};
static atomic_flag lock = ATOMIC_FLAG_INIT;
static uintptr_t program_begin, program_end;

static void find_program(void) {
  const Elf64_Phdr* headers = (const Elf64_Phdr*)getauxval(AT_PHDR);
  size_t count = getauxval(AT_PHNUM);
  uintptr_t base = 0, begin = UINTPTR_MAX, end = 0;
  for (size_t i = 0; i < count; ++i) {
    if (headers[i].p_type == PT_PHDR) base = (uintptr_t)headers - headers[i].p_vaddr;
  }
  for (size_t i = 0; i < count; ++i) {
    if (headers[i].p_type != PT_LOAD) continue;
    uintptr_t from = base + headers[i].p_vaddr, to = from + headers[i].p_memsz;
    if (from < begin) begin = from;
    if (to > end) end = to;
  }
  program_begin = begin;
  program_end = end;
}

/* Multiples of 16 up to 1 KiB, then four sizes for each doubling. */
static uint32_t size_class_of(size_t bytes, size_t* rounded) {
  if (bytes <= 1024) {
    size_t units = bytes ? (bytes + UNIT - 1) / UNIT : 1;
    *rounded = units * UNIT;
    return (uint32_t)units - 1;
  }
  unsigned doubling = 63 - (unsigned)__builtin_clzll(bytes - 1); /* 2^doubling < bytes <= 2^(doubling + 1) */
  size_t step = (size_t)1 << (doubling - 2);
  size_t steps = (bytes + step - 1) / step; /* 5 to 8 */
  *rounded = steps * step;
  return FINE + 4 * (doubling - 10) + (uint32_t)steps - 5;
}

static size_t bytes_of(uint32_t size_class) {
  if (size_class < FINE) return (size_t)(size_class + 1) * UNIT;
  return (size_t)((size_class - FINE) % 4 + 5) << ((size_class - FINE) / 4 + 8);
}

static void refuse(void) {
  static const char text[] =
      "kiln: the addresses from 0x100000000000 on, where the assembler's memory has to lie, are in use in this "
      "process; "
      "run the build without what is preloaded into every program\n";
  if (write(2, text, sizeof text - 1) < 0) _exit(71);
  _exit(70);
}

static int grow(Heap* heap, size_t bytes) {
  size_t more = (bytes + GROWTH - 1) & ~(GROWTH - 1);
  void* at = mmap(heap->end, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (at != heap->end) {
    if (at != MAP_FAILED || errno == EEXIST) refuse(); /* before Linux 4.17 the flag is not known, and `at` elsewhere */
    return 0;
  }
  heap->end += more;
  return 1;
}

/* A block of the heap of whoever calls: `caller` is the address that the call returns to. */
static void* allocate(size_t bytes, void* caller, int* fresh) {
  if (bytes > HEAP_BYTES / 4) return NULL;
  size_t rounded;
  uint32_t size_class = size_class_of(bytes, &rounded);
  while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) sched_yield();
  if (!program_end) find_program();
  uint32_t number = (uintptr_t)caller - program_begin < program_end - program_begin ? PROGRAM : LIBRARIES;
  Heap* heap = &heaps[number];
  void* block = heap->freed[size_class];
  *fresh = !block;
  if (block) {
    memcpy(&heap->freed[size_class], block, sizeof(void*));
  } else if ((size_t)(heap->end - heap->next) >= sizeof(Header) + rounded || grow(heap, sizeof(Header) + rounded)) {
    Header header = {size_class, number, 0};
    memcpy(heap->next, &header, sizeof header);
    block = heap->next + sizeof(Header);
    heap->next += sizeof(Header) + rounded;
  }
  atomic_flag_clear_explicit(&lock, memory_order_release);
  return block;
}

/* One that the loader made before this library was there is none of ours. */
static int is_ours(const void* block) { return (uintptr_t)block - FIRST_ADDRESS < HEAPS * HEAP_BYTES; }

static Header* header_of(void* block) {
  Header* header = (Header*)block - 1;
  return header->shift ? (Header*)((uint8_t*)block - header->shift) - 1 : header;
}

static size_t usable(void* block) {
  size_t shift = ((Header*)block - 1)->shift;
  return bytes_of(header_of(block)->size_class) - shift;
}

static void* or_enomem(void* block) {
  if (!block) errno = ENOMEM;
  return block;
}

API void* malloc(size_t bytes) {
  int fresh;
  return or_enomem(allocate(bytes, __builtin_return_address(0), &fresh));
}

API void free(void* block) {
  if (!is_ours(block)) return;
  Header* header = header_of(block);
  void* whole = header + 1;
  Heap* heap = &heaps[header->heap];
  while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) sched_yield();
  memcpy(whole, &heap->freed[header->size_class], sizeof(void*));
  heap->freed[header->size_class] = whole;
  atomic_flag_clear_explicit(&lock, memory_order_release);
}

API void* calloc(size_t count, size_t bytes) {
  size_t total;
  int fresh;
  if (__builtin_mul_overflow(count, bytes, &total)) return or_enomem(NULL);
  void* block = allocate(total, __builtin_return_address(0), &fresh);
  if (block && !fresh) memset(block, 0, total); /* the kernel's pages are zero */
  return or_enomem(block);
}

API void* realloc(void* block, size_t bytes) {
  int fresh;
  if (block && !is_ours(block)) refuse();
  if (block && bytes <= usable(block)) return block;
  void* larger = allocate(bytes, __builtin_return_address(0), &fresh);
  if (!larger) return or_enomem(NULL);
  if (block) {
    memcpy(larger, block, usable(block));
    free(block);
  }
  return larger;
}

static void* aligned(size_t alignment, size_t bytes, void* caller) {
  int fresh;
  if (alignment <= UNIT) return allocate(bytes, caller, &fresh);
  if (bytes > HEAP_BYTES / 4 || alignment > HEAP_BYTES / 4) return NULL;
  uint8_t* block = allocate(bytes + alignment, caller, &fresh);
  if (!block) return NULL;
  size_t shift = -(uintptr_t)block & (alignment - 1);
  if (!shift) return block;
  Header header = {0, 0, shift};
  memcpy(block + shift - sizeof header, &header, sizeof header); /* blocks lie at multiples of 16: there is room */
  return block + shift;
}

API int posix_memalign(void** block, size_t alignment, size_t bytes) {
  if (alignment % sizeof(void*) || !alignment || alignment & (alignment - 1)) return EINVAL;
  void* found = aligned(alignment, bytes, __builtin_return_address(0));
  if (!found) return ENOMEM;
  *block = found;
  return 0;
}

API void* aligned_alloc(size_t alignment, size_t bytes) {
  return or_enomem(aligned(alignment, bytes, __builtin_return_address(0)));
}

API void* memalign(size_t alignment, size_t bytes) {
  return or_enomem(aligned(alignment, bytes, __builtin_return_address(0)));
}

API size_t malloc_usable_size(void* block) { return is_ours(block) ? usable(block) : 0; }

API int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  *now = (struct timeval){0, 0};
  return 0;
}

API clock_t clock(void) { return 0; }
