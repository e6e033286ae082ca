// kiln._core.Tensor: an array of another library, taken by DLPack and held until it is no longer needed.
#ifndef KILN_BINDINGS_TENSOR_H
#define KILN_BINDINGS_TENSOR_H

#include "dlpack.h"
#include "errors.h"

namespace kiln_python {

class Tensor {
 public:
  // Takes over what a capsule holds, by the protocol: the capsule is renamed, and its deleter is called at our end.
  explicit Tensor(nb::capsule capsule);
  ~Tensor();
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  const kiln_tensor& view() const { return view_; }
  DlDevice device() const { return device_; }
  bool read_only() const { return read_only_; }

 private:
  void describe(const DlTensor& from);

  DlManaged* managed_ = nullptr;
  DlVersioned* versioned_ = nullptr;
  kiln_tensor view_ = {};
  DlDevice device_ = {0, 0};
  bool read_only_ = false;
};

// A dtype's name, "bf16", or null.
const char* dtype_name(kiln_dtype dtype);
// What a Python value says, as C++; `what` names it in the sentence of a refusal. A whole number of 64 bits; an address
// or a count of bytes; a text without zero bytes; a view from a Tensor, or from (address, dtype, sizes, strides).
int64_t integer_of(nb::handle value, const char* what);
uint64_t address_of(nb::handle value, const char* what);
std::string text_of(nb::handle value, const char* what);
kiln_tensor view_of(nb::handle value, const char* what);

void define_tensor(nb::module_& module);

}  // namespace kiln_python

#endif
