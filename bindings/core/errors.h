// Failures become exceptions of kiln.errors. They are thrown as nanobind's own exception, which it turns into Python's
// before it returns to the interpreter: no C++ exception leaves this module.
#ifndef KILN_BINDINGS_ERRORS_H
#define KILN_BINDINGS_ERRORS_H

#include <nanobind/nanobind.h>

#include <string>

#include "kiln/kiln.h"

namespace kiln_python {

namespace nb = nanobind;

// The exception of a status with that sentence.
[[noreturn]] void raise(kiln_status status, const std::string& sentence);
// Raises what kiln_error() of this thread says of `status`, unless that is KILN_OK.
void check(kiln_status status);
// Raises ArgumentError.
[[noreturn]] void refuse(const std::string& sentence);

// As text for a sentence: at most some dozens of characters of a value's repr, or its type where it has none.
std::string shown(nb::handle value);

}  // namespace kiln_python

#endif
