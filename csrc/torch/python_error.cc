// Which Python exception a C++ error becomes.
#include "torch/communicator_binding.h"

namespace rocenante {

void set_python_error(const Error& error) {
  static const char* const names[] = {"UsageError",   "ConfigError",   "MismatchError",
                                      "TimeoutError", "PeerLostError", "AbortedError",
                                      "OSFailure"};
  PyObject* module = PyImport_ImportModule("rocenante.errors");
  PyObject* type =
      module ? PyObject_GetAttrString(module, names[static_cast<int>(error.kind())]) : nullptr;
  if (type) PyErr_SetString(type, error.what());
  Py_XDECREF(type);
  Py_XDECREF(module);
}

}  // namespace rocenante
