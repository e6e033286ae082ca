// How Python calls a Shortcut: by its methods, and by functions that read a call's arguments without a frame of
// Python's.
#include "shortcut.h"

#include <float.h>

#include <exception>

namespace kiln_python {
namespace {

// Of attend_or(); `self` is the shortcut and the other function.
PyObject* call_or(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  if (count == 3 && (!names || PyTuple_Size(names) == 0)) {
    auto* shortcut = nb::inst_ptr<Shortcut>(PyTuple_GetItem(self, 0));
    try {
      nb::object out = shortcut->attend(arguments[0], arguments[1], arguments[2], 0.0, 0);
      if (!out.is_none()) return PyTuple_Pack(2, out.ptr(), Py_None);
    } catch (nb::python_error& error) {
      error.restore();
      return nullptr;
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      return nullptr;
    }
  }
  return PyObject_Vectorcall(PyTuple_GetItem(self, 1), arguments, static_cast<size_t>(count), names);
}

// What a function's arguments are to a plain call: arrays by number, or one of these.
enum { kScale = -1, kNothing = -2, kWindow = -3, kFlag = 1 << 16 };

// The arguments of a function of Python's, read by a dictionary of what each is. False: it is no plain call.
struct Plain {
  nb::handle arrays[Shortcut::kMostArrays];
  double scale = 0;
  int flags = 0;

  Plain() { std::fill(std::begin(arrays), std::end(arrays), nb::handle(Py_None)); }

  bool read(PyObject* fields, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
    if (count > Shortcut::kPositional) return false;
    for (int i = 0; i < count; ++i) arrays[i] = arguments[i];
    const Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t i = 0; i < named; ++i) {
      PyObject* field = PyDict_GetItemWithError(fields, PyTuple_GetItem(names, i));
      if (!field || !put(PyLong_AsLong(field), arguments[count + i], count)) return PyErr_Clear(), false;
    }
    return true;
  }

 private:
  bool put(long field, PyObject* value, Py_ssize_t count) {
    if (field >= kFlag) {
      if (value == Py_True) flags |= static_cast<int>(field - kFlag);
      return PyBool_Check(value);
    }
    if (field == kScale) {
      if (value == Py_None) return true;
      if (!PyFloat_CheckExact(value)) return false;
      scale = PyFloat_AsDouble(value);
      return scale >= FLT_MIN || scale <= -FLT_MIN;  // a 0 would be the usual one
    }
    if (field == kWindow) return is_minus_one(value, 0) && is_minus_one(value, 1) && PyTuple_Size(value) == 2;
    if (field == kNothing)
      return value == Py_None || value == Py_False ||
             ((PyLong_CheckExact(value) || PyFloat_CheckExact(value)) && PyObject_IsTrue(value) == 0);
    if (field < count || field >= Shortcut::kMostArrays) return false;  // given twice
    arrays[field] = value;
    return true;
  }

  static bool is_minus_one(PyObject* pair, Py_ssize_t at) {
    if (!PyTuple_CheckExact(pair) || PyTuple_Size(pair) <= at) return false;
    PyObject* number = PyTuple_GetItem(pair, at);
    return PyLong_CheckExact(number) && PyLong_AsLong(number) == -1;
  }
};

// `self` is the shortcut, the dictionary, and flags that are the other way round.
template <nb::object (*kEnter)(Shortcut&, const Plain&)>
PyObject* call_plain(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  auto* shortcut = nb::inst_ptr<Shortcut>(PyTuple_GetItem(self, 0));
  Plain plain;
  try {
    if (shortcut->is_open && plain.read(PyTuple_GetItem(self, 1), arguments, count, names)) {
      plain.flags ^= static_cast<int>(PyLong_AsLong(PyTuple_GetItem(self, 2)));
      return kEnter(*shortcut, plain).release().ptr();
    }
    return nb::none().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

nb::object attend_plain(Shortcut& shortcut, const Plain& plain) {
  const nb::handle* a = plain.arrays;
  return shortcut.attend(a[0], a[1], a[2], plain.scale, plain.flags);
}

nb::object decode_plain(Shortcut& shortcut, const Plain& plain) {
  const nb::handle* a = plain.arrays;
  return shortcut.decode(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], plain.scale, plain.flags);
}

template <nb::object (*kEnter)(Shortcut&, const Plain&)>
nb::object function_of(Shortcut& shortcut, nb::dict fields, int inverted) {
  static PyMethodDef method = {"plain",
                               reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_plain<kEnter>)),
                               METH_FASTCALL | METH_KEYWORDS, nullptr};
  nb::object self = nb::make_tuple(nb::find(shortcut), fields, inverted);
  return nb::steal(PyCFunction_NewEx(&method, self.ptr(), nullptr));
}

