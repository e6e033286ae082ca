// Host memory and locks without a C++ runtime.
#pragma once

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

namespace kiln {

// Zeroed storage for `count` plain T, or nullptr. T must be fit to be used when all its bytes are zero.
template <typename T>
T* allocate(size_t count = 1) {
  return static_cast<T*>(calloc(count ? count : 1, sizeof(T)));
}

inline char* copy_string(const char* text) {
  size_t size = strlen(text) + 1;
  char* copy = static_cast<char*>(malloc(size));
  if (copy) memcpy(copy, text, size);
  return copy;
}

// Fit for use when zeroed: PTHREAD_MUTEX_INITIALIZER is all zeros on Linux.
struct Mutex {
  pthread_mutex_t mutex;
};

class Lock {
 public:
  explicit Lock(Mutex& mutex) : mutex_(&mutex.mutex) { pthread_mutex_lock(mutex_); }
  ~Lock() { pthread_mutex_unlock(mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t* mutex_;
};

}  // namespace kiln
