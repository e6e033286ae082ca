// What the typed entries of the flash family share: parameters become the arguments of an operation, in the recipe's
// order.
#ifndef KILN_FLASH_CALL_H
#define KILN_FLASH_CALL_H

#include <math.h>

#include "kiln/family.h"
#include "kiln/flash.h"

namespace kiln_flash {

// The arguments of one call, filled front to back.
class Arguments {
 public:
  template <int32_t kCount>
  void tensors(const kiln_tensor* const (&given)[kCount]) {
    for (const kiln_tensor* tensor : given) next(tensor ? KILN_ARG_TENSOR : KILN_ARG_ABSENT).value.tensor = tensor;
  }
  void integer(int64_t value) { next(KILN_ARG_INT).value.integer = value; }
  void real(double value) { next(KILN_ARG_FLOAT).value.real = value; }
  // NULL where there are too many: the core refuses that, if it has not refused their count.
  const kiln_argument* data() const { return count_ <= kCapacity ? arguments_ : nullptr; }
  int32_t count() const { return count_; }

 private:
  static constexpr int32_t kCapacity = 40;

  kiln_argument& next(int32_t kind) {
    kiln_argument& argument = arguments_[count_ < kCapacity ? count_ : kCapacity];
    ++count_;
    argument.kind = kind;
    argument.reserved = 0;
    return argument;
  }

  kiln_argument arguments_[kCapacity + 1];  // the last takes what is too many
  int32_t count_ = 0;
};

// Both look-ups walk a short list without a lock, so nothing is remembered here that could outlive a kiln_t.
inline kiln_status find(kiln_t kiln, const char* operation, kiln_operation* out) {
  kiln_status status = kiln_register_family(kiln, kiln_flash_family());
  return status == KILN_OK ? kiln_find_operation(kiln, operation, out) : status;
}

// What arguments.yaml computes the recipe's arguments with, in C++ as in Python.
inline int64_t either(bool which, int64_t yes, int64_t no) { return which ? yes : no; }
inline double either(bool which, double yes, double no) { return which ? yes : no; }
inline int64_t whole(double value) { return static_cast<int64_t>(value); }
inline double usual_scale(const kiln_tensor* q) {
  bool known = q && q->rank == 4 && q->sizes[3] > 0;
  return known ? 1.0 / sqrt(static_cast<double>(q->sizes[3])) : 1.0;  // if not, the call fails for q's sake
}

// An entry. `Operation` has what is its own, and is generated: Params, kDefaults, kOperation and kParams (the names of
// both), check(), add(), which gives the arguments in the recipe's order, and fill(), which gives what structures have
// of kiln_call. `run` gets the call: kiln_launch, or kiln_workspace_size.
template <typename Operation, typename... Results>
kiln_status enter(kiln_t kiln, const kiln_queue* queue, const typename Operation::Params* from,
                  kiln_status (*run)(const kiln_call*, Results*...), Results*... results) {
  typename Operation::Params params = Operation::kDefaults;
  kiln_call call = KILN_CALL_INIT;
  Arguments arguments;
  kiln_status status = kiln_read_struct(&params, sizeof params, from, Operation::kParams);
  if (status != KILN_OK) return status;
  if ((status = Operation::check(params)) != KILN_OK) return status;
  if ((status = find(kiln, Operation::kOperation, &call.operation)) != KILN_OK) return status;
  Operation::add(params, &arguments);
  Operation::fill(params, &call);
  call.queue = queue;
  call.arguments = arguments.data();
  call.argument_count = arguments.count();
  return run(&call, results...);
}

}  // namespace kiln_flash

#endif
