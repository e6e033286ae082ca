// SHA-256 (FIPS 180-4).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kiln {

void sha256(const void* data, size_t size, uint8_t digest[32]);

// Writes 64 hexadecimal digits and a NUL.
void to_hex(const uint8_t digest[32], char text[65]);
// Reads exactly 64 hexadecimal digits.
bool from_hex(const char* text, size_t length, uint8_t digest[32]);

}  // namespace kiln
