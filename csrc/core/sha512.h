// SHA-512 (FIPS 180-4), which Ed25519 hashes with.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kiln {

struct Span {
  const void* data;
  size_t size;
};

// Of the parts one after another, together below 2^61 bytes.
void sha512(const Span* parts, int count, uint8_t digest[64]);

}  // namespace kiln
