#include "sequences.h"

#include <stdio.h>

#include "errors.h"

namespace kiln_aotriton {
namespace {

// Which side a sentence is about, by AOTriton's names.
struct Names {
  const char* tensor;
  const char* lengths;
  const char* positions;
  const char* most;
};
constexpr Names kRows = {"Q", "lengths of queries (cu_seqlens_q, seqinfo_q0)",
                         "positions of queries (seq_strides_q, seqinfo_q1)", "Max_seqlen_q"};
constexpr Names kKeys = {"K", "lengths of keys (cu_seqlens_k, seqinfo_k0)",
                         "positions of keys (seq_strides_k, seqinfo_k1)", "Max_seqlen_k"};

hipError_t refuse_with(kiln_status status, const char* format, const char* name) {
  char sentence[256];
  snprintf(sentence, sizeof sentence, format, name);
  return refuse(status, sentence);
}

// How many sequences a side says there are; -1: it does not say.
int64_t count_of(const Side& side, const kiln_tensor& tensor) {
  if (!side.stacked) return tensor.sizes[0];
  if (side.length == Side::kCumulative) return side.lengths.sizes[0] - 1;
  if (side.length == Side::kIndividual) return side.lengths.sizes[0];
  return side.position == Side::kImplied && side.most > 0 ? tensor.sizes[2] / side.most : -1;
}

// A mode that is one, and has the arrays that it needs.
hipError_t check(const Side& side, const Names& names) {
  if (side.length > Side::kIndividual || side.position > Side::kListed)
    return refuse_with(KILN_E_ARGUMENT, "aotriton: the mode of sequences of %s has a value that means nothing",
                       names.tensor);
  if (side.length != Side::kMost && !side.lengths.data)
    return refuse_with(KILN_E_ARGUMENT, "aotriton: the mode of sequences says that there are %s, which are not given",
                       names.lengths);
  if (side.position == Side::kListed && !side.positions.data)
    return refuse_with(KILN_E_ARGUMENT, "aotriton: the mode of sequences says that there are %s, which are not given",
                       names.positions);
  if (side.position == Side::kReused && side.length != Side::kCumulative)
    return refuse_with(KILN_E_ARGUMENT,
                       "aotriton: sequences of %s begin at their lengths' sums (REUSE), so lengths must be CUMULATIVE",
                       names.tensor);
  if (!side.stacked && side.position != Side::kImplied)
    return refuse_with(KILN_E_UNSUPPORTED,
                       "aotriton: sequences of %s in batches of their own (BHSD) must begin with their batch (IMPLIED)",
                       names.tensor);
  if (side.stacked && side.most <= 0 && (side.position == Side::kImplied || side.length == Side::kMost))
    return refuse_with(KILN_E_ARGUMENT, "aotriton: this mode of sequences needs %s, which must be above 0", names.most);
  return hipSuccess;
}

// A number for each of `batch` sequences.
Listed list(const kiln_tensor* of, int64_t most, int64_t count) {
  return {{nullptr, KILN_INT32, 1, {count}, {1}, {}}, of, most};
}

hipError_t place_one(const Side& side, const Names& names, const kiln_tensor& tensor, int64_t batch, Placed* out) {
  *out = {nullptr, nullptr, false, false, -1, list(nullptr, 0, 0), list(nullptr, 0, 0)};
  if (side.length == Side::kCumulative && side.lengths.sizes[0] != batch + 1)
    return refuse_with(KILN_E_ARGUMENT, "aotriton: %s must have an element more than there are sequences",
                       names.lengths);
  if (!side.stacked || side.position == Side::kImplied) {
    out->split = side.stacked;
    out->most = side.most > 0 ? side.most : -1;
    if (out->split && (tensor.sizes[0] != 1 || tensor.sizes[2] / side.most < batch))
      return refuse_with(KILN_E_ARGUMENT, "aotriton: %s has fewer rows than its sequences have, or a batch size over 1",
                         names.tensor);
    if (side.length == Side::kCumulative) {
      out->cu = &side.lengths;
      out->sums = true;
    } else if (side.length == Side::kIndividual) {
      out->used = &side.lengths;
    }
    return hipSuccess;
  }
  if (side.position == Side::kReused) {
    out->cu = &side.lengths;
    return hipSuccess;
  }
  if (side.positions.sizes[0] < batch)
    return refuse_with(KILN_E_ARGUMENT, "aotriton: there are fewer %s than sequences", names.positions);
  out->cu = &side.positions;
  if (side.positions.sizes[0] != batch + 1) out->begins = list(&side.positions, tensor.sizes[2], batch + 1);
  if (side.length == Side::kIndividual)
    out->used = &side.lengths;
  else
    out->lengths = list(side.length == Side::kCumulative ? &side.lengths : nullptr, side.most, batch);
  return hipSuccess;
}

// libkiln takes sums of lengths for both sides or for none: makes lengths of them.
void count_by_itself(const Side& side, int64_t batch, Placed* out) {
  out->lengths = list(out->cu, side.most, batch);
  out->cu = nullptr;
  out->sums = false;
}

// What is made is what libkiln is given.
void point_at_made(Placed* side) {
  if (side->begins.array.sizes[0]) side->cu = &side->begins.array;
  if (side->lengths.array.sizes[0]) side->used = &side->lengths.array;
}

constexpr uint64_t bytes_of(const Listed& listed) {
  const uint64_t bytes = static_cast<uint64_t>(listed.array.sizes[0]) * sizeof(int32_t);
  return (bytes + KILN_WORKSPACE_ALIGNMENT - 1) & ~uint64_t{KILN_WORKSPACE_ALIGNMENT - 1};
}

kiln_argument tensor_or_none(const kiln_tensor* tensor) {
  kiln_argument argument = {tensor ? KILN_ARG_TENSOR : KILN_ARG_ABSENT, 0, {}};
  argument.value.tensor = tensor;
  return argument;
}

kiln_argument number(int64_t value) {
  kiln_argument argument = {KILN_ARG_INT, 0, {}};
  argument.value.integer = value;
  return argument;
}

// The operation seq_lengths of the flash family, for one side.
hipError_t make(const Session& session, const kiln_queue& queue, const Placed& side) {
  const Listed &begins = side.begins, &lengths = side.lengths;
  if (!begins.array.sizes[0] && !lengths.array.sizes[0]) return hipSuccess;
  kiln_operation operation;
  if (kiln_status status = kiln_find_operation(session.kiln, "flash.seq_lengths", &operation)) return error_of(status);
  const kiln_argument arguments[] = {
      tensor_or_none(lengths.of),
      tensor_or_none(begins.of),
      tensor_or_none(lengths.array.sizes[0] ? &lengths.array : nullptr),
      tensor_or_none(begins.array.sizes[0] ? &begins.array : nullptr),
      number(lengths.most > 0 ? lengths.most : 0),
      number(begins.most),
  };
  kiln_call call = KILN_CALL_INIT;
  call.operation = operation;
  call.queue = &queue;
  call.arguments = arguments;
  call.argument_count = sizeof arguments / sizeof *arguments;
  return error_of(kiln_launch(&call));
}

}  // namespace

hipError_t place(const Side& rows, const Side& keys, const kiln_tensor& q, const kiln_tensor& k, Sequences* out) {
  hipError_t error = check(rows, kRows);
  if (error || (error = check(keys, kKeys))) return error;
  int64_t batch = count_of(rows, q);
  if (batch < 0) batch = count_of(keys, k);
  if (batch < 0)
    return refuse(KILN_E_ARGUMENT, "aotriton: neither lengths of queries nor of keys say how many sequences there are");
  out->batch = batch;
  out->heads = q.sizes[1];
  out->packed = rows.stacked && rows.position != Side::kImplied;
  if ((error = place_one(rows, kRows, q, batch, &out->rows))) return error;
  if ((error = place_one(keys, kKeys, k, batch, &out->keys))) return error;
  if (out->rows.sums && out->keys.cu && !out->keys.sums) count_by_itself(rows, batch, &out->rows);
  if (out->keys.sums && out->rows.cu && !out->rows.sums) count_by_itself(keys, batch, &out->keys);
  point_at_made(&out->rows);
  point_at_made(&out->keys);
  return hipSuccess;
}

const kiln_tensor* shape(const Placed& side, int64_t batch, const kiln_tensor* tensor, kiln_tensor* into) {
  if (!tensor) return nullptr;
  *into = *tensor;
  if (side.split) {
    // Of tensors that do not fit to each other libkiln is to find that they do not: no size becomes another's.
    into->strides[0] = static_cast<int64_t>(static_cast<uint64_t>(side.most) * static_cast<uint64_t>(into->strides[2]));
    into->sizes[0] = static_cast<int64_t>(static_cast<uint64_t>(into->sizes[0]) * static_cast<uint64_t>(batch));
    into->sizes[2] = batch ? into->sizes[2] / batch : 0;
  }
  if (side.most >= 0 && side.most < into->sizes[2]) into->sizes[2] = side.most;
  return into;
}

hipError_t make_arrays(const Session& session, const kiln_queue& queue, Sequences* sequences, void** memory) {
  Listed* arrays[] = {&sequences->rows.begins, &sequences->rows.lengths, &sequences->keys.begins,
                      &sequences->keys.lengths};
  uint64_t bytes = 0;
  for (const Listed* array : arrays) bytes += bytes_of(*array);
  *memory = nullptr;
  if (!bytes) return hipSuccess;
  const Driver& driver = session.machine->driver;
  hipError_t error = allocate(driver, bytes, queue.stream, memory);
  if (error) return error;
  char* next = static_cast<char*>(*memory);
  for (Listed* array : arrays) {
    array->array.data = next;
    next += bytes_of(*array);
  }
  error = make(session, queue, sequences->rows);
  if (!error) error = make(session, queue, sequences->keys);
  if (!error) return hipSuccess;
  error = release(driver, *memory, queue.stream, error);
  *memory = nullptr;
  return error;
}

}  // namespace kiln_aotriton
