// The time in which the runtime reads the first image of a pack's largest group: the group is read from the file,
// checked and decoded, the image checked and copied. Compiled together with csrc/core.
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "pack.h"

namespace {

double milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

}  // namespace

// Writes the milliseconds of `turns` first reads, each of a pack opened anew. Returns a kiln_status.
extern "C" __attribute__((visibility("default"))) int time_decoding(const char* path, const char* target,
                                                                    const uint8_t* digest, double* times, int turns) {
  kiln::Trust trust{reinterpret_cast<const uint8_t (*)[32]>(digest), 1, "", nullptr, 0};
  for (int turn = 0; turn < turns; ++turn) {
    kiln::Pack* pack;
    if (kiln_status status = open_pack(path, target, trust, &pack)) return status;
    const kiln::ImageRow* image = pack->images;
    for (uint32_t i = 1; i < pack->counts->images; ++i)
      if (pack->groups[pack->images[i].group].decoded > pack->groups[image->group].decoded) image = &pack->images[i];
    uint8_t* code = nullptr;
    double start = milliseconds();
    kiln_status status = read_image(*pack, *image, &code);
    times[turn] = milliseconds() - start;
    free(code);
    close_pack(pack);
    if (status) return status;
  }
  return 0;
}
