#include "options.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "memory.h"
#include "sha256.h"

namespace kiln {
namespace {

kiln_status read_trusted(const char* text, Options& options) {
  size_t most = (strlen(text) + 1) / 65 + 1;
  options.trusted = reinterpret_cast<uint8_t (*)[32]>(allocate<uint8_t>(most * 32));
  if (!options.trusted) return out_of_memory();
  while (*text) {
    size_t length = strcspn(text, ",");
    if (!from_hex(text, length, options.trusted[options.trusted_count]))
      return fail(
          KILN_E_ARGUMENT,
          "kiln_options.trusted_packs: \"%.*s\" is not a digest; it must be 64 hexadecimal digits, several of them "
          "separated by ','",
          static_cast<int>(length < 80 ? length : 80), text);
    ++options.trusted_count;
    text += length;
    if (*text) ++text;
  }
  return KILN_OK;
}

kiln_status read_keys(const char* text, Options& options) {
  options.keys = allocate<PublicKey>(strlen(text) / 57 + 1);
  if (!options.keys) return out_of_memory();
  while (*text) {
    size_t length = strcspn(text, ",");
    if (!read_public_key(text, length, options.keys[options.key_count]))
      return fail(
          KILN_E_ARGUMENT,
          "kiln_options.trusted_keys: \"%.*s\" is not a public key of minisign's; it must be the second line of "
          "a key's file, 56 letters, several of them separated by ','",
          static_cast<int>(length < 80 ? length : 80), text);
    ++options.key_count;
    text += length;
    if (*text) ++text;
  }
  return KILN_OK;
}

kiln_status copy(const char* text, char** out) {
  if (!text) return KILN_OK;
  *out = copy_string(text);
  return *out ? KILN_OK : out_of_memory();
}

}  // namespace

kiln_status read_options(const kiln_options& from, Options& to) {
  if (from.reserved0) return fail(KILN_E_NEWER_CALLER, "kiln_options.reserved0 is not zero");
  to.log = from.log;
  to.log_user = from.log_user;
  to.log_level = from.log_level;
  to.resolve = from.resolve;
  to.resolve_user = from.resolve_user;
  kiln_status status = copy(from.pack_path, &to.pack_path);
  if (status == KILN_OK) status = copy(secure_getenv("KILN_PACK_PATH"), &to.environment);
  if (status == KILN_OK && from.trusted_packs) status = read_trusted(from.trusted_packs, to);
  if (status == KILN_OK && from.trusted_keys) status = read_keys(from.trusted_keys, to);
  return status;
}

void free_options(Options& options) {
  free(options.pack_path);
  free(options.environment);
  free(options.trusted);
  free(options.keys);
}

void log(const Options& options, int32_t level, const char* format, ...) {
  if (!options.log || level > options.log_level) return;
  FixedText<kSentenceBytes> text;
  va_list arguments;
  va_start(arguments, format);
  text.add_list(format, arguments);
  va_end(arguments);
  options.log(level, text.c_str(), options.log_user);
}

}  // namespace kiln
