#include "refusal.h"

#include <stdio.h>
#include <string.h>

#include <atomic>

#include "fill.h"
#include "kiln/family.h"
#include "open.h"

namespace kiln_aotriton {
namespace {

constexpr size_t kSentenceBytes = 2048;  // as libkiln's
constexpr int kMostSentences = 64;       // that are said

// Those that were said, as numbers that stand for them.
std::atomic<uint64_t> said[kMostSentences];
std::atomic<bool> is_full;

// FNV-1a; never 0.
uint64_t number_of(const char* text) {
  uint64_t number = 0xcbf29ce484222325u;
  for (; *text; ++text) number = (number ^ static_cast<unsigned char>(*text)) * 0x100000001b3u;
  return number ? number : 1;
}

// Each line goes out in one piece: stderr has no buffer of its own, and is locked meanwhile.
void say_once(const char* line) {
  const uint64_t number = number_of(line);
  for (std::atomic<uint64_t>& place : said) {
    uint64_t found = 0;
    if (place.compare_exchange_strong(found, number, std::memory_order_relaxed)) {
      fprintf(stderr, "%s\n", line);
      return;
    }
    if (found == number) return;
  }
  if (!is_full.exchange(true, std::memory_order_relaxed))
    fprintf(stderr,
            "kiln: %d different errors have been printed; later ones are available from kiln_aotriton_error() only\n",
            kMostSentences);
}

// Why outputs were not filled; "" if they were.
void fill_all(void* stream, const kiln_tensor* const* outputs, int count, char (&why)[160]) {
  Session session;
  why[0] = 0;
  if (enter(&session) != hipSuccess) {
    snprintf(why, sizeof why, "no driver is loaded");
    return;
  }
  const Driver& driver = session.machine->driver;
  if (device_of(driver, stream) < 0) {
    snprintf(why, sizeof why, "the stream's device is unknown");
    return;
  }
  for (int i = 0; i < count; ++i) {  // the others are filled all the same
    Pieces pieces;
    if (!outputs[i] || !outputs[i]->data) continue;
    if (!find_pieces(*outputs[i], &pieces))
      snprintf(why, sizeof why, "one has an invalid dtype, sizes or strides");
    else if (int result = fill(driver, pieces, stream))
      snprintf(why, sizeof why, "the %s returned %d", driver.vendor == KILN_VENDOR_AMD ? "HIP runtime" : "CUDA driver",
               result);
  }
}

}  // namespace

hipError_t give_up(const char* function, hipError_t error, void* stream, const kiln_tensor* const* outputs, int count) {
  char sentence[kSentenceBytes], line[kSentenceBytes + 256], why[160] = "its arguments cannot be read";
  snprintf(sentence, sizeof sentence, "%s", kiln_error());
  if (count) fill_all(stream, outputs, count, why);
  if (why[0]) {
    size_t length = strlen(sentence);
    snprintf(sentence + length, sizeof sentence - length, "; its outputs are not filled with NaN: %s", why);
  }
  kiln_set_error(KILN_E_ARGUMENT, sentence);  // for its text; the status is what it returns, which is not needed here
  snprintf(line, sizeof line, "kiln: AOTriton's %s failed%s: %s", function,
           why[0] ? "" : ", and its outputs are filled with NaN", sentence);
  say_once(line);
  return error;
}

hipError_t refuse_version(const char* function, int32_t params_version, const Interface& known) {
  char sentence[256];
  snprintf(sentence, sizeof sentence,
           "aotriton: params_version is %d, but this library stands for AOTriton %u.%u, whose is %d: the caller was "
           "compiled with the headers of another version of AOTriton, and needs the library of that version",
           params_version, known.major, known.minor, known.params_version);
  kiln_set_error(KILN_E_NEWER_CALLER, sentence);
  return give_up(function, hipErrorInvalidSymbol, nullptr, nullptr, 0);
}

}  // namespace kiln_aotriton
