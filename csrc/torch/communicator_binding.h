// rocenante._C.Communicator: collectives on arrays, without torch.distributed's dispatch.
#pragma once

#include <Python.h>

#include "core/error.h"

namespace rocenante {

// Sets the Python exception (of rocenante.errors) for the error.
void set_python_error(const Error& error);
// Adds the type to the module; false with a Python exception set if that fails.
bool add_communicator_type(PyObject* module);

}  // namespace rocenante
