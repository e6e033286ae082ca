#include "runtime.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <string.h>

#include <map>
#include <optional>
#include <set>

#include "tensor.h"

namespace kiln_python {
namespace {

// A kiln_t, which closes when the last call on it has returned after close().
struct Handle {
  kiln_t kiln = nullptr;
  bool owned = true, is_closed = false;
  nb::object log;
};

// One that is never closed stays open, and its log with it: kernels of its images may be running, others may know the
// handle, and at the process's end a driver may be gone before we are.
void let_go(Handle* handle) {
  if (handle->owned && !handle->is_closed) return;
  if (handle->owned) kiln_close(handle->kiln);
  delete handle;
}
std::shared_ptr<Handle> make_handle() { return {new Handle, let_go}; }

// kiln_log_fn; called from any thread, with the GIL or without it.
void forward_log(int32_t level, const char* message, void* user) {
  if (!Py_IsInitialized()) return;
  nb::gil_scoped_acquire acquired;
  Handle* handle = static_cast<Handle*>(user);
  PyObject* done = PyObject_CallFunction(handle->log.ptr(), "is", static_cast<int>(level), message);
  if (!done) PyErr_WriteUnraisable(handle->log.ptr());
  Py_XDECREF(done);
}

nb::dict as_dict(const Variant& v) {
  nb::dict row;
  row["key"] = v.key;
  row["target"] = v.target;
  row["operation"] = v.operation;
  row["kernel"] = v.kernel;
  row["functional"] = v.functional;
  row["configuration"] = v.configuration;
  row["specialization"] = v.specialization;
  row["unavailable"] = v.is_available ? nb::none() : nb::cast(v.unavailable);
  row["has_ptx"] = v.has_ptx;
  row["registers"] = v.registers;
  row["shared_bytes"] = v.shared_bytes;
  row["spill_bytes"] = v.spill_bytes;
  row["threads"] = v.threads;
  row["passed_over"] = v.passed_over;
  return row;
}

nb::list as_list(const std::vector<Variant>& variants) {
  nb::list rows;
  for (const Variant& variant : variants) rows.append(as_dict(variant));
  return rows;
}

int32_t gather(const kiln_variant* variant, void* user) {
  static_cast<std::vector<Variant>*>(user)->push_back(copy(*variant));
  return 0;
}

struct Counts {
  int64_t variants = 0;
  std::set<std::string> images;  // the keys that have one: several variants may share a key
};
int32_t tally(const kiln_variant* variant, void* user) {
  Counts& counts = (*static_cast<std::map<std::string, Counts>*>(user))[variant->target];
  ++counts.variants;
  if (!variant->unavailable) counts.images.insert(variant->key);
  return 0;
}

struct DeviceRow {
  int32_t vendor, ordinal, multiprocessors, warp_size;
  std::string name, id, target, refusal;
  bool is_refused;
};
int32_t gather_device(const kiln_device* d, void* user) {
  static_cast<std::vector<DeviceRow>*>(user)->push_back({d->vendor, d->ordinal, d->multiprocessors, d->warp_size,
                                                         d->name, d->id, d->target, d->refusal ? d->refusal : "",
                                                         d->refusal != nullptr});
  return 0;
}

int32_t gather_name(const char* name, kiln_operation, void* user) {
  static_cast<std::vector<std::string>*>(user)->push_back(name);
  return 0;
}

// A text, or nothing for None.
class OptionalText {
 public:
  OptionalText(nb::handle value, const char* what) {
    if (!value.is_none()) text_ = text_of(value, what);
  }
  const char* c_str() const { return text_ ? text_->c_str() : nullptr; }

