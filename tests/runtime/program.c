/* A C99 program on the fake driver that runs the runtime's life many times over, for leaks and sanitizers, and checks
 * that the libraries are gone after dlclose(), unless a second word says that a sanitizer keeps them.
 * Usage: program <folder of the libraries> [kept] */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "fake_driver.h"
#include "kiln/flash.h"
#include "toy_call.h"

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      return 1;                                               \
    }                                                         \
  } while (0)

typedef const kiln_family* (*family_fn)(void);

static void* load(const char* folder, const char* name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static int is_mapped(const char* name) {
  char line[4096];
  int found = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, name) != NULL;
  if (maps) fclose(maps);
  return found;
}

static int32_t count_variants(const kiln_variant* variant, void* user) {
  *(int*)user += variant->key[0] != 0;
  return 0;
}

static int once(const char* folder, int unloads) {
  void *core = load(folder, "libkiln.so.0"), *toy = load(folder, "libkiln_toy.so");
  CHECK(core && toy);
  CHECK(is_mapped("libkiln.so.0") && is_mapped("libkiln_toy.so"));
  kiln_status (*open)(const kiln_options*, kiln_t*);
  kiln_status (*close)(kiln_t);
  kiln_status (*add)(kiln_t, const kiln_family*);
  kiln_status (*find)(kiln_t, const char*, kiln_operation*);
  kiln_status (*launch)(const kiln_call*);
  kiln_status (*variants)(kiln_t, const char*, const char*, kiln_variant_fn, void*);
  const char* (*error)(void);
  family_fn family;
  *(void**)&open = dlsym(core, "kiln_open");
  *(void**)&close = dlsym(core, "kiln_close");
  *(void**)&add = dlsym(core, "kiln_register_family");
  *(void**)&find = dlsym(core, "kiln_find_operation");
  *(void**)&launch = dlsym(core, "kiln_launch");
  *(void**)&variants = dlsym(core, "kiln_variants");
  *(void**)&error = dlsym(core, "kiln_error");
  *(void**)&family = dlsym(toy, "kiln_toy_family");

  kiln_options options = KILN_OPTIONS_INIT;
  options.resolve = fake_resolve;
  kiln_t kiln;
  CHECK(open(&options, &kiln) == KILN_OK);
  CHECK(add(kiln, family()) == KILN_OK);
  kiln_operation operation;
  CHECK(find(kiln, "toy.mix", &operation) == KILN_OK);
  toy_call toy_made;
  for (int vendor = KILN_VENDOR_NVIDIA; vendor <= KILN_VENDOR_AMD; ++vendor) {
    make_toy_call(&toy_made, operation, vendor, fake_stream(vendor, 0, 0));
    CHECK(launch(&toy_made.call) == KILN_OK);
  }
  CHECK(fake_launches() == 4 && fake_loaded() == 4);
  toy_made.call.argument_count = 6;
  CHECK(launch(&toy_made.call) == KILN_E_ARGUMENT && strstr(error(), "toy.mix"));
  int count = 0;
  CHECK(variants(kiln, NULL, NULL, count_variants, &count) == KILN_OK && count == 104);
  CHECK(close(kiln) == KILN_OK);
  CHECK(fake_loaded() == 0);
  CHECK(dlclose(toy) == 0 && dlclose(core) == 0);
  CHECK(!unloads || (!is_mapped("libkiln.so.0") && !is_mapped("libkiln_toy.so")));
  return 0;
}

int main(int count, char** words) {
  if (count < 2) return 2;
  for (int i = 0; i < 50; ++i) {
    fake_reset();
    if (once(words[1], count == 2)) return 1;
  }
  puts("fine");
  return 0;
}
