// A call of AOTriton's in words that no version of its interface has changed: what interface/ makes of its structures,
// and forward.cc and backward.cc run.
#pragma once

#include <stdint.h>

#include "hip.h"
#include "kiln/kiln.h"
#include "sequences.h"
#include "window.h"

namespace kiln_aotriton {

// Views are borrowed; NULL: not given, though not known yet whether it must be.
struct Dropout {
  float probability;
  const kiln_tensor* seed;
  const kiln_tensor* offset;  // what lies there counts in addition to offset_value
  int64_t offset_value;
};

// What both passes are given.
struct Scores {
  hipError_t error;  // not hipSuccess: its structure could not be understood; a sentence is left
  const kiln_tensor* q;
  const kiln_tensor* k;
  const kiln_tensor* v;
  const kiln_tensor* out;
  const kiln_tensor* bias;
  const kiln_tensor* lse;  // rank 2
  float sm_scale;
  Dropout dropout;
  Side rows, keys;  // of Q, of K and V
  int8_t causal_type;
  int32_t window_left, window_right;
  int force_backend_index;
  bool heads_inside;  // the log-sum-exp has tokens outside and heads inside
};

struct Forward : Scores {
  const kiln_tensor* slopes;
  const kiln_tensor* seed_out;
  const kiln_tensor* offset_out;
  const kiln_tensor* mask;  // encoded_softmax
};

struct Backward : Scores {
  const kiln_tensor* dout;
  const kiln_tensor* dq;
  const kiln_tensor* dk;
  const kiln_tensor* dv;
  const kiln_tensor* dbias;
};

// Each runs its call on the stream. One that fails leaves a sentence, fills what it would have written with NaN, and
// says the sentence on stderr.
hipError_t forward(const Forward& call, void* stream);
hipError_t backward(const Backward& call, void* stream);
hipError_t simulate(const kiln_tensor* mask, const Dropout& dropout, void* stream);

}  // namespace kiln_aotriton