 private:
  std::optional<std::string> text_;
};

class Runtime {
 public:
  Runtime(nb::handle pack_path, nb::handle trusted_packs, nb::object log, int32_t log_level, nb::handle resolve,
          nb::handle resolve_user, nb::handle trusted_keys) {
    OptionalText folders(pack_path, "pack_path"), digests(trusted_packs, "trusted_packs");
    OptionalText keys(trusted_keys, "trusted_keys");
    kiln_options options = KILN_OPTIONS_INIT;
    options.pack_path = folders.c_str();
    options.trusted_packs = digests.c_str();
    options.trusted_keys = keys.c_str();
    if (!log.is_none() && !PyCallable_Check(log.ptr()))
      refuse("log must be a function of a level and a message; " + shown(log) + " is not");
    options.log_level = log_level;
    options.resolve = reinterpret_cast<kiln_resolve_fn>(address_of(resolve, "resolve"));
    options.resolve_user = reinterpret_cast<void*>(address_of(resolve_user, "resolve_user"));
    handle_ = make_handle();
    if (!log.is_none()) {
      handle_->log = log;
      options.log = forward_log;
      options.log_user = handle_.get();
    }
    open(options);
  }

  // A kiln_t that somebody else has opened and will close.
  static Runtime* borrow(uintptr_t handle) {
    if (!handle) refuse("Runtime.borrow: the handle is 0, which no kiln_open gives");
    std::shared_ptr<Handle> held = make_handle();
    held->kiln = reinterpret_cast<kiln_t>(handle);
    held->owned = false;
    return new Runtime(held);
  }

  void close() {
    if (handle_) handle_->is_closed = true;
    handle_.reset();
  }

  std::shared_ptr<Handle> get() const {
    if (!handle_) refuse("this Runtime is closed; open another one");
    return handle_;
  }
  bool is_closed() const { return !handle_; }