nb::object attend_or(Shortcut& shortcut, nb::callable otherwise) {
  static PyMethodDef method = {"attend_or", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_or)),
                               METH_FASTCALL | METH_KEYWORDS, nullptr};
  nb::object self = nb::make_tuple(nb::find(shortcut), otherwise);
  return nb::steal(PyCFunction_NewEx(&method, self.ptr(), nullptr));
}

}  // namespace

void define_shortcut(nb::module_& module) {
  nb::class_<Shortcut>(
      module, "Shortcut",
      "Plain attention past PyTorch's dispatcher, on the current stream, for tensors that C may look at.")
      .def(nb::init<nb::type_object, nb::callable, nb::callable, nb::callable, nb::callable, nb::callable, uintptr_t,
                    nb::tuple, nb::callable, nb::callable>(),
           nb::arg("type"), nb::arg("empty_like"), nb::arg("empty_strided"), nb::arg("records"), nb::arg("unpack_dual"),
           nb::arg("casts"), nb::arg("is_watched"), nb::arg("watchers"), nb::arg("wrote"), nb::arg("runtime"),
           "type: of all tensors.\n"
           "empty_like: of q a result that lies as q does.\n"
           "empty_strided: of q, sizes and strides a result on q's device, of its dtype.\n"
           "records: whether this thread records gradients; then no tensor may want one.\n"
           "unpack_dual: torch.autograd.forward_ad's; attend() takes a call while it has nothing to unpack.\n"
           "casts: whether autocast would cast what attend() takes.\n"
           "is_watched: the address of a C function without arguments, which must give 0 for a call to be taken.\n"
           "watchers: functions that must give something false, too.\n"
           "wrote: is told of the arrays that a call has written, the caches and the result.\n"
           "runtime: gives the address of a runtime; asked again after a fork.")
      .def_rw("is_open", &Shortcut::is_open, "False: it takes no call.")
      .def("attend", &Shortcut::attend, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
           nb::arg("scale") = 0.0, nb::arg("flags") = 0,
           nb::sig("def attend(self, q: object, k: object, v: object, scale: float = 0.0, flags: int = 0) -> object"),
           "The result, once it is enqueued.\n"
           "\n"
           "None: it is no call for here or was refused; nothing was launched.\n"
           "Flags: 1 causal, 2 bottom right, 4 rows first, 1024 only if q and k have as many heads.")
      .def("decode", &Shortcut::decode, nb::arg("q").none(), nb::arg("k_cache").none(), nb::arg("v_cache").none(),
           nb::arg("k_new").none() = nb::none(), nb::arg("v_new").none() = nb::none(),
           nb::arg("out").none() = nb::none(), nb::arg("seqused_k").none() = nb::none(),
           nb::arg("block_table").none() = nb::none(), nb::arg("scale") = 0.0, nb::arg("flags") = 0,
           nb::sig("def decode(self, q: object, k_cache: object, v_cache: object, k_new: object = None, "
                   "v_new: object = None, out: object = None, seqused_k: object = None, block_table: object = None, "
                   "scale: float = 0.0, flags: int = 0) -> object"),
           "attend() of attention over a cache: the result, or None. Flags: 1 causal, 4 rows first.")
      .def(
          "attention", &function_of<attend_plain>, nb::arg("fields"), nb::arg("inverted") = 0,
          nb::sig("def attention(self, fields: dict[str, int], inverted: int = 0) -> Callable"),
          "attend() as a function of Python's arguments, the first three of which may have no names: None where a call "
          "is not plain.\n"
          "\n"
          "fields: what each argument is: an array's number, -1 the scale, -2 one that must be nothing, -3 the window, "
          "65536 and more a flag.\n"
          "inverted: the flags that an argument takes back, and that are there without it.")
      .def("decoding", &function_of<decode_plain>, nb::arg("fields"), nb::arg("inverted") = 0,
           nb::sig("def decoding(self, fields: dict[str, int], inverted: int = 0) -> Callable"),
           "The same of decode().")
      .def("attend_or", &attend_or, nb::arg("otherwise"),
           nb::sig("def attend_or(self, otherwise: Callable) -> Callable"),
           "A function that of three tensors alone gives (attend(), None).\n"
           "\n"
           "Of what that does not take, and of all other arguments, it gives what `otherwise` does. No frame of "
           "Python's "
           "is made before.");
}

}  // namespace kiln_python
