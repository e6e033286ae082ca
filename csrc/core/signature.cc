#include "signature.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "monocypher.h"
#include "sha256.h"
#include "sha512.h"

namespace kiln {
namespace {

constexpr size_t kLargestFile = 8192;  // minisign's comments have 1,024 bytes at most
constexpr size_t kSignature = 64;
constexpr char kUntrusted[] = "untrusted comment: ", kTrusted[] = "trusted comment: ";

struct Line {
  const char* text;
  size_t length;

  bool starts_with(const char* words) const {
    return length >= strlen(words) && memcmp(text, words, strlen(words)) == 0;
  }
};

int value_of(char letter) {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char* found = letter ? strchr(kLetters, letter) : nullptr;
  return found ? static_cast<int>(found - kLetters) : -1;
}

// Whether the text is base64 of exactly `size` bytes, in its one spelling: with "=", and zeros in the spare bits.
bool from_base64(const char* text, size_t length, uint8_t* out, size_t size) {
  if (length != (size + 2) / 3 * 4) return false;
  size_t padding = (3 - size % 3) % 3, letters = length - padding;
  for (size_t i = letters; i < length; ++i)
    if (text[i] != '=') return false;
  uint32_t bits = 0;
  int held = 0;
  for (size_t i = 0, at = 0; i < letters; ++i) {
    int value = value_of(text[i]);
    if (value < 0) return false;
    bits = (bits << 6 | static_cast<uint32_t>(value)) & 0xFFFF;
    held += 6;
    if (held >= 8) held -= 8, out[at++] = static_cast<uint8_t>(bits >> held);
  }
  return (bits & ((1u << held) - 1)) == 0;
}

// Whether 32 bytes spell a point canonically, and none of small order. Whatever the sign of x, such a point's y is 0,
// 1, -1, or one of the two of order 8; Monocypher takes these, and numbers from p = 2^255 - 19 on.
bool is_sound_point(const uint8_t point[32]) {
  constexpr uint8_t kOrder8[2][32] = {
      {0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
       0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05},
      {0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
       0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a}};
  uint8_t y[32];
  memcpy(y, point, sizeof y);
  y[31] &= 0x7F;
  bool middle_zero = true, middle_full = true;
  for (int i = 1; i < 31; ++i) middle_zero = middle_zero && y[i] == 0, middle_full = middle_full && y[i] == 0xFF;
  if (middle_zero && y[31] == 0 && y[0] <= 1) return false;
  if (middle_full && y[31] == 0x7F && y[0] >= 0xEC) return false;  // p - 1 and all from p on
  return memcmp(y, kOrder8[0], sizeof y) != 0 && memcmp(y, kOrder8[1], sizeof y) != 0;
}

// Ed25519 (RFC 8032, 5.1.7); the curve is Monocypher's, which refuses an S from the group's order on.
bool verify(const uint8_t key[32], const uint8_t signature[kSignature], const uint8_t* first, const Line& second) {
  if (!is_sound_point(signature)) return false;
  const Span parts[] = {{signature, 32}, {key, 32}, {first, kSignature}, {second.text, second.length}};
  uint8_t digest[64], reduced[32];
  sha512(parts, sizeof parts / sizeof parts[0], digest);
  crypto_eddsa_reduce(reduced, digest);
  return crypto_eddsa_check_equation(signature, key, reduced) == 0;
}

// The lines of a text, at most 5, which would be one too many; the last may lack its end.
int split(const char* text, size_t size, Line lines[5]) {
  int count = 0;
  for (size_t begin = 0; begin < size && count < 5;) {
    const void* end = memchr(text + begin, '\n', size - begin);
    size_t length = end ? static_cast<size_t>(static_cast<const char*>(end) - text) - begin : size - begin;
    lines[count++] = {text + begin, length};
    begin += length + 1;
  }
  return count;
}

kiln_status refuse(const char* path, const char* why) { return fail(KILN_E_PACK_MISMATCH, "%s.minisig %s", path, why); }

// Reads the file; more than kLargestFile bytes count as an error, as all that is not a plain file does.
bool read_file(const char* path, char* text, size_t& size) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  struct stat facts;
  bool sound = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
  size = 0;
  while (sound && size <= kLargestFile) {
    ssize_t n = read(file, text + size, kLargestFile + 1 - size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      sound = n == 0;
      break;
    }
    size += static_cast<size_t>(n);
  }
  close(file);
  return sound && size <= kLargestFile;
}

}  // namespace

bool read_public_key(const char* text, size_t length, PublicKey& key) {
  uint8_t raw[42];
  if (!from_base64(text, length, raw, sizeof raw) || memcmp(raw, "Ed", 2) != 0) return false;
  memcpy(key.id, raw + 2, sizeof key.id);
  memcpy(key.key, raw + 10, sizeof key.key);
  return is_sound_point(key.key);
}

kiln_status check_signature(const char* path, const char* release, const uint8_t index[32], const PublicKey* keys,
                            int32_t count) {
  char name[4200], text[kLargestFile + 1];
  size_t size = 0;
  int n = snprintf(name, sizeof name, "%s.minisig", path);
  if (n < 0 || static_cast<size_t>(n) >= sizeof name || access(name, F_OK) != 0)
    return refuse(path, "does not exist, so no key of kiln_options.trusted_keys vouches for it");
  Line lines[5];
  uint8_t first[10 + kSignature], last[kSignature];
  if (!read_file(name, text, size) || split(text, size, lines) != 4 || !lines[0].starts_with(kUntrusted) ||
      !lines[2].starts_with(kTrusted) || !from_base64(lines[1].text, lines[1].length, first, sizeof first) ||
      !from_base64(lines[3].text, lines[3].length, last, sizeof last) ||
      (memcmp(first, "ED", 2) != 0 && memcmp(first, "Ed", 2) != 0))
    return refuse(path, "is not a signature of minisign's");
  const PublicKey* key = keys;
  while (key < keys + count && memcmp(key->id, first + 2, sizeof key->id) != 0) ++key;
  if (key == keys + count) return refuse(path, "is by none of the keys of kiln_options.trusted_keys");
  Line comment = {lines[2].text + strlen(kTrusted), lines[2].length - strlen(kTrusted)};
  if (!verify(key->key, last, first + 10, comment))
    return refuse(path, "is damaged or forged: its trusted comment is not signed by the key that it names");
  char digest[65], wanted[1024];
  to_hex(index, digest);
  const char* slash = strrchr(path, '/');
  n = snprintf(wanted, sizeof wanted, "kiln pack %s %s %s", release, slash ? slash + 1 : path, digest);
  if (n < 0 || static_cast<size_t>(n) != comment.length || memcmp(wanted, comment.text, comment.length) != 0)
    return refuse(path, "is of another pack: its trusted comment does not name this one's release, file and index");
  return KILN_OK;
}

}  // namespace kiln
