#include "exchange.h"

#include <algorithm>

namespace kiln_python {
namespace {

kiln_dtype dtype_of(const DlDataType& dtype) {
  if (dtype.lanes != 1) return 0;
  if (dtype.code == kDlBfloat && dtype.bits == 16) return KILN_BF16;
  if (dtype.code == kDlFloat && dtype.bits == 16) return KILN_FP16;
  return dtype.code == kDlFloat && dtype.bits == 32 ? KILN_FP32 : 0;
}

}  // namespace

const DlExchange* exchange_of(nb::handle type) {
  nb::object capsule = nb::getattr(type, kDlExchangeAttribute, nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kDlExchangeName)) return nullptr;
  auto* table = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule.ptr(), kDlExchangeName));
  return table->major == kDlMajor && table->view && table->current_stream ? table : nullptr;
}

bool describe(const DlTensor& from, bool rows_first, kiln_tensor* to) {
  if (from.rank != 4 || !from.strides || from.strides[3] != 1 || !(to->dtype = dtype_of(from.dtype))) return false;
  to->data = static_cast<char*>(from.data) + from.byte_offset;
  to->rank = 4;
  for (int i = 0; i < 4; ++i) {
    to->sizes[i] = from.sizes[place_of(i, rows_first)];
    to->strides[i] = from.strides[place_of(i, rows_first)];
  }
  return true;
}

bool queue_of(const DlExchange& table, const DlDevice& device, kiln_queue* out) {
  if (device.type != kDlCuda && device.type != kDlRocm) return false;
  void* stream = nullptr;
  if (table.current_stream(device.type, device.id, &stream)) return false;
  kiln_queue queue = KILN_QUEUE_INIT(device.type == kDlRocm ? KILN_VENDOR_AMD : KILN_VENDOR_NVIDIA, stream);
  queue.device = device.id;
  *out = queue;
  return true;
}

bool describe_places(const DlTensor& from, int32_t rank, kiln_tensor* to) {
  if (from.rank != rank || !from.strides || from.dtype.code != kDlInt || from.dtype.bits != 32) return false;
  to->data = static_cast<char*>(from.data) + from.byte_offset;
  to->dtype = KILN_INT32;
  to->rank = rank;
  std::copy_n(from.sizes, rank, to->sizes);
  std::copy_n(from.strides, rank, to->strides);
  return true;
}

}  // namespace kiln_python
