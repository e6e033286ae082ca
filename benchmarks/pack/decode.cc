// What the runtime does with a group once it has read it: the digest, zstd, the order of the code (csrc/core/pack.cc).
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sha256.h"
#include "split.h"
#include "zstd.h"

namespace {

double milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

}  // namespace

// Writes the milliseconds of each of `turns` decodings; false if the group is not what `digest` and `size` say.
extern "C" __attribute__((visibility("default"))) bool time_decoding(const uint8_t* stored, size_t stored_size,
                                                                     size_t size, const uint8_t* digest, double* times,
                                                                     int turns) {
  bool good = true;
  for (int turn = 0; turn < turns && good; ++turn) {
    double start = milliseconds();
    uint8_t found[32];
    uint8_t* frame = static_cast<uint8_t*>(malloc(size + kiln::kFrameHead));
    uint8_t* work = static_cast<uint8_t*>(malloc(size + kiln::kJoinSlack));
    uint8_t* out = static_cast<uint8_t*>(malloc(size + kiln::kJoinSlack));
    kiln::sha256(stored, stored_size, found);
    good = frame && work && out && memcmp(found, digest, 32) == 0 &&
           ZSTD_decompress(frame, size + kiln::kFrameHead, stored, stored_size) == size + kiln::kFrameHead &&
           kiln::join(frame, size, work, out);
    free(frame);
    free(work);
    free(out);
    times[turn] = milliseconds() - start;
  }
  return good;
}
