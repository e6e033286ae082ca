#include "error.h"

#include <stdio.h>
#include <string.h>

#include "kiln/family.h"

namespace kiln {
namespace {

// Plain and zero-initialised: touched on failure only, no destructor, so dlclose() can unload the library.
thread_local char sentence[kSentenceBytes];

}  // namespace

kiln_status fail(kiln_status status, const char* format, ...) {
  FixedText<kSentenceBytes> text;
  va_list arguments;
  va_start(arguments, format);
  text.add_list(format, arguments);
  va_end(arguments);
  memcpy(sentence, text.c_str(), text.length() + 1);
  return status;
}

void Text::add(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add_list(format, arguments);
  va_end(arguments);
}

void Text::add_list(const char* format, va_list arguments) {
  if (cut_) return;
  size_t room = capacity_ - length_ - 1;
  int n = vsnprintf(buffer_ + length_, room + 1, format, arguments);
  if (n < 0) return;
  if (static_cast<size_t>(n) <= room) {
    length_ += static_cast<size_t>(n);
    return;
  }
  cut_ = true;
  length_ = capacity_ > 4 ? capacity_ - 4 : 0;
  // Not amid the bytes of one character.
  while (length_ && (static_cast<unsigned char>(buffer_[length_]) & 0xC0) == 0x80) --length_;
  for (int dots = 0; dots < 3 && length_ + 1 < capacity_; ++dots) buffer_[length_++] = '.';
  buffer_[length_] = 0;
}

namespace {
struct DtypeRow {
  int32_t dtype, bytes;
  const char* name;
};
constexpr DtypeRow kDtypes[] = {
    {KILN_FP32, 4, "fp32"},       {KILN_FP16, 2, "fp16"},       {KILN_BF16, 2, "bf16"},   {KILN_FP64, 8, "fp64"},
    {KILN_FP8E4M3, 1, "fp8e4m3"}, {KILN_FP8E5M2, 1, "fp8e5m2"}, {KILN_INT8, 1, "int8"},   {KILN_INT16, 2, "int16"},
    {KILN_INT32, 4, "int32"},     {KILN_INT64, 8, "int64"},     {KILN_UINT8, 1, "uint8"}, {KILN_UINT16, 2, "uint16"},
    {KILN_UINT32, 4, "uint32"},   {KILN_UINT64, 8, "uint64"},   {KILN_BOOL, 1, "bool"},
};
}  // namespace

const char* dtype_name(int64_t dtype) {
  for (const DtypeRow& row : kDtypes)
    if (row.dtype == dtype) return row.name;
  return nullptr;
}

int32_t dtype_bytes(int64_t dtype) {
  for (const DtypeRow& row : kDtypes)
    if (row.dtype == dtype) return row.bytes;
  return 0;
}

}  // namespace kiln

using kiln::fail;

extern "C" {

const char* kiln_error(void) { return kiln::sentence; }

const char* kiln_version(void) { return KILN_VERSION; }

const char* kiln_status_name(kiln_status status) {
  switch (status) {
    case KILN_OK:
      return "KILN_OK";
    case KILN_E_ARGUMENT:
      return "KILN_E_ARGUMENT";
    case KILN_E_UNSUPPORTED:
      return "KILN_E_UNSUPPORTED";
    case KILN_E_NO_DEVICE:
      return "KILN_E_NO_DEVICE";
    case KILN_E_DRIVER:
      return "KILN_E_DRIVER";
    case KILN_E_PACK_NOT_FOUND:
      return "KILN_E_PACK_NOT_FOUND";
    case KILN_E_PACK_MISMATCH:
      return "KILN_E_PACK_MISMATCH";
    case KILN_E_PACK_CORRUPT:
      return "KILN_E_PACK_CORRUPT";
    case KILN_E_WORKSPACE:
      return "KILN_E_WORKSPACE";
    case KILN_E_NEWER_CALLER:
      return "KILN_E_NEWER_CALLER";
    case KILN_E_FORKED:
      return "KILN_E_FORKED";
    case KILN_E_OUT_OF_MEMORY:
      return "KILN_E_OUT_OF_MEMORY";
    case KILN_E_NOT_FOUND:
      return "KILN_E_NOT_FOUND";
    case KILN_E_QUEUE:
      return "KILN_E_QUEUE";
    case KILN_E_RANGE:
      return "KILN_E_RANGE";
    case KILN_E_RESOURCES:
      return "KILN_E_RESOURCES";
    case KILN_E_FAMILY:
      return "KILN_E_FAMILY";
    default:
      return "KILN_E_?";
  }
}

kiln_status kiln_set_error(kiln_status status, const char* sentence) {
  return fail(status, "%s", sentence ? sentence : "");
}

kiln_status kiln_read_struct(void* to, uint64_t known, const void* from, const char* name) {
  // A structure larger than this is a `size` that was never set; reading that far could fault.
  constexpr uint64_t kLargest = 4096;
  if (!from) return fail(KILN_E_ARGUMENT, "%s is NULL", name);
  uint64_t size;
  memcpy(&size, from, sizeof size);
  if (size == known) {
    memcpy(to, from, known);
    return KILN_OK;
  }
  if (size < sizeof size || size % 8 || size > kLargest)
    return fail(KILN_E_ARGUMENT, "%s.size is %llu; initialise the structure with its INIT macro", name,
                static_cast<unsigned long long>(size));
  const unsigned char* bytes = static_cast<const unsigned char*>(from);
  for (uint64_t i = known; i < size; ++i)
    if (bytes[i])
      return fail(KILN_E_NEWER_CALLER,
                  "%s has a field at byte %llu that Kiln %s does not know; use the library that the caller's headers "
                  "came with, or leave the field zero",
                  name, static_cast<unsigned long long>(i), KILN_VERSION);
  memcpy(to, from, size < known ? size : known);
  memcpy(to, &known, sizeof known);
  return KILN_OK;
}

}  // extern "C"
