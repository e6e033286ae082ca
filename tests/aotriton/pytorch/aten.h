// What PyTorch's aotriton_adapter.h expects to be included before it, as far as it uses it: tensors at addresses that
// nothing lies at. With this its headers can be compiled, and what is made of them linked and run, without a libtorch
// of their version. That they fit PyTorch's own ATen is checked apart (test_aotriton_pytorch.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#define TORCH_CHECK(condition, ...) \
  do {                              \
    if (!(condition)) std::abort(); \
  } while (false)

namespace at {

enum ScalarType { kByte, kChar, kShort, kInt, kLong, kHalf, kFloat, kBFloat16, kUInt16, kUInt32, kUInt64 };

}  // namespace at

namespace caffe2 {

struct TypeMeta {
  at::ScalarType type;
  friend bool operator==(TypeMeta a, at::ScalarType b) { return a.type == b; }
};

}  // namespace caffe2

namespace at {

class IntArrayRef {
 public:
  IntArrayRef(const std::vector<std::int64_t>& from) : from_(&from) {}
  std::int64_t at(std::size_t i) const { return from_->at(i); }
  std::size_t size() const { return from_->size(); }
  const std::vector<std::int64_t>& vec() const { return *from_; }

 private:
  const std::vector<std::int64_t>* from_;
};

struct TensorOptions {
  ScalarType type;
  TensorOptions dtype(ScalarType other) const { return {other}; }
};

struct Tensor {
  std::intptr_t address = 0;
  std::vector<std::int64_t> shape, steps;
  ScalarType type = kByte;

  bool defined() const { return address != 0; }
  IntArrayRef sizes() const { return shape; }
  IntArrayRef strides() const { return steps; }
  std::int64_t size(int i) const { return shape[static_cast<std::size_t>(i)]; }
  caffe2::TypeMeta dtype() const { return {type}; }
  TensorOptions options() const { return {type}; }
  void* data_ptr() const { return reinterpret_cast<void*>(address); }
  const void* const_data_ptr() const { return data_ptr(); }
  void* mutable_data_ptr() const { return data_ptr(); }
  Tensor transpose(int a, int b) const {
    Tensor out = *this;
    std::swap(out.shape[static_cast<std::size_t>(a)], out.shape[static_cast<std::size_t>(b)]);
    std::swap(out.steps[static_cast<std::size_t>(a)], out.steps[static_cast<std::size_t>(b)]);
    return out;
  }
};

inline Tensor at_address(std::intptr_t address, std::vector<std::int64_t> sizes, ScalarType type) {
  Tensor out{address, sizes, sizes, type};
  std::int64_t step = 1;
  for (std::size_t i = sizes.size(); i-- > 0; step *= sizes[i]) out.steps[i] = step;
  return out;
}

// Memory that a lazy tensor makes: a count of it, at an address of its own.
inline int made = 0;
inline Tensor zeros(IntArrayRef sizes, TensorOptions options) {
  return at_address(0x70000000 + ++made, sizes.vec(), options.type);
}
inline Tensor empty_like(const Tensor& tensor) { return zeros(tensor.sizes(), tensor.options()); }

}  // namespace at
