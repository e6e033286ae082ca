#include "errors.h"

namespace kiln_python {

void raise(kiln_status status, const std::string& sentence) {
  nb::object error = nb::module_::import_("kiln.errors").attr("of_status")(status, sentence.c_str());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void check(kiln_status status) {
  if (status != KILN_OK) raise(status, kiln_error());  // copied before anything else can speak on this thread
}

void refuse(const std::string& sentence) { raise(KILN_E_ARGUMENT, sentence); }

std::string shown(nb::handle value) {
  constexpr size_t kMost = 60;
  PyObject* text = PyObject_Repr(value.ptr());
  Py_ssize_t size = 0;
  const char* utf8 = text ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr;
  std::string result;
  if (utf8) {
    result.assign(utf8, static_cast<size_t>(size));
    if (result.size() > kMost) {
      size_t end = kMost;
      while (end && (static_cast<unsigned char>(result[end]) & 0xC0) == 0x80) --end;  // not amid a character
      result = result.substr(0, end) + "...";
    }
    for (char& c : result)
      if (c == '\n' || c == '\r') c = ' ';
  } else {
    PyErr_Clear();
    result = std::string("a ") + nb::type_name(value.type()).c_str();
  }
  Py_XDECREF(text);
  return result;
}

}  // namespace kiln_python
