/* The memory of a worker process, preloaded into it (LD_PRELOAD; farm/local.py).
 *
 * A compile allocates and frees millions of small blocks, more than a tenth of its time with the C library's heap,
 * which merges what is free and looks for what fits. Here a block goes back to the list of its size and is handed out
 * from there, by a few instructions without a lock, and nothing is given back to the kernel: the next compile needs the
 * same again. Memory grows by huge pages.
 *
 * Sizes are rounded up to a class: multiples of 16 to 1 KiB, then four for each doubling. A span of 64 KiB holds blocks
 * of one class, and a table says of which, so blocks have no headers; larger blocks have spans of their own. Lists are
 * a thread's own; what another thread allocated goes to the list of who frees it. What the lists of a thread have when
 * it ends is not handed out again: Triton starts no thread in a compile.
 *
 * Images do not depend on it: no byte of theirs depends on addresses (those of an assembler, which do, lie in
 * csrc/assembler/heap.c's memory).
 */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define API __attribute__((visibility("default")))
#define MOST (UINT64_C(1) << 38)  /* of addresses; what is used of them is mapped as it is needed */
#define LEAST (UINT64_C(1) << 32) /* where addresses are limited */
#define GROWTH (UINT64_C(16) << 20)
#define HUGE_PAGE (UINT64_C(2) << 20)

enum { UNIT = 16, FINE = 1024 / UNIT, CLASSES = FINE + 4 * 28, SPAN = 1 << 16, LARGEST_SHARED = SPAN / 8 };

typedef struct {
  void* freed;         /* each block holds the address of the next; the last freed is handed out first */
  uint8_t *next, *end; /* of the span that was never handed out */
} List;

static uint8_t *base, *frontier, *mapped;
static size_t reserved;
static uint8_t classes[MOST / SPAN]; /* by span: the kernel keeps no page of it before it is written to */
static atomic_flag lock = ATOMIC_FLAG_INIT;
static __thread List lists[CLASSES] __attribute__((tls_model("initial-exec")));

static uint32_t class_of(size_t bytes) {
  if (bytes <= 1024) return bytes ? (uint32_t)((bytes + UNIT - 1) / UNIT) - 1 : 0;
  unsigned doubling = 63 - (unsigned)__builtin_clzll(bytes - 1);  /* 2^doubling < bytes <= 2^(doubling + 1) */
  uint32_t steps = (uint32_t)((bytes - 1) >> (doubling - 2)) + 1; /* 5 to 8 */
  return FINE + 4 * (doubling - 10) + steps - 5;
}

static size_t bytes_of(uint32_t class) {
  if (class < FINE) return (size_t)(class + 1) * UNIT;
  return (size_t)((class - FINE) % 4 + 5) << ((class - FINE) / 4 + 8);
}

/* Spans for so many bytes, which a class has from now on. NULL: the kernel gives no more. */
static uint8_t* spans_for(size_t bytes, uint32_t class) {
  bytes = (bytes + SPAN - 1) & ~(size_t)(SPAN - 1);
  uint8_t* found = NULL;
  while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) sched_yield();
  if (!base) {
    void* at = MAP_FAILED;
    for (size_t most = MOST; at == MAP_FAILED && most >= LEAST; most /= 2) {
      at = mmap(NULL, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      reserved = most;
    }
    if (at == MAP_FAILED) goto done;
    base = frontier = mapped = (uint8_t*)(((uintptr_t)at + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
  }
  if (bytes > (size_t)(base + reserved - HUGE_PAGE - GROWTH - frontier)) goto done;
  if (frontier + bytes > mapped) {
    size_t more = ((size_t)(frontier + bytes - mapped) + GROWTH - 1) & ~(GROWTH - 1);
    if (mprotect(mapped, more, PROT_READ | PROT_WRITE)) goto done;
    madvise(mapped, more, MADV_HUGEPAGE); /* a wish: without, pages are small */
    mapped += more;
  }
  found = frontier;
  frontier += bytes;
  classes[(size_t)(found - base) / SPAN] = (uint8_t)class;
done:
  atomic_flag_clear_explicit(&lock, memory_order_release);
  return found;
}

/* What the lists have not: another span. */
static __attribute__((noinline)) void* refill(List* list, uint32_t class, size_t size) {
  if (size > LARGEST_SHARED) return spans_for(size, class);
  uint8_t* span = spans_for(SPAN, class);
  if (!span) return NULL;
  list->next = span + size;
  list->end = span + SPAN;
  return span;
}

static void* allocate(size_t bytes) {
  if (bytes > MOST / 4) return NULL;
  uint32_t class = class_of(bytes);
  List* list = &lists[class];
  void* block = list->freed;
  if (block) {
    memcpy(&list->freed, block, sizeof(void*));
    return block;
  }
  size_t size = bytes_of(class);
  if (size > LARGEST_SHARED || (size_t)(list->end - list->next) < size) return refill(list, class, size);
  block = list->next;
  list->next += size;
  return block;
}

/* One that the loader made before this library was there is not ours. */
static int is_ours(const void* block) { return base && (uintptr_t)block - (uintptr_t)base < reserved; }

static size_t class_of_block(const void* block) { return classes[((uintptr_t)block - (uintptr_t)base) / SPAN]; }

static void* or_enomem(void* block) {
  if (!block) errno = ENOMEM;
  return block;
}

API void* malloc(size_t bytes) { return or_enomem(allocate(bytes)); }

API void free(void* block) {
  if (!is_ours(block)) return;
  List* list = &lists[class_of_block(block)];
  memcpy(block, &list->freed, sizeof(void*));
  list->freed = block;
}

API void* calloc(size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) return or_enomem(NULL);
  void* block = allocate(total);
  if (block) memset(block, 0, total);
  return or_enomem(block);
}

API size_t malloc_usable_size(void* block) { return is_ours(block) ? bytes_of((uint32_t)class_of_block(block)) : 0; }

API void* realloc(void* block, size_t bytes) {
  if (!block) return or_enomem(allocate(bytes));
  if (!is_ours(block)) abort();
  size_t there = malloc_usable_size(block);
  if (bytes <= there && bytes >= there / 2) return block;
  void* moved = allocate(bytes);
  if (!moved) return or_enomem(NULL);
  memcpy(moved, block, there < bytes ? there : bytes);
  free(block);
  return moved;
}

/* A class whose size is a power of two has all its blocks at multiples of it, within a span or from its begin. */
static void* aligned(size_t alignment, size_t bytes) {
  if (alignment <= UNIT) return allocate(bytes);
  if (alignment > SPAN || bytes > MOST / 4) return NULL;
  size_t size = bytes < alignment ? alignment : bytes;
  if (size & (size - 1)) size = (size_t)1 << (64 - __builtin_clzll(size));
  return allocate(size);
}

API int posix_memalign(void** block, size_t alignment, size_t bytes) {
  if (alignment % sizeof(void*) || !alignment || alignment & (alignment - 1)) return EINVAL;
  void* found = aligned(alignment, bytes);
  if (!found) return ENOMEM;
  *block = found;
  return 0;
}

API void* aligned_alloc(size_t alignment, size_t bytes) { return or_enomem(aligned(alignment, bytes)); }

API void* memalign(size_t alignment, size_t bytes) { return or_enomem(aligned(alignment, bytes)); }
