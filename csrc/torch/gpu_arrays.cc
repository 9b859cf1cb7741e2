#include "torch/gpu_arrays.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>

#include "torch/gpu_group.h"

namespace rocenante {

namespace {

[[noreturn]] void refuse(const char* what, const std::string& why) {
  throw Error(ErrorKind::usage, std::string("stream= was given, but ") + what + " " + why);
}

// The caller's memory as a torch tensor; never a copy.
at::Tensor gpu_tensor(PyObject* object, const char* what) {
  at::Tensor tensor;
  if (THPVariable_Check(object)) {
    tensor = THPVariable_Unpack(object);
  } else if (PyObject_HasAttrString(object, "__cuda_array_interface__")) {
    Owned torch(PyImport_ImportModule("torch"));
    Owned made(torch ? PyObject_CallMethod(torch.get(), "as_tensor", "O", object) : nullptr);
    if (!made) throw PythonError();
    tensor = THPVariable_Unpack(made.get());
  }
  if (!tensor.defined() || !tensor.is_cuda())
    refuse(what, std::string("is a ") + Py_TYPE(object)->tp_name +
                     " that is not in GPU memory: leave out stream=");
  if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg())
    refuse(what, "is not contiguous: pass a contiguous copy");
  return tensor;
}

struct Stream {
  void* handle;
  bool is_torchs;  // whose allocator must know where its memory is used
};

Stream stream_of(PyObject* object) {
  const bool is_torchs = PyObject_HasAttrString(object, "cuda_stream");
  const char* const name = is_torchs ? "cuda_stream" : "ptr";  // torch, cupy
  Owned number(PyLong_Check(object) ? Py_NewRef(object) : PyObject_GetAttrString(object, name));
  if (!number) {
    PyErr_Clear();
    throw Error(ErrorKind::usage, std::string("stream= takes a torch.cuda.Stream, a "
                                              "cupy.cuda.Stream or its number, not a ") +
                                      Py_TYPE(object)->tp_name);
  }
  const size_t handle = PyLong_AsSize_t(number.get());
  if (PyErr_Occurred()) throw PythonError();
  return {reinterpret_cast<void*>(handle), is_torchs};
}

void keep_until_used(PyObject* array, PyObject* stream) {
  if (!THPVariable_Check(array)) return;
  if (!Owned(PyObject_CallMethod(array, "record_stream", "O", stream))) throw PythonError();
}

}  // namespace

PyObject* failure_of(Object& self) {
  Engine& engine = engine_of(self);
  std::string why;
  release_gil([&] {
    why = engine.communicator().failure();
    if (why.empty()) why = engine.gpu_group().failure();
  });
  return why.empty() ? none() : PyUnicode_FromStringAndSize(why.data(), std::ssize(why));
}

PyObject* all_reduce_on_stream(Object& self, PyObject* array, PyObject* out,
                               const Reduction& reduction, Milliseconds timeout,
                               PyObject* stream_object) {
  Engine& engine = engine_of(self);
  const Stream stream = stream_of(stream_object);
  if (!out) out = array;
  const at::Tensor in = gpu_tensor(array, "the array");
  const at::Tensor result = out == array ? in : gpu_tensor(out, "out");
  if (result.scalar_type() != in.scalar_type() || result.numel() != in.numel() ||
      result.device() != in.device())
    throw Error(ErrorKind::usage, "out must have the array's dtype and size, on the same GPU");
  const auto* from = static_cast<const char*>(in.const_data_ptr());
  auto* to = static_cast<char*>(result.mutable_data_ptr());
  const size_t bytes = in.nbytes();
  if (from != to && from < to + bytes && to < from + bytes)
    throw Error(ErrorKind::usage, "out overlaps the array without being the same");
  device::Call call;
  call.dtype = reduction_dtype(in, reduction);
  call.reduction = reduction;
  call.count = static_cast<size_t>(in.numel());
  release_gil(
      [&] { engine.gpu_group().run(in.device().index(), call, from, to, timeout, stream.handle); });
  if (stream.is_torchs) {
    keep_until_used(array, stream_object);
    if (out != array) keep_until_used(out, stream_object);
  }
  return Py_NewRef(out);
}

}  // namespace rocenante
