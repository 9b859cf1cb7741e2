// What the methods of _C.Communicator share: the Python object, errors, the GIL, shapes of results.
#pragma once

#include <Python.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "torch/array.h"
#include "torch/communicator_binding.h"
#include "torch/engine.h"
#include "torch/tensors.h"

namespace rocenante {

using Use = Array::Use;

struct Object {
  PyObject_HEAD std::shared_ptr<Engine> engine;
  Milliseconds timeout;
};

inline Object& self_of(PyObject* self) { return *reinterpret_cast<Object*>(self); }

// What every method does around its work: C++ errors become Python's.
template <class F>
PyObject* guarded(F&& body) {
  try {
    return body();
  } catch (const Error& error) {
    set_python_error(error);
  } catch (const PythonError&) {
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const c10::Error& error) {  // of the store
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <class F>
void release_gil(F&& body) {
  const pybind11::gil_scoped_release released;
  body();
}

inline PyObject* none() { return Py_NewRef(Py_None); }

inline Engine& engine_of(Object& self) {
  if (!self.engine) throw Error(ErrorKind::usage, "this Communicator has not been initialised");
  self.engine->check_process();
  return *self.engine;
}

// Runs body(communicator) in its turn, without the GIL.
template <class F>
void run(Object& self, F&& body) {
  Engine& engine = engine_of(self);
  release_gil([&] { engine.executor().run([&] { body(engine.communicator()); }); });
}

inline DType reducible(const Array& array, const Reduction& reduction) {
  check_reduction(array.dtype(), reduction.op);
  return array.dtype();
}

inline void check_like(const Array& out, const Array& in, int64_t count) {
  if (out.dtype() != in.dtype())
    throw Error(ErrorKind::usage, "out is of dtype " + std::string(name_of(out.dtype())) +
                                      ", but the array of " + std::string(name_of(in.dtype())));
  if (out.count() != count)
    throw Error(ErrorKind::usage, "out has " + std::to_string(out.count()) + " elements, but " +
                                      std::to_string(count) + " are needed");
}

// The shape without the factor `parts` in its first dimension.
inline Extents share_of(const Extents& shape, int parts) {
  if (shape.empty() || shape[0] % parts != 0)
    throw Error(
        ErrorKind::usage,
        "the array's first dimension must be a multiple of the world size, " +
            std::to_string(parts) +
            (shape.empty() ? ", but it has none" : ", but it is " + std::to_string(shape[0])));
  Extents share = shape;
  share[0] /= parts;
  return share;
}

inline Extents stacked(const Extents& shape, int parts) {
  Extents result{parts};
  result.append(shape.begin(), shape.end());
  return result;
}

// The result's array: the one given as out=, or a new one.
class Result {
 public:
  Result(PyObject* out, const Array& like, const Extents& shape, int64_t count)
      : object_(out ? Py_NewRef(out) : like.empty(shape)),
        array_(object_.get(), Use::write, "out") {
    check_like(array_, like, count);
  }
  Array& array() { return array_; }
  PyObject* release() { return object_.release(); }

 private:
  Owned object_;
  Array array_;
};

inline Pointers parts_of(char* data, size_t bytes, int parts) {
  Pointers result;
  for (int i = 0; i < parts; ++i) result.push_back(data + bytes * i);
  return result;
}

inline ConstPointers const_parts_of(const char* data, size_t bytes, int parts) {
  ConstPointers result;
  for (int i = 0; i < parts; ++i) result.push_back(data + bytes * i);
  return result;
}

}  // namespace rocenante
