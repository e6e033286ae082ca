// Signatures beside packs, in minisign's format (docs/trust.md), by keys that the caller trusts.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kiln/kiln.h"

namespace kiln {

// A public key; `id` tells keys apart and proves nothing.
struct PublicKey {
  uint8_t id[8];
  uint8_t key[32];
};

// Reads the line of base64 in a public key's file, 56 letters. False if it is none, or a key that is not spelled
// canonically or of small order, which would accept signatures of anything.
bool read_public_key(const char* text, size_t length, PublicKey& key);

// Whether `<path>.minisig` has a trusted comment, signed by one of the keys, that says: the pack of this file name, of
// `release`, has an index of this digest. The rest of the pack hangs from its index, so its bytes are not read here,
// and the signature of the whole file, which minisign and `kiln verify` check, is not needed. If not,
// KILN_E_PACK_MISMATCH with the reason.
kiln_status check_signature(const char* path, const char* release, const uint8_t index[32], const PublicKey* keys,
                            int32_t count);

}  // namespace kiln
