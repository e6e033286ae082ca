// kiln._core: Kiln's C interface for the Python package `kiln`, which documents and checks what users pass.
#include <nanobind/stl/string.h>

#include "runtime.h"
#include "shortcut.h"
#include "tensor.h"

NB_MODULE(_core, module) {
  using namespace kiln_python;
  nb::set_leak_warnings(false);  // what a user keeps to the end is his; a library prints nothing
  module.doc() = "Kiln's C interface, for the package kiln; not for direct use.";
  module.attr("NVIDIA") = static_cast<int>(KILN_VENDOR_NVIDIA);
  module.attr("AMD") = static_cast<int>(KILN_VENDOR_AMD);
  module.def("version", [] { return KILN_VERSION; }, "The version of this package.");
  // The loader answers every request for libkiln.so.0 with the first that a process has loaded, from any folder.
  module.def("library_version", &kiln_version, "The version of the process's libkiln.so.0; may be another.");
  module.def("last_error", &kiln_error, "The sentence that a call left on this thread last; '' if none.");
  module.def("status_name", &kiln_status_name, nb::arg("status"), "'KILN_E_ARGUMENT' ...; 'KILN_E_?' if unknown.");
  module.def("raise_status", &check, nb::arg("status"),
             "Raises the exception of kiln.errors for a status, with last_error(); nothing where it is 0.");
  define_tensor(module);
  define_runtime(module);
  define_shortcut(module);
}
