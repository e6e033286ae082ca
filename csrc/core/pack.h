// Reads packs. The grammar, little-endian (docs/formats.md, 'Packs', says why; the writer is
// kiln_build.artifacts.pack):
//
//   pack    = header index group*
//   header  = "KILNPACK" version:u32 header_size:u32=64 index_size:u64 index_digest:byte[32] zero:u64
//                                   ; version 1, or 2 where there are descriptor_rows
//   index   = counts group_row* image_row* kernel_row* slot_row* descriptor_row* string*
//   counts  = groups:u32 images:u32 kernels:u32 slots:u32 string_bytes:u32 target:str release:str descriptors:u32
//   group   = frame                 ; one zstd frame of one (split.h has its grammar)
//   group_row  = offset:u64 stored:u32 decoded:u32 digest:byte[32]
//   image_row  = group:u32 offset:u32 bytes:u32 symbol:str kind:u32 threads:u32 shared:u32 registers:u32 spills:u32
//                stack:u32 parameters:u32 scratch:u32 scratch_align:u32 profile_scratch:u32 clusters:u32
//                descriptors:u32 digest:byte[32]
//                                   ; descriptors: 16 * the first descriptor_row + their number, in the order of the
//                                   ; parameters; 0: none. A descriptor of rank r is 1 + 2 * r of the parameters
//   kernel_row = family:str operation:str kernel:str first_slot:u32 slots:u32 configurations:u32 specializations:u32
//                names:str layout:byte[32]
//   slot_row   = image:u32 ptx:u32 reason:str zero:u32 key:byte[32]
//   descriptor_row = rank:u32 element_type:u32 swizzle:u32 fill:u32=0 box:u32[5] zero:u32
//                                   ; element_type: a CUtensorMapDataType; swizzle: a CUtensorMapSwizzle;
//                                   ; box: elements, the outermost dimension first, 1 behind the rank
//   str     = u32                   ; offset into the strings of a NUL-terminated UTF-8 text, or NONE; a text is a line
//                                   ; without control characters, but for the newlines of `names`
//   NONE    = 0xFFFFFFFF
//
// The structures below are those rows as they lie in the index. Everything that they say is checked when the pack is
// opened, once: the holder of a Pack may follow its offsets.
#pragma once

#include <stdint.h>

#include "kiln/family.h"
#include "memory.h"
#include "signature.h"

namespace kiln {

constexpr uint32_t kOldestPackVersion = 1, kPackVersion = 2;
constexpr uint32_t kNone = 0xFFFFFFFFu;
// What no sound pack comes near; it bounds what a corrupt one can make us allocate.
constexpr uint64_t kLargestIndex = 1ull << 26;
constexpr uint32_t kLargestGroup = 1u << 28;
// Triton's own, behind those that are the tables': global scratch and profile scratch.
constexpr uint32_t kHiddenParameters = 2;
enum ImageKind : uint32_t { kCubin = 1, kHsaco = 2, kPtx = 3 };

struct PackHeader {
  char magic[8];
  uint32_t version, header_size;
  uint64_t index_size;
  uint8_t index_digest[32];
  uint64_t zero;
};

struct PackCounts {
  uint32_t groups, images, kernels, slots, string_bytes, target, release, descriptors;
};

struct GroupRow {
  uint64_t offset;
  uint32_t stored, decoded;
  uint8_t digest[32];
};

struct ImageRow {
  uint32_t group, offset, bytes, symbol, kind, threads, shared, registers, spills, stack, parameters, scratch;
  uint32_t scratch_align, profile_scratch, clusters, descriptors;
  uint8_t digest[32];

  uint32_t first_descriptor() const { return descriptors / 16; }
  uint32_t descriptor_count() const { return descriptors % 16; }
};

struct KernelRow {
  uint32_t family, operation, kernel, first_slot, slots, configurations, specializations, names;
  uint8_t layout[32];
};

struct SlotRow {
  uint32_t image, ptx, reason, zero;
  uint8_t key[32];
};

struct DescriptorRow {
  uint32_t rank, element_type, swizzle, fill;
  uint32_t box[KILN_MAX_DESCRIPTOR_RANK];
  uint32_t zero;
};

static_assert(sizeof(PackHeader) == 64 && sizeof(PackCounts) == 32 && sizeof(GroupRow) == 48, "the grammar");
static_assert(sizeof(ImageRow) == 96 && sizeof(KernelRow) == 64 && sizeof(SlotRow) == 48, "the grammar");
static_assert(sizeof(DescriptorRow) == 40, "the grammar");

// Bytes of an element of a CUtensorMapDataType; 0 for one that no image is made with.
constexpr uint32_t element_bytes(uint32_t element_type) {
  constexpr uint8_t kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  return element_type < sizeof kBytes ? kBytes[element_type] : 0;
}

// An open pack: its checked index in memory, its groups still in the file.
struct Pack {
  Pack* next;
  char* path;
  int file;
  uint8_t digest[32];  // of the index
  uint8_t* index;
  const PackCounts* counts;
  const GroupRow* groups;
  const ImageRow* images;
  const KernelRow* kernels;
  const SlotRow* slots;
  const DescriptorRow* descriptors;
  const char* strings;

  Mutex lock;        // of what follows
  uint8_t* decoded;  // the group decoded last, or nullptr
  uint32_t decoded_group;

  // nullptr for NONE.
  const char* string(uint32_t offset) const { return offset == kNone ? nullptr : strings + offset; }
};

// Digests of indices that may be used, and keys by which a signature beside a pack may be.
struct Trust {
  const uint8_t (*digests)[32];
  int32_t count;
  const char* release;  // of the library, for the sentence of a mismatch
  const PublicKey* keys;
  int32_t key_count;
};

// Opens the pack at `path`, for `target`. KILN_E_PACK_NOT_FOUND: it cannot be read; KILN_E_PACK_MISMATCH: sound, but
// not trusted or for another target; KILN_E_PACK_CORRUPT: anything else that is wrong with it.
kiln_status open_pack(const char* path, const char* target, const Trust& trust, Pack** out);
void close_pack(Pack* pack);

// The code object of an image in memory of its own, which the caller frees. Its group's digest is checked before the
// group is decoded, and the image's own before it is given out. Threads: any.
kiln_status read_image(Pack& pack, const ImageRow& image, uint8_t** out);

}  // namespace kiln
