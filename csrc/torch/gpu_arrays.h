// Collectives of Communicator on arrays in GPU memory, queued on a stream.
#pragma once

#include <Python.h>

#include "torch/communicator_object.h"

namespace rocenante {

// What all_reduce(array, stream=...) does; `out` may be null. Returns a new reference.
PyObject* all_reduce_on_stream(Object& self, PyObject* array, PyObject* out,
                               const Reduction& reduction, Milliseconds timeout, PyObject* stream);

// Why the communicator or its kernels can no longer be used, as a new str, or None.
PyObject* failure_of(Object& self);

}  // namespace rocenante
