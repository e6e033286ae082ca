/* Kiln: a wrapper of the C interface for C++11 and later, header-only, so that it is compiled with the caller's own
 * standard library and settings. It adds ownership, exceptions and containers, and nothing that the C interface does
 * not have:
 *
 *   kiln::Runtime runtime;
 *   runtime.register_family(kiln_flash_family());
 *   kiln::Operation op = runtime.operation("flash.attn_fwd");
 *   op.launch(kiln::cuda_queue(stream), {q, k, v, out, nullptr, 0.125, true});
 *
 * Threads and lifetimes are those of kiln.h.
 */
#ifndef KILN_KILN_HPP
#define KILN_KILN_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kiln/kiln.h"

namespace kiln {

/* A status other than KILN_OK; what() is its sentence. */
class Error : public std::runtime_error {
 public:
  explicit Error(kiln_status status) : std::runtime_error(kiln_error()), status_(status) {}
  kiln_status status() const noexcept { return status_; }
  const char* name() const noexcept { return kiln_status_name(status_); }

 private:
  kiln_status status_;
};

/* Throws Error unless `status` is KILN_OK. */
inline void check(kiln_status status) {
  if (status != KILN_OK) throw Error(status);
}

inline kiln_queue cuda_queue(void* stream, std::int32_t device = -1) {
  kiln_queue queue = KILN_QUEUE_INIT(KILN_VENDOR_NVIDIA, stream);
  queue.device = device;
  return queue;
}

inline kiln_queue hip_queue(void* stream, std::int32_t device = -1) {
  kiln_queue queue = KILN_QUEUE_INIT(KILN_VENDOR_AMD, stream);
  queue.device = device;
  return queue;
}

/* A view of device memory; without strides, a contiguous one. Sizes and strides are in elements. */
class Tensor {
 public:
  Tensor(void* data, kiln_dtype dtype, const std::vector<std::int64_t>& sizes,
         const std::vector<std::int64_t>& strides = {})
      : view_() {
    if (sizes.size() > KILN_MAX_RANK || (!strides.empty() && strides.size() != sizes.size()))
      throw std::invalid_argument("kiln::Tensor: at most KILN_MAX_RANK sizes, and as many strides or none");
    view_.data = data;
    view_.dtype = dtype;
    view_.rank = static_cast<std::int32_t>(sizes.size());
    std::int64_t step = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      view_.sizes[i] = sizes[i];
      view_.strides[i] = strides.empty() ? step : strides[i];
      step *= sizes[i] > 0 ? sizes[i] : 1;
    }
  }
  const kiln_tensor* get() const noexcept { return &view_; }
  operator const kiln_tensor*() const noexcept { return &view_; }

 private:
  kiln_tensor view_;
};

/* One argument of a call. A Tensor must live until the call has returned; nullptr leaves an optional one out. */
class Argument {
 public:
  Argument(std::nullptr_t) : value_() { value_.kind = KILN_ARG_ABSENT; }
  Argument(const kiln_tensor* tensor) : value_() {
    value_.kind = tensor ? KILN_ARG_TENSOR : KILN_ARG_ABSENT;
    value_.value.tensor = tensor;
  }
  Argument(const Tensor& tensor) : Argument(tensor.get()) {}
  template <typename T, typename std::enable_if<std::is_integral<T>::value, int>::type = 0>
  Argument(T integer) : value_() {
    value_.kind = KILN_ARG_INT;
    value_.value.integer = static_cast<std::int64_t>(integer);
  }
  template <typename T, typename std::enable_if<std::is_floating_point<T>::value, long>::type = 0>
  Argument(T real) : value_() {
    value_.kind = KILN_ARG_FLOAT;
    value_.value.real = static_cast<double>(real);
  }
  const kiln_argument& get() const noexcept { return value_; }

 private:
  kiln_argument value_;
};

/* kiln_device, with its strings. */
struct DeviceInfo {
  std::int32_t vendor, ordinal, multiprocessors, warp_size;
  std::string name, id, target;
  std::string refusal; /* empty: it can be used */
};

/* kiln_variant, with its strings. */
struct VariantInfo {
  std::string key, target, operation, kernel, functional, configuration, specialization;
  std::string unavailable; /* empty: there is an image */
  bool has_ptx;
  std::int32_t registers, shared_bytes, spill_bytes, threads;
  std::string passed_over; /* of explain: why other implementations of the kernel do not run, a line for each */
};

/* What a call may be told besides its arguments. */
struct CallOptions {
  void* workspace = nullptr;
  std::uint64_t workspace_bytes = 0;
  std::vector<std::string> force_keys;
  std::string force_target; /* empty: the device's own */
};

namespace detail {

inline std::string text(const char* string) { return string ? std::string(string) : std::string(); }

/* Exceptions must not cross the library: `add` keeps what is thrown, and `finish` throws it again. */
template <typename Info>
struct Collector {
  std::vector<Info> found;
  std::exception_ptr problem;

