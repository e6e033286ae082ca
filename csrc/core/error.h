// Status codes and their sentences: one per thread, in plain storage, so that nothing keeps the library loaded.
#pragma once

#include "kiln/kiln.h"

namespace kiln {

// Leaves a sentence for the calling thread and returns `status`. Arguments may point into the previous sentence.
__attribute__((format(printf, 2, 3))) kiln_status fail(kiln_status status, const char* format, ...);

inline kiln_status out_of_memory() { return fail(KILN_E_OUT_OF_MEMORY, "no host memory is left"); }

// Text that grows in a fixed buffer and is cut, never overrun, at its end.
class Text {
 public:
  Text(char* buffer, size_t capacity) : buffer_(buffer), capacity_(capacity), length_(0) { buffer_[0] = 0; }
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...);
  const char* c_str() const { return buffer_; }
  size_t length() const { return length_; }
  void clear() { length_ = 0, buffer_[0] = 0; }

 private:
  char* buffer_;
  size_t capacity_, length_;
};

template <size_t N>
class FixedText : public Text {
 public:
  FixedText() : Text(storage_, N) {}

 private:
  char storage_[N];
};

// "fp16"; nullptr for a number that is no kiln_dtype.
const char* dtype_name(int64_t dtype);
// Bytes of an element; 0 for a number that is no kiln_dtype.
int32_t dtype_bytes(int64_t dtype);

}  // namespace kiln
