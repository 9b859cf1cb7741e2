// numpy arrays by their fields: numpy's buffer protocol builds a format string at every call, which
// takes longer than a small collective.
#pragma once

#include <Python.h>

#include <optional>

#include "core/types.h"

namespace rocenante {

struct NumpyFields {
  char* data;
  int axes;
  const Py_ssize_t* shape;
  const Py_ssize_t* strides;  // in bytes
  DType dtype;
  bool writable;
};

// Nothing if the object is not exactly a numpy.ndarray, or its elements are not numbers of a known
// type in this machine's byte order: the buffer protocol may serve it, or explain it, then. The
// fields are the array's own, to be used while it is referred to.
std::optional<NumpyFields> numpy_fields(PyObject* object);

}  // namespace rocenante