  template <typename Make>
  std::int32_t add(Make make) noexcept {
    try {
      found.push_back(make());
      return 0;
    } catch (...) {
      problem = std::current_exception();
      return 1;
    }
  }
  std::vector<Info> finish(kiln_status status) {
    if (problem) std::rethrow_exception(problem);
    check(status);
    return std::move(found);
  }
};

/* A library that is older than this header may give a structure without it. */
inline const char* passed_over(const kiln_variant& v) noexcept {
  return v.size > offsetof(kiln_variant, passed_over) ? v.passed_over : nullptr;
}

inline std::int32_t collect_variant(const kiln_variant* v, void* user) noexcept {
  return static_cast<Collector<VariantInfo>*>(user)->add([v] {
    return VariantInfo{text(v->key),        text(v->target),        text(v->operation),      text(v->kernel),
                       text(v->functional), text(v->configuration), text(v->specialization), text(v->unavailable),
                       v->has_ptx != 0,     v->registers,           v->shared_bytes,         v->spill_bytes,
                       v->threads,          text(passed_over(*v))};
  });
}

inline std::int32_t collect_device(const kiln_device* d, void* user) noexcept {
  return static_cast<Collector<DeviceInfo>*>(user)->add([d] {
    return DeviceInfo{d->vendor,     d->ordinal,  d->multiprocessors, d->warp_size,
                      text(d->name), text(d->id), text(d->target),    text(d->refusal)};
  });
}

}  // namespace detail

/* An operation of a family; valid as long as its Runtime. */
class Operation {
 public:
  explicit Operation(kiln_operation operation) : operation_(operation) {}
  kiln_operation get() const noexcept { return operation_; }

  void launch(const kiln_queue& queue, std::initializer_list<Argument> arguments,
              const CallOptions& options = {}) const {
    check(with_call(queue, arguments, options, [](const kiln_call* call) { return kiln_launch(call); }));
  }
  void prepare(const kiln_queue& queue, std::initializer_list<Argument> arguments,
               const CallOptions& options = {}) const {
    check(with_call(queue, arguments, options, [](const kiln_call* call) { return kiln_prepare(call); }));
  }
  std::uint64_t workspace_size(const kiln_queue& queue, std::initializer_list<Argument> arguments,
                               const CallOptions& options = {}) const {
    std::uint64_t bytes = 0;
    check(with_call(queue, arguments, options,
                    [&bytes](const kiln_call* call) { return kiln_workspace_size(call, &bytes); }));
    return bytes;
  }
  std::vector<VariantInfo> explain(const kiln_queue& queue, std::initializer_list<Argument> arguments,
                                   const CallOptions& options = {}) const {
    detail::Collector<VariantInfo> collector;
    kiln_status status = with_call(queue, arguments, options, [&collector](const kiln_call* call) {
      return kiln_explain(call, detail::collect_variant, &collector);
    });
    return collector.finish(status);
  }

 private:
  template <typename Function>
  kiln_status with_call(const kiln_queue& queue, std::initializer_list<Argument> arguments, const CallOptions& options,
                        Function function) const {
    static_assert(sizeof(Argument) == sizeof(kiln_argument), "an initializer list of them is an array of arguments");
    std::vector<const char*> keys;
    for (const std::string& key : options.force_keys) keys.push_back(key.c_str());
    kiln_call call = KILN_CALL_INIT;
    call.operation = operation_;
    call.queue = &queue;
    call.arguments = arguments.size() ? &arguments.begin()->get() : nullptr;
    call.argument_count = static_cast<std::int32_t>(arguments.size());
    call.force_count = static_cast<std::int32_t>(keys.size());
    call.force_keys = keys.empty() ? nullptr : keys.data();
    call.force_target = options.force_target.empty() ? nullptr : options.force_target.c_str();
    call.workspace = options.workspace;
    call.workspace_bytes = options.workspace_bytes;
    return function(&call);
  }

  kiln_operation operation_;
};

/* A kiln_t, closed at the end. */
class Runtime {
 public:
  Runtime() : Runtime(nullptr) {}
  explicit Runtime(const kiln_options& options) : Runtime(&options) {}
  Runtime(Runtime&& other) noexcept : kiln_(other.kiln_) { other.kiln_ = nullptr; }
  Runtime& operator=(Runtime&& other) noexcept {
    std::swap(kiln_, other.kiln_);
    return *this;
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime() { kiln_close(kiln_); }

  kiln_t get() const noexcept { return kiln_; }
  void register_family(const kiln_family* family) { check(kiln_register_family(kiln_, family)); }
  Operation operation(const std::string& name) const {
    kiln_operation found = nullptr;
    check(kiln_find_operation(kiln_, name.c_str(), &found));
    return Operation(found);
  }
  /* Waits until all that was enqueued on the queue's stream is done. */
  void synchronize(const kiln_queue& queue) const { check(kiln_synchronize(kiln_, &queue)); }
  /* Throws where a vendor's driver fails, whatever the other has; given `problem`, leaves the sentence there instead
   * ("" if there is none) and returns the devices that could be listed. */
  std::vector<DeviceInfo> devices(std::string* problem = nullptr) const {
    detail::Collector<DeviceInfo> collector;
    kiln_status status = kiln_devices(kiln_, detail::collect_device, &collector);
    if (problem) {
      *problem = status == KILN_OK ? "" : kiln_error();
      status = KILN_OK;
    }
    return collector.finish(status);
  }
  /* Of all operations and targets where a name is empty. */
  std::vector<VariantInfo> variants(const std::string& operation = {}, const std::string& target = {}) const {
    detail::Collector<VariantInfo> collector;
    kiln_status status = kiln_variants(kiln_, operation.empty() ? nullptr : operation.c_str(),
                                       target.empty() ? nullptr : target.c_str(), detail::collect_variant, &collector);
    return collector.finish(status);
  }

 private:
  explicit Runtime(const kiln_options* options) : kiln_(nullptr) { check(kiln_open(options, &kiln_)); }

  kiln_t kiln_;
};

}  // namespace kiln
#endif
