// A call's arguments, checked and laid out as the expressions read them (family.h, 'Values').
#include "dispatch.h"

namespace kiln {
namespace {

const char* kind_name(int32_t kind) {
  switch (kind) {
    case KILN_ARG_ABSENT:
      return "absent";
    case KILN_ARG_TENSOR:
      return "a tensor";
    case KILN_ARG_INT:
      return "an integer";
    case KILN_ARG_FLOAT:
      return "a floating number";
    default:
      return "of an unknown kind";
  }
}

// Whether every element lies in the 64-bit address space, and every offset in int64_t.
bool addressable(const kiln_tensor& tensor, int32_t element) {
  int64_t above = 0, below = 0;  // offsets of the outermost elements
  for (int32_t d = 0; d < tensor.rank; ++d) {
    if (tensor.sizes[d] == 0) return true;
    int64_t reach;
    if (__builtin_mul_overflow(tensor.sizes[d] - 1, tensor.strides[d], &reach)) return false;
    if (reach >= 0 ? __builtin_add_overflow(above, reach, &above) : __builtin_add_overflow(below, reach, &below))
      return false;
  }
  int64_t end;
  if (__builtin_add_overflow(above, 1, &end) || __builtin_mul_overflow(end, element, &end) ||
      __builtin_mul_overflow(below, element, &below))
    return false;
  uint64_t address = reinterpret_cast<uint64_t>(tensor.data);
  return address + static_cast<uint64_t>(end) >= address && address >= -static_cast<uint64_t>(below);
}

// The address of an empty tensor without memory (PyTorch's have none): expressions tell an absent tensor by its
// address, and this one is given. Recipes must not let a kernel read or write an empty tensor.
constexpr int64_t kNowhere = 256;

kiln_status read_tensor(const char* operation, const kiln_argument_table& wanted, const kiln_tensor* tensor,
                        int64_t* v) {
  if (!tensor)
    return fail(KILN_E_ARGUMENT, "%s: %s is a NULL tensor%s", operation, wanted.name,
                wanted.optional ? "; to leave it out, make it KILN_ARG_ABSENT" : "");
  if (tensor->rank != wanted.rank)
    return fail(KILN_E_ARGUMENT, "%s: %s has rank %d; it must be %d", operation, wanted.name, tensor->rank,
                wanted.rank);
  int32_t element = dtype_bytes(tensor->dtype);
  if (element == 0)
    return fail(KILN_E_ARGUMENT, "%s: %s has dtype %d, which is not a kiln_dtype", operation, wanted.name,
                tensor->dtype);
  if (wanted.dtype >= 0 && tensor->dtype != wanted.dtype)
    return fail(KILN_E_ARGUMENT, "%s: %s is %s; it must be %s", operation, wanted.name, dtype_name(tensor->dtype),
                dtype_name(wanted.dtype));
  if (tensor->reserved[0] | tensor->reserved[1])
    return fail(KILN_E_NEWER_CALLER, "%s: the reserved fields of %s are not zero", operation, wanted.name);
  bool empty = false;
  v[0] = static_cast<int64_t>(reinterpret_cast<uint64_t>(tensor->data));
  v[1] = tensor->dtype;
  for (int32_t d = 0; d < wanted.rank; ++d) {
    if (tensor->sizes[d] < 0)
      return fail(KILN_E_ARGUMENT, "%s: size %d of %s is %lld; a size must not be negative", operation, d, wanted.name,
                  static_cast<long long>(tensor->sizes[d]));
    empty |= tensor->sizes[d] == 0;
    v[2 + d] = tensor->sizes[d];
    v[2 + wanted.rank + d] = tensor->strides[d];
  }
  if (!tensor->data && !empty)
    return fail(KILN_E_ARGUMENT, "%s: the data of %s is NULL although it has elements", operation, wanted.name);
  if (!tensor->data) v[0] = kNowhere;
  if (!addressable(*tensor, element))
    return fail(KILN_E_RANGE, "%s: the sizes and strides of %s reach beyond 64-bit addresses", operation, wanted.name);
  return KILN_OK;
}

kiln_status read_integer(const char* operation, const kiln_argument_table& wanted, int64_t value, int64_t* v) {
  *v = value;
  if (wanted.integer_bits == 1 && value != 0 && value != 1)
    return fail(KILN_E_RANGE, "%s: %s is %lld; a boolean must be 0 or 1", operation, wanted.name,
                static_cast<long long>(value));
  if (wanted.integer_bits == 32 && value != static_cast<int32_t>(value))
    return fail(KILN_E_RANGE, "%s: %s is %lld, which does not fit its 32 bits", operation, wanted.name,
                static_cast<long long>(value));
  return KILN_OK;
}

}  // namespace

kiln_status read_arguments(Plan& plan) {
  const kiln_operation_table& op = *plan.operation->table;
  const char* name = plan.operation->name;
  const kiln_call& call = *plan.call;
  if (call.argument_count != op.argument_count)
    return fail(KILN_E_ARGUMENT, "%s: %d arguments are given; it takes %d", name, call.argument_count,
                op.argument_count);
  if (!call.arguments && op.argument_count) return fail(KILN_E_ARGUMENT, "%s: the arguments are NULL", name);
  memset(plan.v, 0, static_cast<size_t>(op.value_count) * sizeof plan.v[0]);
  for (int32_t i = 0; i < op.argument_count; ++i) {
    const kiln_argument_table& wanted = op.arguments[i];
    const kiln_argument& given = call.arguments[i];
    int64_t* v = plan.v + wanted.index;
    if (given.reserved)
      return fail(KILN_E_NEWER_CALLER, "%s: the reserved field of argument %s is not zero", name, wanted.name);
    if (given.kind == KILN_ARG_ABSENT && wanted.optional) continue;
    if (given.kind != wanted.kind)
      return fail(KILN_E_ARGUMENT, "%s: %s is %s; it must be %s", name, wanted.name, kind_name(given.kind),
                  kind_name(wanted.kind));
    kiln_status status = KILN_OK;
    if (given.kind == KILN_ARG_TENSOR)
      status = read_tensor(name, wanted, given.value.tensor, v);
    else if (given.kind == KILN_ARG_INT)
      status = read_integer(name, wanted, given.value.integer, v);
    else
      memcpy(v, &given.value.real, sizeof *v);
    if (status != KILN_OK) return status;
  }
  return KILN_OK;
}

}  // namespace kiln
