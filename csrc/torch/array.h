// The arrays that Communicator takes from Python: torch tensors, whatever has the buffer protocol
// (numpy), and whatever has __dlpack__ or __cuda_array_interface__ (cupy).
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <string>
#include <utility>

#include "core/types.h"

namespace rocenante {

struct NumpyFields;

// Thrown when a Python exception is set.
struct PythonError {};

// A reference owned here.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {}
  ~Owned() { Py_XDECREF(object_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

using Extents = c10::SmallVector<int64_t, 6>;

// Holds on to the array's memory. To be made and destroyed with the GIL; dense() and unpack() need
// none.
class Array {
 public:
  enum class Use { read, write, update };

  Array() = default;
  // Throws usage, naming `what`, if the object is not an array of a known dtype in CPU memory, or
  // if it is to be written but read-only or overlapping.
  Array(PyObject* object, Use use, const char* what);
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  PyObject* object() const { return object_; }  // borrowed
  DType dtype() const { return dtype_; }
  const Extents& shape() const { return shape_; }
  int64_t count() const { return count_; }
  size_t bytes() const { return count_ * item_bytes_; }

  // Its elements in row-major order without gaps: in place, or in a copy if they lie otherwise.
  char* dense();
  // Writes a copy back.
  void unpack();
  // Reads from a copy from now on, if its memory overlaps the other's without beginning where that
  // does.
  void separate(Array& other);

  // A new reference to an array of its kind and dtype, uninitialised.
  PyObject* empty(const Extents& shape) const;

 private:
  enum class Kind { tensor, numpy, buffer };

  void open_tensor(at::Tensor tensor, const char* what);
  void open_device_tensor(const at::Tensor& tensor, const char* what);
  void open_numpy(const NumpyFields& array, const char* what);
  void open_buffer(PyObject* object, const char* what);
  bool open_foreign(PyObject* object, const char* what);
  void check_layout(const char* what);

  PyObject* object_ = nullptr;
  Use use_ = Use::read;
  Kind kind_ = Kind::tensor;
  DType dtype_ = DType::uint8;
  char* data_ = nullptr;
  size_t item_bytes_ = 1;
  int64_t count_ = 1;
  Extents shape_, strides_;  // strides in bytes
  bool is_dense_ = true;
  std::unique_ptr<char[]> copy_;
  at::Tensor tensor_;         // whose memory data_ is
  at::Tensor device_tensor_;  // the caller's, if tensor_ is its copy in CPU memory
  Py_buffer buffer_ = {};
  bool has_buffer_ = false;
  bool holds_object_ = false;
};

}  // namespace rocenante
