// Registration: which families a runtime knows, and their operations by name.
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>

#include "runtime.h"

namespace kiln {
namespace {

// The folder of the library that holds `address`, or nullptr.
char* folder_of(const void* address) {
  Dl_info facts;
  if (!dladdr(address, &facts) || !facts.dli_fname) return nullptr;
  // Absolute: the process may change its folder before a pack is searched for.
  char* path = realpath(facts.dli_fname, nullptr);
  if (!path) path = copy_string(facts.dli_fname);
  if (!path) return nullptr;
  char* slash = strrchr(path, '/');
  if (slash) {
    *slash = 0;
  } else {
    free(path);
    path = copy_string(".");
  }
  return path;
}

kiln_status make_operations(Family& family) {
  const kiln_family& table = *family.table;
  family.operations = allocate<kiln_operation_state>(static_cast<size_t>(table.operation_count));
  if (!family.operations) return out_of_memory();
  for (int32_t i = 0; i < table.operation_count; ++i) {
    kiln_operation_state& operation = family.operations[i];
    operation.family = &family;
    operation.table = &table.operations[i];
    operation.first_kernel = family.kernel_count;
    family.kernel_count += table.operations[i].kernel_count;
    size_t size = strlen(table.name) + strlen(table.operations[i].name) + 2;
    operation.name = static_cast<char*>(malloc(size));
    if (!operation.name) return out_of_memory();
    snprintf(operation.name, size, "%s.%s", table.name, table.operations[i].name);
  }
  return KILN_OK;
}

kiln_status add_family(kiln_runtime& runtime, const kiln_family* table) {
  Lock lock(runtime.lock);
  for (Family* known = runtime.families.load(std::memory_order_relaxed); known; known = known->next) {
    if (known->table == table) return KILN_OK;
    if (strcmp(known->table->name, table->name) == 0)
      return fail(KILN_E_FAMILY, "another family %s (release %s, in %s) is registered already", table->name,
                  known->table->version, known->folder ? known->folder : "?");
  }
  Family* family = allocate<Family>();
  if (!family) return out_of_memory();
  family->runtime = &runtime;
  family->table = table;
  family->folder = folder_of(table);
  family->packs = allocate<std::atomic<Pack*>>(static_cast<size_t>(table->pack_count));
  kiln_status status = family->packs ? make_operations(*family) : out_of_memory();
  if (status != KILN_OK) {
    close_family(family, false);
    return status;
  }
  family->next = runtime.families.load(std::memory_order_relaxed);
  runtime.families.store(family, std::memory_order_release);
  log(runtime.options, KILN_LOG_INFO, "registered the family %s of release %s", table->name, table->version);
  return KILN_OK;
}

}  // namespace
}  // namespace kiln

using namespace kiln;

extern "C" {

kiln_status kiln_register_family(kiln_t kiln, const kiln_family* family) {
  kiln_status status = check_runtime(kiln);
  if (status != KILN_OK) return status;
  for (Family* known = kiln->families.load(std::memory_order_acquire); known; known = known->next)
    if (known->table == family) return KILN_OK;
  status = validate_family(family);
  return status == KILN_OK ? add_family(*kiln, family) : status;
}

kiln_status kiln_find_operation(kiln_t kiln, const char* name, kiln_operation* out) {
  kiln_status status = check_runtime(kiln);
  if (status != KILN_OK) return status;
  if (!name || !out) return fail(KILN_E_ARGUMENT, "kiln_find_operation: %s is NULL", name ? "out" : "name");
  *out = nullptr;
  FixedText<512> known;
  for (Family* family = kiln->families.load(std::memory_order_acquire); family; family = family->next) {
    for (int32_t i = 0; i < family->table->operation_count; ++i) {
      if (strcmp(family->operations[i].name, name) == 0) {
        *out = &family->operations[i];
        return KILN_OK;
      }
    }
  }
  for (Family* family = kiln->families.load(std::memory_order_acquire); family; family = family->next)
    for (int32_t i = 0; i < family->table->operation_count; ++i)
      known.add("%s%s", known.length() ? ", " : "", family->operations[i].name);
  if (!known.length()) return fail(KILN_E_NOT_FOUND, "there is no operation %s: %s", name, kNoFamily);
  // Another family's operations are of no help to who forgot to register this one.
  int length = static_cast<int>(strcspn(name, "."));
  bool registered = !name[length];
  for (Family* family = kiln->families.load(std::memory_order_acquire); family; family = family->next)
    registered |= strlen(family->table->name) == static_cast<size_t>(length) &&
                  strncmp(family->table->name, name, static_cast<size_t>(length)) == 0;
  if (!registered)
    return fail(KILN_E_NOT_FOUND,
                "there is no operation %s: no family %.*s is registered, of which "
                "kiln_register_family(kiln, kiln_%.*s_family()) makes the operations known; there are %s",
                name, length, name, length, name, known.c_str());
  return fail(KILN_E_NOT_FOUND, "there is no operation %s; there are %s", name, known.c_str());
}

kiln_status kiln_operations(kiln_t kiln, kiln_operation_fn visit, void* user) {
  kiln_status status = check_runtime(kiln);
  if (status != KILN_OK) return status;
  if (!visit) return fail(KILN_E_ARGUMENT, "kiln_operations: visit is NULL");
  for (Family* family = kiln->families.load(std::memory_order_acquire); family; family = family->next)
    for (int32_t i = 0; i < family->table->operation_count; ++i)
      if (visit(family->operations[i].name, &family->operations[i], user)) return KILN_OK;
  return KILN_OK;
}

kiln_status kiln_operation_arguments(kiln_operation operation, kiln_argument_fn visit, void* user) {
  if (!operation || !visit)
    return fail(KILN_E_ARGUMENT, "kiln_operation_arguments: %s is NULL", operation ? "visit" : "operation");
  kiln_status status = check_runtime(operation->family->runtime);
  if (status != KILN_OK) return status;
  for (int32_t i = 0; i < operation->table->argument_count; ++i) {
    const kiln_argument_table& argument = operation->table->arguments[i];
    bool tensor = argument.kind == KILN_ARG_TENSOR;
    kiln_argument_info info = {sizeof info,
                               argument.name,
                               argument.kind,
                               tensor ? argument.rank : 0,
                               tensor && argument.dtype > 0 ? argument.dtype : 0,
                               argument.optional};
    if (visit(&info, user)) return KILN_OK;
  }
  return KILN_OK;
}

}  // extern "C"
