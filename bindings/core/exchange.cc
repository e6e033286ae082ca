// A call of plain attention costs a few microseconds of the host, most of it the driver's. Through a framework's
// dispatcher it would cost that twice; here arrays are looked at where they lie, by the table of C functions that their
// type offers. It takes the calls that need nothing else, and leaves all others to whoever asked.
#include "exchange.h"

#include <nanobind/stl/string.h>

#include "dlpack.h"
#include "kiln/flash.h"

namespace kiln_python {
namespace {

constexpr int kLeft = -1;                                                    // not a call for here
constexpr int kArrays = 4;                                                   // q, k, v, out
enum { kCausal = 1, kBottomRight = 2, kRowsFirst = 4, kEqualHeads = 1024 };  // as bindings/torch/call.h has them

// The table of the type that was asked for last; with the GIL.
const DlExchange* exchange_of(PyTypeObject* type) {
  static PyTypeObject* last = nullptr;  // borrowed for comparing alone
  static const DlExchange* table = nullptr;
  if (type == last) return table;
  last = nullptr;
  table = nullptr;
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), kDlExchangeAttribute);
  if (capsule && PyCapsule_IsValid(capsule, kDlExchangeName)) {
    auto* found = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule, kDlExchangeName));
    if (found->major == kDlMajor && found->view && found->current_stream) table = found;
  }
  Py_XDECREF(capsule);
  PyErr_Clear();
  if (table) last = type;  // whoever has a table is no temporary type
  return table;
}

kiln_dtype dtype_of(const DlDataType& dtype) {
  if (dtype.lanes != 1) return 0;
  if (dtype.code == kDlBfloat && dtype.bits == 16) return KILN_BF16;
  if (dtype.code == kDlFloat && dtype.bits == 16) return KILN_FP16;
  return dtype.code == kDlFloat && dtype.bits == 32 ? KILN_FP32 : 0;
}

// [batch, heads, rows, head_dim], the last dimension contiguous.
bool describe(const DlTensor& from, bool rows_first, kiln_tensor* to) {
  if (from.rank != 4 || !from.strides || from.strides[3] != 1 || !(to->dtype = dtype_of(from.dtype))) return false;
  to->data = static_cast<char*>(from.data) + from.byte_offset;
  to->rank = 4;
  for (int i = 0; i < 4; ++i) {
    int other = rows_first && (i == 1 || i == 2) ? 3 - i : i;
    to->sizes[i] = from.sizes[other];
    to->strides[i] = from.strides[other];
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

// Looks at the arrays; false, without a Python error, where it cannot be done here.
bool look(const nb::handle (&arrays)[kArrays], bool rows_first, kiln_tensor* views, kiln_queue* queue) {
  PyTypeObject* type = Py_TYPE(arrays[0].ptr());
  const DlExchange* table = exchange_of(type);
  if (!table) return false;
  DlTensor seen[kArrays];
  bool is_taken = true;
  for (int i = 0; i < kArrays && is_taken; ++i)
    is_taken = Py_TYPE(arrays[i].ptr()) == type && table->view(arrays[i].ptr(), &seen[i]) == 0 &&
               seen[i].device.type == seen[0].device.type && seen[i].device.id == seen[0].device.id &&
               describe(seen[i], rows_first, &views[i]);
  is_taken = is_taken && queue_of(*table, seen[0].device, queue);
  PyErr_Clear();
  return is_taken;
}

int attend(uintptr_t runtime, nb::handle q, nb::handle k, nb::handle v, nb::handle out, double scale, int flags) {
  kiln_tensor views[kArrays] = {};
  kiln_queue queue;
  const float sm_scale = static_cast<float>(scale);
  if (sm_scale == 0 && scale != 0) return kLeft;  // it would be the default
  if (!look({q, k, v, out}, flags & kRowsFirst, views, &queue)) return kLeft;
  if ((flags & kEqualHeads) && views[0].sizes[1] != views[1].sizes[1]) return kLeft;
  // An out that was made like q lies as it is promised only if q's batches are outermost, and nothing is repeated.
  const kiln_tensor& query = views[0];
  if (query.strides[0] < query.strides[1] || query.strides[0] < query.strides[2]) return kLeft;
  for (int i = 0; i < 3; ++i)
    if (query.sizes[i] > 1 && query.strides[i] <= 0) return kLeft;
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  params.q = &views[0], params.k = &views[1], params.v = &views[2], params.out = &views[3];
  params.sm_scale = sm_scale;
  params.causal = flags & kCausal;
  params.bottom_right = flags & kBottomRight;
  nb::gil_scoped_release released;
  return kiln_attn_fwd(reinterpret_cast<kiln_t>(runtime), &queue, &params);
}

}  // namespace

void define_exchange(nb::module_& module) {
  module.def("attend", &attend, nb::arg("runtime"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
             nb::arg("scale"), nb::arg("flags"),
             nb::sig("def attend(runtime: int, q: object, k: object, v: object, out: object, scale: float, flags: int) "
                     "-> int"),
             "Plain attention on the current stream of the arrays' library, if their type lets C look at them.\n"
             "\n"
             "Flags: 1 causal, 2 bottom right, 4 rows first, 1024 only if q and k have as many heads. Returns 0 once "
             "it is enqueued, -1 if it is no call for\n"
             "here, or the status of what failed; nothing was launched then, and nothing is raised.");
}

}  // namespace kiln_python
