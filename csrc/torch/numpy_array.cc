#include "torch/numpy_array.h"

#include <pybind11/numpy.h>

#include <string_view>

namespace rocenante {

namespace {

using Numpy = pybind11::detail::npy_api;

// numpy.ndarray, once somebody has passed one: nothing is imported for those who pass tensors.
bool is_ndarray(PyObject* object) {
  static PyTypeObject* known = nullptr;  // guarded by the GIL
  if (Py_TYPE(object) == known) return true;
  if (std::string_view(Py_TYPE(object)->tp_name) != "numpy.ndarray") return false;
  PyTypeObject* type = Numpy::get().PyArray_Type_;
  if (Py_TYPE(object) != type) return false;
  known = type;
  return true;
}

std::optional<DType> dtype_of(int number) {
  const auto by_size = [](size_t bytes, DType one, DType two, DType four, DType eight) {
    return bytes == 1 ? one : bytes == 2 ? two : bytes == 4 ? four : eight;
  };
  const auto integer = [&](size_t bytes) {
    return by_size(bytes, DType::int8, DType::int16, DType::int32, DType::int64);
  };
  const auto whole = [&](size_t bytes) {
    return by_size(bytes, DType::uint8, DType::uint16, DType::uint32, DType::uint64);
  };
  constexpr int kHalf = 23;  // which pybind11 does not name
  switch (number) {
    case Numpy::NPY_BOOL_:
      return DType::boolean;
    case Numpy::NPY_BYTE_:
      return integer(sizeof(signed char));
    case Numpy::NPY_SHORT_:
      return integer(sizeof(short));
    case Numpy::NPY_INT_:
      return integer(sizeof(int));
    case Numpy::NPY_LONG_:
      return integer(sizeof(long));
    case Numpy::NPY_LONGLONG_:
      return integer(sizeof(long long));
    case Numpy::NPY_UBYTE_:
      return whole(sizeof(unsigned char));
    case Numpy::NPY_USHORT_:
      return whole(sizeof(unsigned short));
    case Numpy::NPY_UINT_:
      return whole(sizeof(unsigned));
    case Numpy::NPY_ULONG_:
      return whole(sizeof(unsigned long));
    case Numpy::NPY_ULONGLONG_:
      return whole(sizeof(unsigned long long));
    case kHalf:
      return DType::float16;
    case Numpy::NPY_FLOAT_:
      return DType::float32;
    case Numpy::NPY_DOUBLE_:
      return DType::float64;
    case Numpy::NPY_CFLOAT_:
      return DType::complex64;
    case Numpy::NPY_CDOUBLE_:
      return DType::complex128;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<NumpyFields> numpy_fields(PyObject* object) {
  if (!is_ndarray(object)) return std::nullopt;
  const auto* array = pybind11::detail::array_proxy(object);
  const auto* type = pybind11::detail::array_descriptor_proxy(array->descr);
  const auto dtype = dtype_of(type->type_num);
  if (!dtype || (type->byteorder != '=' && type->byteorder != '|')) return std::nullopt;
  return NumpyFields{array->data,    array->nd, array->dimensions,
                     array->strides, *dtype,    (array->flags & Numpy::NPY_ARRAY_WRITEABLE_) != 0};
}

}  // namespace rocenante
