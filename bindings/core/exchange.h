// Arrays whose library lets C look at them where they lie, by the table of functions that their type offers (DLPack's
// exchange table): PyTorch's, from 2.10 on.
#ifndef KILN_BINDINGS_EXCHANGE_H
#define KILN_BINDINGS_EXCHANGE_H

#include "dlpack.h"
#include "errors.h"

namespace kiln_python {

// Null: the type offers none, or one of another version.
const DlExchange* exchange_of(nb::handle type);

// Of a dimension of [batch, heads, rows, head_dim] its place where rows may come first, or the other way round.
inline int place_of(int dimension, bool rows_first) {
  return rows_first && (dimension == 1 || dimension == 2) ? 3 - dimension : dimension;
}

// [batch, heads, rows, head_dim], the last dimension contiguous. False: it is not that.
bool describe(const DlTensor& from, bool rows_first, kiln_tensor* to);
// Lengths and places: [batch], [batch, pages].
bool describe_places(const DlTensor& from, int32_t rank, kiln_tensor* to);

// The library's current stream. False: not of a GPU.
bool queue_of(const DlExchange& table, const DlDevice& device, kiln_queue* out);

}  // namespace kiln_python

#endif
