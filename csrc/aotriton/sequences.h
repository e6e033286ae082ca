// How the sequences of a call lie, and what libkiln is told of it.
#pragma once

#include <stdint.h>

#include "kiln/flash.h"
#include "open.h"

namespace kiln_aotriton {

// One side of a call, its queries or its keys: AOTriton's VarlenMode, of which all that its older interfaces can say
// are cases. The numbers are AOTriton's.
struct Side {
  enum Length : uint8_t { kMost = 0, kCumulative = 1, kIndividual = 2 };
  enum Position : uint8_t { kImplied = 0, kReused = 1, kListed = 2 };

  bool stacked;           // one after another in batch 0
  uint8_t length;         // kMost: `most`, or, where not stacked, all that the tensor has
  uint8_t position;       // kImplied: at the start of its batch, or if stacked at multiples of `most`
  kiln_tensor lengths;    // [sequences + 1], or if individual [sequences]; data NULL: not given
  kiln_tensor positions;  // [sequences], or more
  int64_t most;           // no sequence is longer; 0 or below: not known
};

// An array of a number for each sequence that must be made on the device first: where each begins, or how long it is.
struct Listed {
  kiln_tensor array;      // its data is set once it is made; sizes[0] 0: not needed
  const kiln_tensor* of;  // what it is made of; NULL: each number is `most`
  int64_t most;
};

// One side as libkiln takes it.
struct Placed {
  const kiln_tensor* cu;    // NULL: none
  const kiln_tensor* used;  // NULL: none
  bool sums;                // cu tells lengths alone
  bool split;               // stacked in equal steps: shape() makes batches of them
  int64_t most;             // what rows a tensor keeps of each batch; below 0: all
  Listed begins, lengths;
};

// Both sides.
struct Sequences {
  int64_t batch, heads;
  bool packed;  // the queries of all sequences lie one after another
  Placed rows, keys;
};

// Finds how sequences lie. A failure leaves a sentence.
hipError_t place(const Side& rows, const Side& keys, const kiln_tensor& q, const kiln_tensor& k, Sequences* out);

// A tensor of a side as libkiln takes it, in `into`; NULL where it is not given.
const kiln_tensor* shape(const Placed& side, int64_t batch, const kiln_tensor* tensor, kiln_tensor* into);

// Makes the arrays that are needed in memory which is taken on the stream and is the caller's to release; NULL if there
// are none. A failure leaves a sentence and no memory.
hipError_t make_arrays(const Session& session, const kiln_queue& queue, Sequences* sequences, void** memory);

}  // namespace kiln_aotriton