 private:
  explicit Runtime(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {}

  void open(const kiln_options& options) {
    kiln_status status;
    std::string sentence;
    {
      nb::gil_scoped_release released;
      status = kiln_open(&options, &handle_->kiln);
      if (status == KILN_OK) status = kiln_register_family(handle_->kiln, kiln_flash_family());
      if (status != KILN_OK) sentence = kiln_error();
    }
    if (status == KILN_OK) return;
    handle_->is_closed = true;
    raise(status, sentence);
  }

  std::shared_ptr<Handle> handle_;
};

// Calls `function(kiln)` without the GIL and raises what it fails with.
template <typename Function>
void run(const Runtime& runtime, Function function) {
  std::shared_ptr<Handle> handle = runtime.get();
  kiln_status status;
  {
    nb::gil_scoped_release released;
    status = function(handle->kiln);
  }
  check(status);
}

kiln_queue queue_of(nb::handle from) {
  if (!PyTuple_Check(from.ptr()) || PyTuple_Size(from.ptr()) != 3)
    refuse("queue must be (vendor, device, stream); " + shown(from) + " is not");
  int64_t vendor = integer_of(PyTuple_GetItem(from.ptr(), 0), "the queue's vendor");
  int64_t device = integer_of(PyTuple_GetItem(from.ptr(), 1), "the queue's device");
  int64_t stream = integer_of(PyTuple_GetItem(from.ptr(), 2), "the queue's stream");
  if (vendor != KILN_VENDOR_NVIDIA && vendor != KILN_VENDOR_AMD)
    refuse("the queue's vendor is " + std::to_string(vendor) + "; 1 is NVIDIA and 2 is AMD");
  if (device < -1 || device > INT32_MAX)
    refuse("the queue's device is " + std::to_string(device) + "; it is an ordinal, or -1 for the stream's own");
  if (stream < 0) refuse("the queue's stream is " + std::to_string(stream) + "; it is an address, or 0");
  kiln_queue queue = KILN_QUEUE_INIT(static_cast<int32_t>(vendor), reinterpret_cast<void*>(stream));
  queue.device = static_cast<int32_t>(device);
  return queue;
}

void launch(const Runtime& runtime, const std::string& operation, nb::handle queue, nb::dict fields) {
  const Entry& entry = find_entry(operation);
  kiln_queue to = queue_of(queue);
  Parameters parameters(entry, fields);
  run(runtime, [&](kiln_t kiln) { return entry.launch(kiln, &to, parameters.data()); });
}

void synchronize(const Runtime& runtime, nb::handle queue) {
  kiln_queue of = queue_of(queue);
  run(runtime, [&](kiln_t kiln) { return kiln_synchronize(kiln, &of); });
}

uint64_t workspace(const Runtime& runtime, const std::string& operation, nb::handle queue, nb::dict fields) {
  const Entry& entry = find_entry(operation);
  kiln_queue to = queue_of(queue);
  Parameters parameters(entry, fields);
  uint64_t bytes = 0;
  if (entry.workspace) run(runtime, [&](kiln_t kiln) { return entry.workspace(kiln, &to, parameters.data(), &bytes); });
  return bytes;
}

void prepare(const Runtime& runtime, const std::string& operation, nb::handle queue, nb::dict fields) {
  const Entry& entry = find_entry(operation);
  kiln_queue to = queue_of(queue);
  Parameters parameters(entry, fields);
  if (!entry.prepare) refuse(operation + " cannot be prepared: its kernel is loaded by its first call");
  run(runtime, [&](kiln_t kiln) { return entry.prepare(kiln, &to, parameters.data()); });
}

nb::list explain(const Runtime& runtime, const std::string& operation, nb::handle queue, nb::dict fields) {
  const Entry& entry = find_entry(operation);
  kiln_queue to = queue_of(queue);
  Parameters parameters(entry, fields);
  if (!entry.explain) refuse(operation + " cannot be explained: it has one kernel for all calls");
  std::vector<Variant> seen;
  run(runtime, [&](kiln_t kiln) { return entry.explain(kiln, &to, parameters.data(), gather, &seen); });
  return as_list(seen);
}

nb::list variants(const Runtime& runtime, nb::handle operation, nb::handle target) {
  OptionalText of(operation, "operation"), on(target, "target");
  std::vector<Variant> seen;
  run(runtime, [&](kiln_t kiln) { return kiln_variants(kiln, of.c_str(), on.c_str(), gather, &seen); });
  return as_list(seen);
}

nb::tuple targets(const Runtime& runtime) {
  std::map<std::string, Counts> seen;
  std::shared_ptr<Handle> handle = runtime.get();
  kiln_status status;
  {
    nb::gil_scoped_release released;
    status = kiln_variants(handle->kiln, nullptr, nullptr, tally, &seen);
  }
  if (status == KILN_E_PACK_NOT_FOUND) status = KILN_OK;
  std::string sentence = status == KILN_OK ? "" : kiln_error();
  nb::list rows;
  for (const auto& [target, counts] : seen) rows.append(nb::make_tuple(target, counts.variants, counts.images.size()));
  return nb::make_tuple(rows, status, sentence);
}

nb::tuple devices(const Runtime& runtime) {
  std::vector<DeviceRow> seen;
  std::shared_ptr<Handle> handle = runtime.get();
  kiln_status status;
  {
    nb::gil_scoped_release released;
    status = kiln_devices(handle->kiln, gather_device, &seen);
  }
  std::string sentence = status == KILN_OK ? "" : kiln_error();
  nb::list rows;
  for (const DeviceRow& device : seen) {
    nb::dict row;
    row["vendor"] = device.vendor;
    row["ordinal"] = device.ordinal;
    row["name"] = device.name;
    row["id"] = device.id;
    row["target"] = device.target;
    row["multiprocessors"] = device.multiprocessors;
    row["warp_size"] = device.warp_size;
    row["refusal"] = device.is_refused ? nb::cast(device.refusal) : nb::none();
    rows.append(row);
  }
  return nb::make_tuple(rows, status, sentence);
}

std::vector<std::string> operations(const Runtime& runtime) {
  std::vector<std::string> names;
  run(runtime, [&](kiln_t kiln) { return kiln_operations(kiln, gather_name, &names); });
  return names;
}

}  // namespace

void define_runtime(nb::module_& module) {
  const auto operation = nb::arg("operation");
  const auto queue = nb::arg("queue").none();
  const auto fields = nb::arg("fields");
#define SIGNATURE(name, result) \
  nb::sig("def " name "(self, operation: str, queue: tuple[int, int, int], fields: dict[str, typing.Any]) -> " result)
  nb::class_<Runtime>(module, "Runtime",
                      "A kiln_t with the flash family. It stays open until close(), whether it is still known or not.\n"
                      "\n"
                      "Operations are named as their entries in kiln/flash.h, 'attn_fwd'; a queue is (vendor, device,\n"
                      "stream): 1 for NVIDIA or 2 for AMD, an ordinal or -1 for the stream's own, an address; fields\n"
                      "are those of the operation's parameters in kiln/flash.h by name, None for those left out;\n"
                      "`scale` is sm_scale, where 0 is refused instead of being the default.\n"
                      "Tensors are Tensor objects, or (address, dtype, sizes, strides).")
      .def(nb::init<nb::handle, nb::handle, nb::object, int32_t, nb::handle, nb::handle, nb::handle>(),
           nb::arg("pack_path") = nb::none(), nb::arg("trusted_packs") = nb::none(), nb::arg("log") = nb::none(),
           nb::arg("log_level") = static_cast<int32_t>(KILN_LOG_WARNING), nb::arg("resolve").none() = 0,
           nb::arg("resolve_user").none() = 0, nb::arg("trusted_keys") = nb::none(),
           nb::sig("def __init__(self, pack_path: str | None = None, trusted_packs: str | None = None, "
                   "log: collections.abc.Callable[[int, str], object] | None = None, log_level: int = 1, "
                   "resolve: int = 0, resolve_user: int = 0, trusted_keys: str | None = None) -> None"),
           "Opens it; touches no driver. `resolve` is the address of a kiln_resolve_fn, or 0. Other arguments as in\n"
           "kiln_options; `log` is called as log(level, message), from any thread.")
      .def_static("borrow", &Runtime::borrow, nb::arg("handle"), nb::rv_policy::take_ownership,
                  "A kiln_t that was opened elsewhere and lives longer; it is not closed here.")
      .def("close", &Runtime::close,
           "Closes it once no other thread calls it; nothing if it is closed. Work that was launched must be done.")
      .def_prop_ro("is_closed", &Runtime::is_closed, "Whether close() was called.")
      .def_prop_ro(
          "handle", [](const Runtime& r) { return reinterpret_cast<uintptr_t>(r.get()->kiln); },
          "The kiln_t, for other libraries of this process; valid until close().")
      .def("devices", &devices, nb::sig("def devices(self) -> tuple[list[dict[str, typing.Any]], int, str]"),
           "What kiln_devices visits; its status; and its sentence, '' if that is 0.")
      .def("operations", &operations, "Names: 'flash.attn_fwd' ...")
      .def(
          "targets", &targets, nb::sig("def targets(self) -> tuple[list[tuple[str, int, int]], int, str]"),
          "Each target whose pack is found and can be used, how many variants it has, and how many different keys of\n"
          "theirs have an image; what kiln_variants returns for packs that cannot be used; and its sentence, '' where\n"
          "that is 0.")
      .def("variants", &variants, nb::arg("operation") = nb::none(), nb::arg("target") = nb::none(),
           nb::sig("def variants(self, operation: str | None = None, target: str | None = None) -> "
                   "list[dict[str, typing.Any]]"),
           "What kiln_variants visits.")
      .def("launch", &launch, operation, queue, fields, SIGNATURE("launch", "None"), "Enqueues the operation.")
      .def("workspace", &workspace, operation, queue, fields, SIGNATURE("workspace", "int"),
           "How many bytes of device memory the same launch() needs.")
      .def("prepare", &prepare, operation, queue, fields, SIGNATURE("prepare", "None"),
           "Loads what the same launch() would load.")
      .def("synchronize", &synchronize, queue, nb::sig("def synchronize(self, queue: tuple[int, int, int]) -> None"),
           "Waits until all that was enqueued on the queue's stream is done.")
      .def("explain", &explain, operation, queue, fields, SIGNATURE("explain", "list[dict[str, typing.Any]]"),
           "The variants that the same launch() would run.");
#undef SIGNATURE
}

}  // namespace kiln_python
