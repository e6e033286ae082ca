// kiln._core.Runtime: a kiln_t with the flash family.
#ifndef KILN_BINDINGS_RUNTIME_H
#define KILN_BINDINGS_RUNTIME_H

#include <memory>

#include "entries.h"

namespace kiln_python {

void define_runtime(nb::module_& module);

}  // namespace kiln_python

#endif
