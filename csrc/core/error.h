// Status codes and their sentences: one per thread, in plain storage, so that nothing keeps the library loaded.
#pragma once

#include <stdarg.h>

#include "kiln/kiln.h"

namespace kiln {

constexpr size_t kSentenceBytes = 2048;  // of the longest sentence, its NUL included

// Leaves a sentence for the calling thread and returns `status`. Arguments may point into the previous sentence.
__attribute__((format(printf, 2, 3))) kiln_status fail(kiln_status status, const char* format, ...);

inline kiln_status out_of_memory() { return fail(KILN_E_OUT_OF_MEMORY, "no host memory is left"); }

// Text that grows in a fixed buffer. What does not fit is cut, never overrun, and the text ends in "..." then.
class Text {
 public:
  Text(char* buffer, size_t capacity) : buffer_(buffer), capacity_(capacity), length_(0), cut_(false) {
    buffer_[0] = 0;
  }
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...);
  __attribute__((format(printf, 2, 0))) void add_list(const char* format, va_list arguments);
  const char* c_str() const { return buffer_; }
  size_t length() const { return length_; }
  void clear() { length_ = 0, cut_ = false, buffer_[0] = 0; }

 private:
  char* buffer_;
  size_t capacity_, length_;
  bool cut_;
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
