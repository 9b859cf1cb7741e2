#include "torch/array.h"

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/ATen.h>
#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "torch/numpy_array.h"
#include "torch/tensors.h"

namespace rocenante {

namespace {

[[noreturn]] void refuse(const char* what, const std::string& why) {
  throw Error(ErrorKind::usage, std::string("the ") + what + " " + why);
}

// From struct-style format and size, as PEP 3118 has them; long is 4 or 8 bytes, hence the size.
bool parse_format(const char* format, size_t bytes, DType* dtype) {
  std::string_view f = format ? format : "B";
  if (!f.empty() && (f[0] == '@' || f[0] == '=' || f[0] == '<')) f.remove_prefix(1);
  const auto by_size = [&](std::initializer_list<DType> types) {
    for (DType type : types)
      if (size_of(type) == bytes) return *dtype = type, true;
    return false;
  };
  if (f == "Zf" || f == "Zd") return by_size({DType::complex64, DType::complex128});
  if (f.size() != 1) return false;
  switch (f[0]) {
    case '?':
      return by_size({DType::boolean});
    case 'e':
      return by_size({DType::float16});
    case 'f':
    case 'd':
      return by_size({DType::float32, DType::float64});
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return by_size({DType::int8, DType::int16, DType::int32, DType::int64});
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return by_size({DType::uint8, DType::uint16, DType::uint32, DType::uint64});
    default:
      return false;
  }
}

// numpy arrays of these dtypes (from ml_dtypes) have no buffer protocol; their views as integers
// do.
struct ForeignType {
  const char* name;
  DType dtype;
  const char* view_as;
};
constexpr ForeignType kForeignTypes[] = {
    {"bfloat16", DType::bfloat16, "uint16"},
    {"float8_e4m3fn", DType::float8_e4m3fn, "uint8"},
    {"float8_e5m2", DType::float8_e5m2, "uint8"},
};

bool is_numpy(PyObject* object) {
  return std::string_view(Py_TYPE(object)->tp_name).starts_with("numpy.");
}

// Copies between strided memory and dense memory, whichever way.
template <bool kToDense>
void copy_strided(char* strided, char* dense, const Extents& shape, const Extents& strides,
                  size_t item_bytes) {
  const size_t axes = shape.size();
  const int64_t inner = axes ? shape[axes - 1] : 1;
  const int64_t step = axes ? strides[axes - 1] : 0;
  std::vector<int64_t> index(axes ? axes - 1 : 0);
  for (;;) {
    char* at = strided;
    for (int64_t i = 0; i < inner; ++i, at += step, dense += item_bytes)
      std::memcpy(kToDense ? dense : at, kToDense ? at : dense, item_bytes);
    size_t axis = index.size();
    for (;;) {
      if (axis == 0) return;
      --axis;
      strided += strides[axis];
      if (++index[axis] < shape[axis]) break;
      strided -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

PyObject* numpy_empty() {
  static PyObject* function = [] {
    Owned numpy(PyImport_ImportModule("numpy"));
    return numpy ? PyObject_GetAttrString(numpy.get(), "empty") : nullptr;
  }();
  return function;
}

}  // namespace

Array::Array(PyObject* object, Use use, const char* what) : object_(object), use_(use) {
  if (const auto numpy = numpy_fields(object))
    open_numpy(*numpy, what);
  else if (THPVariable_Check(object))
    open_tensor(THPVariable_Unpack(object), what);
  else
    open_buffer(object, what);
  check_layout(what);
}

Array::~Array() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
  if (holds_object_) Py_DECREF(object_);
}

void Array::open_numpy(const NumpyFields& array, const char* what) {
  if (use_ != Use::read && !array.writable)
    refuse(what, "is read-only, but the result must be written to it");
  // Like a buffer's: numpy does not resize an array that somebody else refers to.
  Py_INCREF(object_);
  holds_object_ = true;
  kind_ = Kind::numpy;
  dtype_ = array.dtype;
  item_bytes_ = size_of(dtype_);
  data_ = array.data;
  shape_.append(array.shape, array.shape + array.axes);
  strides_.append(array.strides, array.strides + array.axes);
}

void Array::open_tensor(at::Tensor tensor, const char* what) {
  if (tensor.is_cuda() && tensor.layout() == at::kStrided) return open_device_tensor(tensor, what);
  if (use_ == Use::read)
    check_readable(tensor, "Communicator", what);
  else
    check_writable(tensor, "Communicator", what);
  if (tensor.is_conj() || tensor.is_neg())
    refuse(what, "is a lazy conjugate or negation: call resolve_conj() and resolve_neg() on it");
  kind_ = Kind::tensor;
  dtype_ = transfer_dtype(tensor);
  item_bytes_ = tensor.element_size();
  if (item_bytes_ != size_of(dtype_))
    refuse(what, std::string("is of dtype ") + c10::toString(tensor.scalar_type()) +
                     ", which rocenante does not know");
  data_ = static_cast<char*>(use_ == Use::read ? const_cast<void*>(tensor.const_data_ptr())
                                               : tensor.mutable_data_ptr());
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    shape_.push_back(tensor.size(axis));
    strides_.push_back(tensor.stride(axis) * static_cast<int64_t>(item_bytes_));
  }
  tensor_ = std::move(tensor);
}

// Through a copy in CPU memory: right, but as slow as two copies across the bus. The copies are
// ordered with torch's current stream, and are done when they return.
void Array::open_device_tensor(const at::Tensor& tensor, const char* what) {
  if (use_ != Use::read && may_overlap(tensor.sizes(), tensor.strides()))
    refuse(what, "has elements that share memory, as after expand(): pass a copy");
  const at::Tensor host = use_ == Use::write
                              ? at::empty(tensor.sizes(), tensor.options().device(at::kCPU))
                              : tensor.to(at::kCPU).contiguous().resolve_conj().resolve_neg();
  open_tensor(host, what);
  device_tensor_ = tensor;
}

void Array::open_buffer(PyObject* object, const char* what) {
  const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (use_ == Use::read ? 0 : PyBUF_WRITABLE);
  if (!PyObject_CheckBuffer(object) || PyObject_GetBuffer(object, &buffer_, flags) < 0) {
    PyErr_Clear();
    if (open_foreign(object, what)) return;
    if (use_ != Use::read && PyObject_CheckBuffer(object))
      refuse(what, "is read-only, but the result must be written to it");
    refuse(what, std::string("is a ") + Py_TYPE(object)->tp_name +
                     ": expected a torch tensor, a numpy array of numbers, or another array in CPU "
                     "memory with __dlpack__");
  }
  has_buffer_ = true;
  kind_ = is_numpy(object) ? Kind::numpy : Kind::buffer;
  item_bytes_ = static_cast<size_t>(buffer_.itemsize);
  if (!parse_format(buffer_.format, item_bytes_, &dtype_))
    refuse(what, std::string("has elements of format \"") + buffer_.format +
                     "\", which are not numbers that rocenante knows in this machine's byte order");
  data_ = static_cast<char*>(buffer_.buf);
  for (int axis = 0; axis < buffer_.ndim; ++axis) {
    shape_.push_back(buffer_.shape[axis]);
    strides_.push_back(buffer_.strides[axis]);
  }
}

// Arrays without (usable) buffer protocol; false if it is none that is known.
bool Array::open_foreign(PyObject* object, const char* what) {
  if (is_numpy(object)) {
    Owned dtype(PyObject_GetAttrString(object, "dtype"));
    Owned name(dtype ? PyObject_GetAttrString(dtype.get(), "name") : nullptr);
    const char* text = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
    PyErr_Clear();
    for (const ForeignType& type : kForeignTypes) {
      if (!text || std::strcmp(text, type.name) != 0) continue;
      Owned view(PyObject_CallMethod(object, "view", "s", type.view_as));
      if (!view) throw PythonError();
      open_buffer(view.get(), what);
      kind_ = Kind::numpy;
      dtype_ = type.dtype;
      return true;
    }
    return false;
  }
  const bool dlpack = PyObject_HasAttrString(object, "__dlpack__");
  const bool device = PyObject_HasAttrString(object, "__cuda_array_interface__");
  if (!dlpack && !device) return false;
  Owned torch(PyImport_ImportModule("torch"));
  if (!torch) throw PythonError();
  // Either shares the memory; DLPack also orders the producer's stream before torch's.
  const char* import = dlpack ? "from_dlpack" : "as_tensor";
  Owned tensor(PyObject_CallMethod(torch.get(), import, "O", object));
  if (!tensor && device) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    const Owned owned_type(type), owned_value(value), owned_trace(trace);
    Owned text(value ? PyObject_Str(value) : nullptr);
    const char* why = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    refuse(what, std::string("is in CUDA memory, which torch cannot reach here: ") +
                     (why ? why : "no reason given"));
  }
  if (!tensor) throw PythonError();
  open_tensor(THPVariable_Unpack(tensor.get()), what);
  return true;
}

void Array::check_layout(const char* what) {
  auto dense_stride = static_cast<int64_t>(item_bytes_);
  for (size_t axis = shape_.size(); axis-- > 0;) {
    if (shape_[axis] != 1 && strides_[axis] != dense_stride) is_dense_ = false;
    dense_stride *= shape_[axis];
    count_ *= shape_[axis];
  }
  if (count_ == 0) is_dense_ = true;
  if (use_ == Use::read || is_dense_) return;
  if (may_overlap(shape_, strides_, static_cast<int64_t>(item_bytes_)))
    refuse(what,
           "has elements that share memory, as after broadcast_to(): several results would land in "
           "one place; pass a copy");
}

char* Array::dense() {
  if (copy_) return copy_.get();
  if (is_dense_) return data_;
  copy_ = std::make_unique<char[]>(bytes());
  if (use_ != Use::write) copy_strided<true>(data_, copy_.get(), shape_, strides_, item_bytes_);
  return copy_.get();
}

void Array::unpack() {
  if (copy_) copy_strided<false>(data_, copy_.get(), shape_, strides_, item_bytes_);
  if (device_tensor_.defined()) device_tensor_.copy_(tensor_);
}

void Array::separate(Array& other) {
  const char* mine = dense();
  const char* its = other.dense();
  if (mine == its || mine >= its + other.bytes() || its >= mine + bytes()) return;
  auto copy = std::make_unique<char[]>(bytes());
  std::memcpy(copy.get(), mine, bytes());
  copy_ = std::move(copy);
}

PyObject* Array::empty(const Extents& shape) const {
  if (kind_ == Kind::tensor) {
    const at::Tensor& like = device_tensor_.defined() ? device_tensor_ : tensor_;
    return THPVariable_Wrap(at::empty(shape, like.options()));
  }
  if (kind_ == Kind::buffer)
    throw Error(ErrorKind::usage, std::string("out= is needed for a ") + Py_TYPE(object_)->tp_name +
                                      ": only torch and numpy arrays can be made for the result");
  PyObject* make = numpy_empty();
  Owned dtype(make ? PyObject_GetAttrString(object_, "dtype") : nullptr);
  Owned sizes(dtype ? PyTuple_New(static_cast<Py_ssize_t>(shape.size())) : nullptr);
  if (!sizes) throw PythonError();
  for (size_t i = 0; i < shape.size(); ++i)
    PyTuple_SET_ITEM(sizes.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
  PyObject* result = PyObject_CallFunctionObjArgs(make, sizes.get(), dtype.get(), nullptr);
  if (!result) throw PythonError();
  return result;
}

}  // namespace rocenante
