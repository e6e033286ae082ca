// The typed entries of flash.h, called with their parameters by name.
#ifndef KILN_BINDINGS_ENTRIES_H
#define KILN_BINDINGS_ENTRIES_H

#include <string>
#include <vector>

#include "errors.h"
#include "kiln/flash.h"

namespace kiln_python {

// One variant as kiln_variant tells it; its strings are copies.
struct Variant {
  std::string key, target, operation, kernel, functional, configuration, specialization, unavailable, passed_over;
  bool is_available, has_ptx;
  int32_t registers, shared_bytes, spill_bytes, threads;
};
Variant copy(const kiln_variant& variant);

// One operation. Its functions take the parameter structure, filled by Parameters.
struct Entry {
  const char* name;  // "attn_fwd"
  kiln_status (*launch)(kiln_t, const kiln_queue*, const void*);
  kiln_status (*workspace)(kiln_t, const kiln_queue*, const void*, uint64_t*);  // null: needs none
  kiln_status (*prepare)(kiln_t, const kiln_queue*, const void*);               // null: has none
  kiln_status (*explain)(kiln_t, const kiln_queue*, const void*, kiln_variant_fn, void*);
};
// The entry of a name; raises NotFoundError.
const Entry& find_entry(const std::string& name);

// A parameter structure, with all that it points to.
class Parameters {
 public:
  static constexpr size_t kCapacity = 512, kTensors = 24, kFields = 64;

  // Raises ArgumentError where a name is not one of the entry's parameters, or is given twice, or a value cannot be
  // one.
  Parameters(const Entry& entry, nb::dict fields);
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  const void* data() const { return bytes_; }

 private:
  void set(const struct Field& field, nb::handle value);
  void set_keys(const struct Field& field, nb::handle value);
  template <typename T>
  T& at(size_t offset) {
    return *reinterpret_cast<T*>(bytes_ + offset);
  }

  alignas(8) unsigned char bytes_[kCapacity];
  kiln_tensor tensors_[kTensors];
  size_t tensor_count_ = 0;
  std::vector<std::string> keys_;
  std::vector<const char*> key_pointers_;
  std::string target_;
};

}  // namespace kiln_python

#endif
