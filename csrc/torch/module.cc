// The extension module rocenante._C.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "collective/reduce.h"
#include "core/config.h"
#include "torch/backend.h"
#include "torch/communicator_binding.h"
#include "transport/meet.h"

namespace rocenante {
namespace {

namespace py = pybind11;

// Rows of (name, value, default, meaning, must_agree).
py::list config_rows() {
  py::list rows;
  try {
    for (const ConfigRow& row : describe(Config::from_environment()))
      rows.append(
          py::make_tuple(row.name, row.value, row.default_value, row.meaning, row.must_agree));
  } catch (const Error& error) {
    set_python_error(error);
    throw py::error_already_set();
  }
  return rows;
}

void bind_backend(py::module_& module) {
  py::class_<BackendOptions, c10d::Backend::Options, c10::intrusive_ptr<BackendOptions>>(
      module, "Options", "What init_process_group(pg_options=...) takes for \"rocenante\".")
      .def(py::init([](std::chrono::milliseconds timeout) {
             return c10::make_intrusive<BackendOptions>(timeout);
           }),
           py::arg("timeout") = kBackendDefaultTimeout);
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(
      module, "Backend", "The torch.distributed backend \"rocenante\".")
      .def(py::init<c10::intrusive_ptr<c10d::Store>, int, int, c10::intrusive_ptr<BackendOptions>,
                    const std::string&>(),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"), py::arg("name"),
           py::call_guard<py::gil_scoped_release>())
      // torch calls it on the ranks that are not in a group split off; there is nothing to do for
      // them.
      .def("perform_nocolor_split", [](const Backend&, const py::object&) {}, py::arg("device"));
}

// At exit. A callback that still ran in Python while the interpreter ends would crash it.
void shutdown_all() {
  Engine::shutdown_all();
  drain_callbacks(std::chrono::seconds(2));
}

}  // namespace
}  // namespace rocenante

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  namespace py = pybind11;
  py::module_::import("torch._C._distributed_c10d");  // registers the base classes
  rocenante::bind_backend(module);
  if (!rocenante::add_communicator_type(module.ptr())) throw py::error_already_set();
  module.def("config_rows", rocenante::config_rows);
  module.def("simd_level", rocenante::simd_level);
  module.def("verbs_problem", rocenante::verbs_problem);
  module.def("gpu_status", rocenante::gpu_status, py::call_guard<py::gil_scoped_release>());
  module.def("shutdown_all", rocenante::shutdown_all, py::call_guard<py::gil_scoped_release>());
}
