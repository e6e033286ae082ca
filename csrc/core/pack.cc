#include "pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "sha256.h"
#include "split.h"
#include "zstd.h"

namespace kiln {
namespace {

constexpr char kMagic[] = "KILNPACK";
constexpr uint32_t kLargestThreads = 1024, kLargestCluster = 16;

kiln_status corrupt(const Pack& pack, const char* what) {
  return fail(KILN_E_PACK_CORRUPT, "%s is corrupt: %s", pack.path, what);
}

// Reads exactly `size` bytes at `offset`; false at an error or the file's end.
bool read_at(int file, void* to, uint64_t size, uint64_t offset) {
  char* p = static_cast<char*>(to);
  while (size) {
    ssize_t n = pread(file, p, size > (1u << 30) ? (1u << 30) : size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n, offset += static_cast<uint64_t>(n), size -= static_cast<uint64_t>(n);
  }
  return true;
}

// Whether a string begins there.
bool is_string(const Pack& pack, uint32_t offset) {
  return offset < pack.counts->string_bytes && (offset == 0 || pack.strings[offset - 1] == 0);
}

// Strings end up in sentences: they must be UTF-8 without control characters (C0, DEL, C1). Newlines only in lists.
bool is_text(const char* text, size_t size, bool list) {
  const unsigned char* p = reinterpret_cast<const unsigned char*>(text);
  for (size_t i = 0; i < size;) {
    unsigned char first = p[i++];
    if (first < 0x80) {
      if ((first < 0x20 && !(list && first == '\n')) || first == 0x7F) return false;
      continue;
    }
    int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    if (first < 0xC2 || first > 0xF4) return false;
    uint32_t point = first & (0x3Fu >> more);
    for (int k = 0; k < more; ++k, ++i) {
      if (i == size || (p[i] & 0xC0) != 0x80) return false;
      point = point << 6 | (p[i] & 0x3Fu);
    }
    constexpr uint32_t kLeast[] = {0xA0, 0x800, 0x10000};
    if (point < kLeast[more - 1] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
  }
  return true;
}

bool is_power_of_two(uint32_t x) { return x && !(x & (x - 1)); }

const char* check_groups(const Pack& pack, uint64_t index_size, uint64_t file_size) {
  uint64_t expected = sizeof(PackHeader) + index_size;
  for (uint32_t i = 0; i < pack.counts->groups; ++i) {
    const GroupRow& group = pack.groups[i];
    if (group.decoded == 0 || group.decoded > kLargestGroup) return "a group is empty or larger than 256 MiB";
    if (group.stored > ZSTD_COMPRESSBOUND(largest_frame(group.decoded)))
      return "a group takes more bytes than its decoded size can need";
    if (group.offset != expected || group.stored == 0 || group.stored > file_size - expected)
      return "a group does not lie where its index says; the file may be truncated";
    expected += group.stored;
  }
  return expected == file_size ? nullptr : "the file is longer than its groups";
}

// Whether the rows of descriptors that an image names, if any, are there. Only NVIDIA has such parameters.
bool has_descriptors(const Pack& pack, const ImageRow& image) {
  if (image.descriptors == 0) return true;
  uint32_t first = image.first_descriptor(), count = image.descriptor_count(), all = pack.counts->descriptors;
  return image.kind != kHsaco && count > 0 && count <= KILN_MAX_DESCRIPTORS && first <= all && count <= all - first;
}

const char* check_descriptors(const Pack& pack) {
  constexpr uint32_t kSpan[] = {0, 32, 64, 128};  // of a swizzle, in bytes; without one any
  for (uint32_t i = 0; i < pack.counts->descriptors; ++i) {
    const DescriptorRow& row = pack.descriptors[i];
    if (row.rank < 1 || row.rank > KILN_MAX_DESCRIPTOR_RANK) return "a descriptor's rank is not 1 to 5";
    uint32_t bytes = element_bytes(row.element_type);
    if (bytes == 0) return "a descriptor's elements are of an unknown type";
    if (row.swizzle >= sizeof kSpan / sizeof kSpan[0]) return "a descriptor's swizzle is unknown";
    for (uint32_t d = 0; d < KILN_MAX_DESCRIPTOR_RANK; ++d)
      if (d < row.rank ? row.box[d] < 1 || row.box[d] > 256 : row.box[d] != 1)
        return "a side of a descriptor's box is not 1 to 256, or is not 1 behind its rank";
    uint32_t inner = row.box[row.rank - 1] * bytes;
    if (inner % 16) return "the rows of a descriptor's box are not a multiple of 16 bytes";
    if (row.swizzle && inner > kSpan[row.swizzle]) return "the rows of a descriptor's box are longer than its swizzle";
    if (row.fill || row.zero) return "a descriptor's row does not have zeros where it must";
  }
  return nullptr;
}

const char* check_images(const Pack& pack) {
  for (uint32_t i = 0; i < pack.counts->images; ++i) {
    const ImageRow& image = pack.images[i];
    if (image.group >= pack.counts->groups) return "an image names a group that does not exist";
    uint32_t decoded = pack.groups[image.group].decoded;
    if (image.bytes == 0 || image.offset > decoded || image.bytes > decoded - image.offset)
      return "an image reaches beyond its group";
    if (!is_string(pack, image.symbol)) return "an image has no symbol";
    if (image.kind < kCubin || image.kind > kPtx) return "an image is of an unknown kind";
    if (image.threads == 0 || image.threads > kLargestThreads) return "an image has an impossible number of threads";
    if (image.clusters == 0 || image.clusters > kLargestCluster) return "an image has an impossible cluster size";
    if (image.scratch && !is_power_of_two(image.scratch_align)) return "an image's scratch has an impossible alignment";
    if (image.scratch_align > (1u << 20)) return "an image's scratch has an impossible alignment";
    if (image.profile_scratch) return "an image uses profile scratch, which releases do not";
    if (!has_descriptors(pack, image)) return "an image names descriptors that do not exist";
  }
  return nullptr;
}

const char* check_kernels(const Pack& pack) {
  const PackCounts& counts = *pack.counts;
  for (uint32_t i = 0; i < counts.kernels; ++i) {
    const KernelRow& kernel = pack.kernels[i];
    if (!is_string(pack, kernel.family) || !is_string(pack, kernel.operation) || !is_string(pack, kernel.kernel) ||
        !is_string(pack, kernel.names))
      return "a kernel has no name";
    if (kernel.first_slot > counts.slots || kernel.slots > counts.slots - kernel.first_slot)
      return "a kernel names slots that do not exist";
    uint64_t per_functional = uint64_t{kernel.configurations} * kernel.specializations;
    if (per_functional == 0 || kernel.slots % per_functional)
      return "a kernel's number of slots is not the product of its dimensions";
  }
  for (uint32_t i = 0; i < counts.slots; ++i) {
    const SlotRow& slot = pack.slots[i];
    if (slot.image != kNone && (slot.image >= counts.images || pack.images[slot.image].kind == kPtx))
      return "a slot's image does not exist";
    if (slot.ptx != kNone && (slot.ptx >= counts.images || pack.images[slot.ptx].kind != kPtx))
      return "a slot's PTX does not exist";
    if (slot.reason != kNone && !is_string(pack, slot.reason)) return "a slot's reason does not exist";
    if (slot.zero) return "a slot's row does not end in zeros";
  }
  return nullptr;
}

// Lays the tables over the index and checks all that they say; the sentence of what is wrong, or nullptr.
const char* parse_index(Pack& pack, uint32_t version, uint64_t size, uint64_t file_size) {
  const PackCounts& counts = *reinterpret_cast<const PackCounts*>(pack.index);
  uint64_t expected = sizeof(PackCounts) + uint64_t{counts.groups} * sizeof(GroupRow) +
                      uint64_t{counts.images} * sizeof(ImageRow) + uint64_t{counts.kernels} * sizeof(KernelRow) +
                      uint64_t{counts.slots} * sizeof(SlotRow) + uint64_t{counts.descriptors} * sizeof(DescriptorRow) +
                      counts.string_bytes;
  if (expected != size) return "its index does not have the size that its counts give";
  const uint8_t* p = pack.index + sizeof(PackCounts);
  pack.counts = &counts;
  pack.groups = reinterpret_cast<const GroupRow*>(p);
  pack.images = reinterpret_cast<const ImageRow*>(pack.groups + counts.groups);
  pack.kernels = reinterpret_cast<const KernelRow*>(pack.images + counts.images);
  pack.slots = reinterpret_cast<const SlotRow*>(pack.kernels + counts.kernels);
  pack.descriptors = reinterpret_cast<const DescriptorRow*>(pack.slots + counts.slots);
  pack.strings = reinterpret_cast<const char*>(pack.descriptors + counts.descriptors);
  if (counts.string_bytes == 0 || pack.strings[counts.string_bytes - 1]) return "its strings have no end";
  if (!is_string(pack, counts.target) || !is_string(pack, counts.release)) return "it names no target or no release";
  if (version < 2 && counts.descriptors) return "it is of format 1 and has descriptors";
  if (const char* wrong = check_groups(pack, size, file_size)) return wrong;
  if (const char* wrong = check_descriptors(pack)) return wrong;
  if (const char* wrong = check_images(pack)) return wrong;
  return check_kernels(pack);
}

// The strings that the tables name, each once however often it is named. Only kernel_row's names are lists.
kiln_status check_strings(const Pack& pack) {
  const PackCounts& counts = *pack.counts;
  uint8_t* lists = allocate<uint8_t>(counts.string_bytes / 8 + 1);  // a bit for each offset
  if (!lists) return out_of_memory();
  auto mark = [lists](uint32_t offset) { lists[offset / 8] |= static_cast<uint8_t>(1u << offset % 8); };
  auto unmark = [lists](uint32_t offset) { lists[offset / 8] &= static_cast<uint8_t>(~(1u << offset % 8)); };
  for (uint32_t i = 0; i < counts.kernels; ++i) mark(pack.kernels[i].names);
  // A list that is named as anything else too is none.
  unmark(counts.target), unmark(counts.release);
  for (uint32_t i = 0; i < counts.images; ++i) unmark(pack.images[i].symbol);
  for (uint32_t i = 0; i < counts.kernels; ++i)
    unmark(pack.kernels[i].family), unmark(pack.kernels[i].operation), unmark(pack.kernels[i].kernel);
  for (uint32_t i = 0; i < counts.slots; ++i)
    if (pack.slots[i].reason != kNone) unmark(pack.slots[i].reason);
  bool sound = true;
  for (uint32_t begin = 0; begin < counts.string_bytes && sound;) {
    size_t size = strlen(pack.strings + begin);
    sound = is_text(pack.strings + begin, size, lists[begin / 8] >> begin % 8 & 1);
    begin += static_cast<uint32_t>(size) + 1;
  }
  free(lists);
  return sound ? KILN_OK : corrupt(pack, "its strings are not text");
}

bool trusted(const uint8_t digest[32], const Trust& trust) {
  for (int32_t i = 0; i < trust.count; ++i)
    if (memcmp(digest, trust.digests[i], 32) == 0) return true;
  return false;
}

// `why`: what is wrong with its signature, where one would do; or "".
kiln_status mismatch(const Pack& pack, const Trust& trust, const char* why) {
  const char* and_so = why[0] ? "; " : "";
  char found[65];
  to_hex(pack.digest, found);
  const char* release = pack.string(pack.counts->release);
  if (trust.count == 0)
    return fail(KILN_E_PACK_MISMATCH,
                "%s (release %s, index digest %s) is not trusted: this library was built without images; give the "
                "digest in kiln_options.trusted_packs to accept the pack%s%s",
                pack.path, release, found, and_so, why);
  char wanted[65];
  to_hex(trust.digests[0], wanted);
  return fail(KILN_E_PACK_MISMATCH,
              "%s is of another release than the library: its release is %s and its index digest %s; the library's "
              "release is %s and wants %s%s%s",
              pack.path, release, found, trust.release, wanted, and_so, why);
}

kiln_status read_index(Pack& pack, const char* target, const Trust& trust) {
  struct stat facts;
  if (fstat(pack.file, &facts) != 0 || !S_ISREG(facts.st_mode))
    return fail(KILN_E_PACK_NOT_FOUND, "%s is not a file", pack.path);
  uint64_t file_size = static_cast<uint64_t>(facts.st_size);
  PackHeader header;
  if (file_size < sizeof header || !read_at(pack.file, &header, sizeof header, 0))
    return corrupt(pack, "it is truncated: shorter than a header");
  if (memcmp(header.magic, kMagic, sizeof header.magic) != 0) return corrupt(pack, "it does not begin with KILNPACK");
  if (header.version < kOldestPackVersion || header.version > kPackVersion)
    return fail(KILN_E_PACK_MISMATCH, "%s is a pack of format %u; Kiln %s reads formats %u to %u", pack.path,
                header.version, KILN_VERSION, kOldestPackVersion, kPackVersion);
  if (header.header_size != sizeof header) return corrupt(pack, "its header states another size of itself than 64");
  if (header.zero) return corrupt(pack, "its header does not end in zeros");
  if (header.index_size < sizeof(PackCounts) || header.index_size > file_size - sizeof header)
    return corrupt(pack, "it is truncated: its index reaches beyond the file");
  if (header.index_size > kLargestIndex) return corrupt(pack, "its index is larger than 64 MiB");
  pack.index = static_cast<uint8_t*>(malloc(header.index_size));
  if (!pack.index) return out_of_memory();
  if (!read_at(pack.file, pack.index, header.index_size, sizeof header))
    return corrupt(pack, "its index cannot be read");
  sha256(pack.index, header.index_size, pack.digest);
  if (memcmp(pack.digest, header.index_digest, 32) != 0) {
    char found[65], stated[65];
    to_hex(pack.digest, found), to_hex(header.index_digest, stated);
    return fail(KILN_E_PACK_CORRUPT, "%s is corrupt: its index has the digest %s, its header states %s", pack.path,
                found, stated);
  }
  // Bounded whatever it says, so an untrusted index may be parsed to name its release; nothing of it is used.
  if (const char* wrong = parse_index(pack, header.version, header.index_size, file_size)) return corrupt(pack, wrong);
  kiln_status status = check_strings(pack);
  if (status != KILN_OK) return status;
  if (!trusted(pack.digest, trust)) {
    if (trust.key_count == 0) return mismatch(pack, trust, "");
    status = check_signature(pack.path, pack.string(pack.counts->release), pack.digest, trust.keys, trust.key_count);
    if (status != KILN_OK) {
      FixedText<kSentenceBytes> why;
      why.add("%s", kiln_error());
      return mismatch(pack, trust, why.c_str());
    }
  }
  if (strcmp(pack.string(pack.counts->target), target) != 0)
    return fail(KILN_E_PACK_MISMATCH, "%s holds images for %s, not for %s", pack.path, pack.string(pack.counts->target),
                target);
  return KILN_OK;
}

// From the bytes of a group, which have their digest, to its images.
kiln_status unpack_group(const Pack& pack, const GroupRow& group, const uint8_t* stored, uint8_t* decoded) {
  // What the frame says of its size is bound before it is believed; an unknown size is the largest of numbers.
  uint64_t frame_size = ZSTD_getFrameContentSize(stored, group.stored);
  if (frame_size > largest_frame(group.decoded) || ZSTD_findFrameCompressedSize(stored, group.stored) != group.stored)
    return corrupt(pack, "a group is not the one zstd frame that its index states");
  uint8_t* frame = allocate<uint8_t>(frame_size);
  uint8_t* work = allocate<uint8_t>(group.decoded + kJoinSlack);
  kiln_status status = KILN_OK;
  if (!frame || !work)
    status = out_of_memory();
  else if (ZSTD_decompress(frame, frame_size, stored, group.stored) != frame_size ||
           !join(frame, frame_size, group.decoded, work, decoded))
    status = corrupt(pack, "a group is not the one zstd frame that its index states");
  free(frame);
  free(work);
  return status;
}

// Decodes a group into pack.decoded. Under pack.lock.
kiln_status decode_group(Pack& pack, uint32_t number) {
  if (pack.decoded && pack.decoded_group == number) return KILN_OK;
  const GroupRow& group = pack.groups[number];
  free(pack.decoded);
  pack.decoded = nullptr;
  uint8_t* stored = allocate<uint8_t>(group.stored);
  uint8_t* decoded = allocate<uint8_t>(group.decoded + kJoinSlack);
  kiln_status status = KILN_OK;
  uint8_t digest[32];
  if (!stored || !decoded) {
    status = out_of_memory();
  } else if (!read_at(pack.file, stored, group.stored, group.offset)) {
    status = corrupt(pack, "it was truncated after it was opened");
  } else if (sha256(stored, group.stored, digest), memcmp(digest, group.digest, 32) != 0) {
    char found[65], stated[65];
    to_hex(digest, found), to_hex(group.digest, stated);
    status = fail(KILN_E_PACK_CORRUPT, "%s is corrupt: group %u has the digest %s, the index states %s", pack.path,
                  number, found, stated);
  } else {
    status = unpack_group(pack, group, stored, decoded);
  }
  free(stored);
  if (status != KILN_OK) {
    free(decoded);
    return status;
  }
  pack.decoded = decoded;
  pack.decoded_group = number;
  return KILN_OK;
}

}  // namespace

kiln_status open_pack(const char* path, const char* target, const Trust& trust, Pack** out) {
  Pack* pack = allocate<Pack>();
  if (!pack) return out_of_memory();
  pack->file = -1;
  pack->path = copy_string(path);
  kiln_status status;
  if (!pack->path) {
    status = out_of_memory();
  } else if ((pack->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0) {
    status = fail(KILN_E_PACK_NOT_FOUND, "%s cannot be opened: %s", path, strerror(errno));
  } else {
    status = read_index(*pack, target, trust);
  }
  if (status != KILN_OK) {
    close_pack(pack);
    return status;
  }
  *out = pack;
  return KILN_OK;
}

void close_pack(Pack* pack) {
  if (pack->file >= 0) close(pack->file);
  free(pack->decoded);
  free(pack->index);
  free(pack->path);
  free(pack);
}

kiln_status read_image(Pack& pack, const ImageRow& image, uint8_t** out) {
  uint8_t* copy = static_cast<uint8_t*>(malloc(image.bytes));
  if (!copy) return out_of_memory();
  {
    Lock lock(pack.lock);
    kiln_status status = decode_group(pack, image.group);
    if (status != KILN_OK) {
      free(copy);
      return status;
    }
    memcpy(copy, pack.decoded + image.offset, image.bytes);
  }
  uint8_t digest[32];
  sha256(copy, image.bytes, digest);
  const char* wrong = nullptr;
  if (memcmp(digest, image.digest, 32) != 0) wrong = "an image does not have the digest that its index states";
  if (image.kind == kPtx && copy[image.bytes - 1] != 0) wrong = "a PTX text has no end";
  if (wrong) {
    free(copy);
    return corrupt(pack, wrong);
  }
  *out = copy;
  return KILN_OK;
}

}  // namespace kiln
