#include "entries.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "tensor.h"

namespace kiln_python {

enum class Kind : uint8_t { kTensor, kInteger, kReal, kScale, kFlag, kAddress, kKeys, kText };

// A field of a parameter structure: its name, what it takes, where it lies.
struct Field {
  const char* name;
  Kind kind;
  size_t offset;
};

namespace {

#define FIELD(kind, name) {#name, Kind::kind, offsetof(Params, name)}
// clang-format off
#define SEQUENCES FIELD(kTensor, cu_seqlens_q), FIELD(kTensor, cu_seqlens_k), FIELD(kTensor, seqused_q), \
                  FIELD(kTensor, seqused_k)
// `scale` is sm_scale for those who leave it out by None.
#define SCORES FIELD(kTensor, sinks), FIELD(kTensor, alibi_slopes), FIELD(kInteger, window_left), \
               FIELD(kInteger, window_right), FIELD(kInteger, max_seqlen_q), FIELD(kInteger, max_seqlen_k), \
               FIELD(kReal, sm_scale), {"scale", Kind::kScale, offsetof(Params, sm_scale)}, FIELD(kReal, softcap), \
               FIELD(kFlag, causal)
#define DROPOUT FIELD(kTensor, seed), FIELD(kTensor, offset), FIELD(kInteger, seed_value), \
                FIELD(kInteger, offset_value), FIELD(kReal, dropout)
#define CALL FIELD(kAddress, workspace), FIELD(kInteger, workspace_bytes), FIELD(kKeys, force_keys), \
             FIELD(kText, force_target)
// clang-format on

struct Forward {
  using Params = kiln_attn_fwd_params;
  static constexpr Params kDefaults = KILN_ATTN_FWD_PARAMS_INIT;
  static constexpr Field kFields[] = {FIELD(kTensor, q),
                                      FIELD(kTensor, k),
                                      FIELD(kTensor, v),
                                      FIELD(kTensor, out),
                                      FIELD(kTensor, lse),
                                      FIELD(kTensor, bias),
                                      FIELD(kTensor, seed_out),
                                      FIELD(kTensor, offset_out),
                                      FIELD(kFlag, bottom_right),
                                      FIELD(kFlag, padded),
                                      SEQUENCES,
                                      SCORES,
                                      DROPOUT,
                                      CALL};
};

struct Backward {
  using Params = kiln_attn_bwd_params;
  static constexpr Params kDefaults = KILN_ATTN_BWD_PARAMS_INIT;
  static constexpr Field kFields[] = {FIELD(kTensor, q),
                                      FIELD(kTensor, k),
                                      FIELD(kTensor, v),
                                      FIELD(kTensor, out),
                                      FIELD(kTensor, dout),
                                      FIELD(kTensor, lse),
                                      FIELD(kTensor, dq),
                                      FIELD(kTensor, dk),
                                      FIELD(kTensor, dv),
                                      FIELD(kTensor, dbias),
                                      FIELD(kTensor, dsinks),
                                      FIELD(kTensor, bias),
                                      FIELD(kFlag, bottom_right),
                                      FIELD(kFlag, padded),
                                      FIELD(kFlag, deterministic),
                                      SEQUENCES,
                                      SCORES,
                                      DROPOUT,
                                      CALL};
};

struct Decode {
  using Params = kiln_attn_decode_params;
  static constexpr Params kDefaults = KILN_ATTN_DECODE_PARAMS_INIT;
  static constexpr Field kFields[] = {FIELD(kTensor, q),
                                      FIELD(kTensor, k_cache),
                                      FIELD(kTensor, v_cache),
                                      FIELD(kTensor, out),
                                      FIELD(kTensor, lse),
                                      FIELD(kTensor, k_new),
                                      FIELD(kTensor, v_new),
                                      FIELD(kTensor, seqused_k),
                                      FIELD(kTensor, cu_seqlens_q),
                                      FIELD(kTensor, block_table),
                                      FIELD(kTensor, cache_batch),
                                      FIELD(kTensor, leftpad),
                                      FIELD(kTensor, rotary_cos),
                                      FIELD(kTensor, rotary_sin),
                                      FIELD(kTensor, k_scale),
                                      FIELD(kTensor, v_scale),
                                      FIELD(kInteger, splits),
                                      FIELD(kFlag, rotary_interleaved),
                                      SCORES,
                                      CALL};
};

struct Mask {
  using Params = kiln_dropout_mask_params;
  static constexpr Params kDefaults = KILN_DROPOUT_MASK_PARAMS_INIT;
  static constexpr Field kFields[] = {FIELD(kTensor, mask), DROPOUT, FIELD(kText, force_target)};
};

// The C entries take structures of their own; these have one signature.
template <typename Params, kiln_status (*kFunction)(kiln_t, const kiln_queue*, const Params*)>
kiln_status plain(kiln_t kiln, const kiln_queue* queue, const void* params) {
  return kFunction(kiln, queue, static_cast<const Params*>(params));
}
template <typename Params, kiln_status (*kFunction)(kiln_t, const kiln_queue*, const Params*, uint64_t*)>
kiln_status sized(kiln_t kiln, const kiln_queue* queue, const void* params, uint64_t* bytes) {
  return kFunction(kiln, queue, static_cast<const Params*>(params), bytes);
}
template <typename Params, kiln_status (*kFunction)(kiln_t, const kiln_queue*, const Params*, kiln_variant_fn, void*)>
kiln_status visited(kiln_t kiln, const kiln_queue* queue, const void* params, kiln_variant_fn visit, void* user) {
  return kFunction(kiln, queue, static_cast<const Params*>(params), visit, user);
}

struct Row {
  Entry entry;
  const Field* fields;
  size_t count;
  const void* defaults;
  size_t size;
};

constexpr size_t count_tensors(const Field* fields, size_t count) {
  size_t tensors = 0;
  for (size_t i = 0; i < count; ++i) tensors += fields[i].kind == Kind::kTensor;
  return tensors;
}

template <typename Operation>
constexpr Row row(Entry entry) {
  constexpr size_t kCount = sizeof Operation::kFields / sizeof(Field);
  static_assert(sizeof(typename Operation::Params) <= Parameters::kCapacity, "room for the parameter structure");
  static_assert(count_tensors(Operation::kFields, kCount) <= Parameters::kTensors, "room for each of its tensors");
  static_assert(kCount <= Parameters::kFields, "a bit for each of its fields");
  return {entry, Operation::kFields, kCount, &Operation::kDefaults, sizeof(typename Operation::Params)};
}

#define ATTENTION(Operation, name)                                                                                 \
  row<Operation>({#name, plain<Operation::Params, kiln_##name>, sized<Operation::Params, kiln_##name##_workspace>, \
                  plain<Operation::Params, kiln_##name##_prepare>, visited<Operation::Params, kiln_##name##_explain>})

const Row kRows[] = {
    ATTENTION(Forward, attn_fwd),
    ATTENTION(Backward, attn_bwd),
    ATTENTION(Decode, attn_decode),
    row<Mask>({"dropout_mask", plain<Mask::Params, kiln_dropout_mask>, nullptr, nullptr, nullptr}),
};

bool flag_of(nb::handle value, const char* name) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (PyIndex_Check(value.ptr())) return integer_of(value, name) != 0;
  refuse(std::string(name) + " must be True or False; " + shown(value) + " is neither");
}

float real_of(nb::handle value, const char* name) {
  double number = PyUnicode_Check(value.ptr()) ? -1 : PyFloat_AsDouble(value.ptr());
  if (PyUnicode_Check(value.ptr()) || PyErr_Occurred()) {
    PyErr_Clear();
    refuse(std::string(name) + " must be a number; " + shown(value) + " is none");
  }
  float result = static_cast<float>(number);
  // A number that would become 0 is refused too: 0 stands for the default, or for none.
  if ((isinf(result) && !isinf(number)) || (result == 0 && number != 0))
    refuse(std::string(name) + " is " + shown(value) + ", which fp32 cannot hold");
  return result;
}

float scale_of(nb::handle value, const char* name) {
  float result = real_of(value, name);
  if (result == 0) refuse(std::string(name) + " is 0; None is 1 / sqrt(head_dim)");
  return result;
}

}  // namespace

// An older libkiln.so.0 may give a shorter structure: whether it has a field that was added later, `size` says.
Variant copy(const kiln_variant& v) {
  return {v.key,
          v.target,
          v.operation,
          v.kernel,
          v.functional,
          v.configuration,
          v.specialization,
          v.unavailable ? v.unavailable : "",
          v.size > offsetof(kiln_variant, passed_over) && v.passed_over ? v.passed_over : "",
          v.unavailable == nullptr,
          v.has_ptx != 0,
          v.registers,
          v.shared_bytes,
          v.spill_bytes,
          v.threads};
}

const Entry& find_entry(const std::string& name) {
  for (const Row& row : kRows)
    if (name == row.entry.name) return row.entry;
  raise(KILN_E_NOT_FOUND,
        "there is no operation " + name + "; there are attn_fwd, attn_bwd, attn_decode, dropout_mask");
}

Parameters::Parameters(const Entry& entry, nb::dict fields) {
  const Row* row = kRows;
  while (&row->entry != &entry) ++row;
  memcpy(bytes_, row->defaults, row->size);
  uint64_t seen = 0;  // keys may differ for Python and read alike
  for (auto [key, borrowed] : fields) {
    nb::object value = nb::borrow<nb::object>(borrowed);  // what it runs may take it out of the dictionary
    std::string name = text_of(key, "a parameter's name");
    size_t i = 0;
    while (i < row->count && name != row->fields[i].name) ++i;
    if (i == row->count) refuse(std::string(entry.name) + " has no parameter " + name);
    if (seen >> i & 1) refuse(std::string(entry.name) + " is given its parameter " + name + " twice");
    seen |= uint64_t{1} << i;
    if (!value.is_none()) set(row->fields[i], value);
  }
}

void Parameters::set(const Field& field, nb::handle value) {
  switch (field.kind) {
    case Kind::kTensor:
      tensors_[tensor_count_] = view_of(value, field.name);
      at<const kiln_tensor*>(field.offset) = &tensors_[tensor_count_++];
      return;
    case Kind::kInteger:
      at<int64_t>(field.offset) = integer_of(value, field.name);
      return;
    case Kind::kReal:
      at<float>(field.offset) = real_of(value, field.name);
      return;
    case Kind::kScale:
      at<float>(field.offset) = scale_of(value, field.name);
      return;
    case Kind::kFlag:
      at<int32_t>(field.offset) = flag_of(value, field.name);
      return;
    case Kind::kAddress:
      at<uint64_t>(field.offset) = address_of(value, field.name);
      return;
    case Kind::kKeys:
      return set_keys(field.offset, value);
    case Kind::kText:
      target_ = text_of(value, field.name);
      at<const char*>(field.offset) = target_.c_str();
      return;
  }
}

// force_keys, and force_count, which lies 16 bytes behind in every structure: force_target is between them.
void Parameters::set_keys(size_t offset, nb::handle value) {
  if (PyUnicode_Check(value.ptr()) || !PySequence_Check(value.ptr()))
    refuse("force_keys must be a sequence of keys, each 64 hexadecimal digits; " + shown(value) + " is none");
  Py_ssize_t count = PySequence_Size(value.ptr());
  constexpr Py_ssize_t kMost = 1024;
  if (count < 0) throw nb::python_error();
  if (count > kMost) refuse("force_keys has " + std::to_string(count) + " keys; a call has a few kernels");
  for (Py_ssize_t i = 0; i < count; ++i) {
    nb::object key = nb::steal<nb::object>(PySequence_GetItem(value.ptr(), i));
    if (!key.is_valid()) throw nb::python_error();
    keys_.push_back(text_of(key, "force_keys"));
  }
  for (const std::string& key : keys_) key_pointers_.push_back(key.c_str());
  at<const char* const*>(offset) = key_pointers_.data();
  at<int32_t>(offset + 16) = static_cast<int32_t>(key_pointers_.size());
}

#define SAME_PLACE(Params) \
  static_assert(offsetof(Params, force_count) == offsetof(Params, force_keys) + 16, "set_keys counts on it")
SAME_PLACE(kiln_attn_fwd_params);
SAME_PLACE(kiln_attn_bwd_params);
SAME_PLACE(kiln_attn_decode_params);

}  // namespace kiln_python
