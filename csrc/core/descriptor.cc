#include "descriptor.h"

#include "dispatch.h"

namespace kiln {
namespace {

constexpr int64_t kAddressMultiple = 16;
constexpr int64_t kStrideLimit = int64_t{1} << 40;  // bytes

// The encoded descriptors of the calling thread: sets of a few, in each of which the oldest makes room. Plain and
// zero-initialised, like error.cc's sentence; no rank is 0, so an empty place is no descriptor. A map is a function of
// its key alone, so that nothing of it ever goes stale: not by fork(), not where an address is used again.
constexpr uint32_t kSets = 8, kWays = 4;
struct Cache {
  Descriptor places[kSets][kWays];
  uint8_t oldest[kSets];
};
thread_local Cache cache;

uint32_t set_of(const DescriptorKey& key) {
  uint64_t mixed = key.address / kAddressMultiple;
  mixed = mixed * 31 + static_cast<uint64_t>(key.strides[0]);
  mixed = mixed * 31 + static_cast<uint32_t>(key.sizes[0]);
  mixed = mixed * 31 + (uint32_t{key.box[0]} << 16 | key.box[1]);
  return static_cast<uint32_t>(mixed * 0x9E3779B97F4A7C15u >> 32) % kSets;
}

bool equal(const DescriptorKey& a, const DescriptorKey& b) {
  return a.address == b.address && memcmp(&a, &b, sizeof a) == 0;
}

// kPassedOver where the driver cannot describe the tensor. Its sizes are still those of the call.
kiln_status judge(const DescriptorKey& key, const int64_t* sizes, uint32_t element, PassedOver& why) {
  auto lacks = [&why](Lack lack, int32_t dimension, int64_t value) {
    why.lack = lack, why.dimension = dimension, why.value = value;
    return kPassedOver;
  };
  if (key.address % kAddressMultiple) return lacks(Lack::kAddress, 0, static_cast<int64_t>(key.address));
  for (int32_t d = 0; d < key.rank; ++d)
    if (sizes[d] < 1 || sizes[d] > INT32_MAX) return lacks(Lack::kSize, d, sizes[d]);
  int32_t inner = key.rank - 1;
  if (key.strides[inner] != 1) return lacks(Lack::kInnerStride, inner, key.strides[inner]);
  // The copy engine writes 16 bytes at a time: of a row that ends within them it overwrites what is behind its end.
  if (sizes[inner] * element % kAddressMultiple) return lacks(Lack::kInnerSize, inner, sizes[inner]);
  for (int32_t d = 0; d < inner; ++d) {
    int64_t stride = key.strides[d];
    // The first two bound the product.
    if (stride < 0 || stride >= kStrideLimit || stride * element >= kStrideLimit || stride * element % kAddressMultiple)
      return lacks(Lack::kStride, d, stride);
  }
  return KILN_OK;
}

// Reads one descriptor's tensor and the image's facts into the key.
kiln_status read_tensor(const Plan& plan, const kiln_descriptor_table& table, const DescriptorRow& row, int64_t address,
                        DescriptorKey& key, int64_t* sizes) {
  int32_t broken = 0;
  memset(&key, 0, sizeof key);
  key.address = static_cast<uint64_t>(address);
  key.device = plan.device->ordinal;
  key.rank = static_cast<uint8_t>(row.rank);
  key.element_type = static_cast<uint8_t>(row.element_type);
  key.swizzle = static_cast<uint8_t>(row.swizzle);
  for (int32_t d = 0; d < table.rank; ++d) {
    sizes[d] = table.sizes[d](plan.v, &broken);
    key.sizes[d] = static_cast<int32_t>(sizes[d]);
    key.strides[d] = table.strides[d](plan.v, &broken);
    key.box[d] = static_cast<uint16_t>(row.box[d]);
  }
  return broken ? fault(plan, "the descriptor of", table.argument) : KILN_OK;
}

kiln_status mismatch(const Plan& plan, const KernelPlan& kernel, const char* what) {
  const Pack& pack = *plan.binding->pack;
  return fail(KILN_E_PACK_CORRUPT, "%s: the descriptors of %s differ from those in the tables of kernel %s in %s",
              pack.path, pack.string(kernel.image->symbol), FullName(*kernel.table).c_str(), what);
}

}  // namespace

kiln_status describe(Plan& plan, const KernelPlan& kernel, const int64_t* values, PassedOver& why) {
  const ImageRow& image = *kernel.image;
  const kiln_operation_table& op = *plan.operation->table;
  if (image.descriptor_count() != static_cast<uint32_t>(kernel.table->descriptor_count))
    return mismatch(plan, kernel, "their number");
  const DescriptorRow* rows = plan.binding->pack->descriptors + image.first_descriptor();
  int32_t i = 0;  // of the descriptors
  for (int32_t p = 0; p < kernel.table->parameter_count; ++p) {
    if (kernel.table->parameters[p].type != KILN_PARAMETER_DESCRIPTOR) continue;
    const kiln_descriptor_table& table = kernel.table->descriptors[i];
    if (rows[i].rank != static_cast<uint32_t>(table.rank)) return mismatch(plan, kernel, "a rank");
    int64_t dtype = table.dtype >= 0 ? table.dtype : plan.v[op.choices[-1 - table.dtype].index];
    uint32_t element = element_bytes(rows[i].element_type);
    if (element != static_cast<uint32_t>(dtype_bytes(dtype))) return mismatch(plan, kernel, "the size of an element");
    int64_t sizes[KILN_MAX_DESCRIPTOR_RANK];
    DescriptorKey& key = plan.descriptors[kernel.first_descriptor + i].key;
    why.descriptor = i;
    kiln_status status = read_tensor(plan, table, rows[i], values[p], key, sizes);
    if (status == KILN_OK) status = judge(key, sizes, element, why);
    if (status != KILN_OK) return status;
    ++i;
  }
  return KILN_OK;
}

kiln_status encode(Driver& driver, const char* argument, Descriptor& descriptor) {
  Cache& mine = cache;
  uint32_t set = set_of(descriptor.key);
  for (const Descriptor& known : mine.places[set])
    if (equal(known.key, descriptor.key)) {
      memcpy(descriptor.map, known.map, kMapBytes);
      return KILN_OK;
    }
  kiln_status status = driver.calls->encode(driver, argument, descriptor);
  if (status != KILN_OK) return status;
  mine.places[set][mine.oldest[set]] = descriptor;
  mine.oldest[set] = static_cast<uint8_t>((mine.oldest[set] + 1) % kWays);
  return KILN_OK;
}

}  // namespace kiln
