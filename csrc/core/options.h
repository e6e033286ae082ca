// What kiln_open was told, as all below it reads it.
#pragma once

#include <stdint.h>

#include "kiln/kiln.h"
#include "signature.h"

namespace kiln {

struct Options {
  char* pack_path;    // or nullptr
  char* environment;  // KILN_PACK_PATH at kiln_open, or nullptr
  uint8_t (*trusted)[32];
  int32_t trusted_count;
  kiln_log_fn log;
  void* log_user;
  int32_t log_level;
  kiln_resolve_fn resolve;
  void* resolve_user;
  PublicKey* keys;
  int32_t key_count;
};

// Copies all of it into `to`, which is zeroed; what is there after a failure is free_options' too.
kiln_status read_options(const kiln_options& from, Options& to);

void free_options(Options& options);

__attribute__((format(printf, 3, 4))) void log(const Options& options, int32_t level, const char* format, ...);

}  // namespace kiln
