// Reading the arguments of METH_FASTCALL functions: pybind11's own way costs more than a small
// collective.
#pragma once

#include <Python.h>

#include <array>
#include <string>

#include "core/clock.h"
#include "core/error.h"
#include "core/types.h"
#include "torch/array.h"

namespace rocenante {

struct FastCall {
  PyObject* const* values;
  Py_ssize_t count;  // of positional ones; the named follow
  PyObject* names;   // tuple or null
};

// What a function takes: its parameters in order, the first `positional` of which need no name, the
// first `required` of which must be given.
template <size_t N>
struct Signature {
  const char* function;
  int positional;
  int required;
  std::array<const char*, N> names;

  // Borrowed references, null where not given (or None). Throws PythonError(TypeError).
  std::array<PyObject*, N> read(const FastCall& call) const {
    std::array<PyObject*, N> found{};
    if (call.count > positional) {
      PyErr_Format(PyExc_TypeError,
                   "%s() takes at most %d positional arguments, but %zd were given", function,
                   positional, call.count);
      throw PythonError();
    }
    for (Py_ssize_t i = 0; i < call.count; ++i) found[i] = call.values[i];
    const Py_ssize_t named = call.names ? PyTuple_GET_SIZE(call.names) : 0;
    for (Py_ssize_t k = 0; k < named; ++k)
      found[place(PyTuple_GET_ITEM(call.names, k), found)] = call.values[call.count + k];
    for (size_t i = 0; i < N; ++i)
      if (found[i] == Py_None) found[i] = nullptr;
    for (int i = 0; i < required; ++i)
      if (!found[i]) {
        PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", function, names[i]);
        throw PythonError();
      }
    return found;
  }

 private:
  size_t place(PyObject* name, const std::array<PyObject*, N>& found) const {
    for (size_t i = 0; i < N; ++i) {
      if (PyUnicode_CompareWithASCIIString(name, names[i]) != 0) continue;
      if (!found[i]) return i;
      PyErr_Format(PyExc_TypeError, "%s() got the argument '%s' twice", function, names[i]);
      throw PythonError();
    }
    PyErr_Format(PyExc_TypeError, "%s() has no argument '%U'", function, name);
    throw PythonError();
  }
};

inline int to_int(PyObject* object, int otherwise) {
  if (!object) return otherwise;
  const long value = PyLong_AsLong(object);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  if (value < INT32_MIN || value > INT32_MAX)
    throw Error(ErrorKind::usage, std::to_string(value) + " is out of range");
  return static_cast<int>(value);
}

inline double to_double(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred()) throw PythonError();
  return value;
}

// Seconds, or a datetime.timedelta.
inline Milliseconds to_timeout(PyObject* object, Milliseconds otherwise) {
  if (!object) return otherwise;
  double seconds;
  if (PyObject_HasAttrString(object, "total_seconds")) {
    PyObject* total = PyObject_CallMethod(object, "total_seconds", nullptr);
    if (!total) throw PythonError();
    seconds = PyFloat_AsDouble(total);
    Py_DECREF(total);
  } else {
    seconds = to_double(object);
  }
  if (!(seconds > 0 && seconds < 1e9))
    throw Error(ErrorKind::usage,
                "the timeout must be a positive number of seconds, not " + std::to_string(seconds));
  // Rounded up: a positive time must not become none.
  return Milliseconds(static_cast<int64_t>(seconds * 1000 + 0.999));
}

inline Reduction to_reduction(PyObject* op, PyObject* factor) {
  Reduction reduction;
  if (op) {
    const char* text = PyUnicode_AsUTF8(op);
    if (!text) throw PythonError();
    int i = 0;
    while (i < kReduceOpCount && name_of(static_cast<ReduceOp>(i)) != text) ++i;
    if (i == kReduceOpCount)
      throw Error(ErrorKind::usage, "op=\"" + std::string(text) +
                                        "\" is not known: use sum, avg, product, min, max, band, "
                                        "bor, bxor or premul_sum");
    reduction.op = static_cast<ReduceOp>(i);
  }
  if ((reduction.op == ReduceOp::premul_sum) != (factor != nullptr))
    throw Error(ErrorKind::usage, "factor= belongs to op=\"premul_sum\", and only to it");
  if (factor) reduction.factor = to_double(factor);
  return reduction;
}

}  // namespace rocenante
