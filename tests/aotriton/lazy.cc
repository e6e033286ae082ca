// A LazyTensor's two functions, as a program has them; what they were called with is counted.
#include <aotriton/util.h>

namespace {

struct Cookie {
  aotriton::TensorView<2> view;
  int acquired, disposed;
};

aotriton::TensorView<2> acquire(void* cookie) {
  Cookie* own = static_cast<Cookie*>(cookie);
  ++own->acquired;
  return own->view;
}

void dispose(void* cookie) { ++static_cast<Cookie*>(cookie)->disposed; }

}  // namespace

extern "C" {
Cookie lazy_cookies[2];
void* lazy_acquire() { return reinterpret_cast<void*>(acquire); }
void* lazy_dispose() { return reinterpret_cast<void*>(dispose); }
}
