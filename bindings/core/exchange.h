// Attention of arrays whose library lets C look at them (DLPack's exchange table): PyTorch's, from 2.10 on.
#ifndef KILN_BINDINGS_EXCHANGE_H
#define KILN_BINDINGS_EXCHANGE_H

#include "errors.h"

namespace kiln_python {

void define_exchange(nb::module_& module);

}  // namespace kiln_python

#endif
