// All kernels, instantiated, and their launcher.
#include <cuda_runtime.h>

#include <string>

#include "core/error.h"
#include "device/kernel_table.h"
#include "device/launch.h"

namespace rocenante::device {

namespace {

// In constant memory and not in registers: bodies keep references to it.
template <class Kernel>
__global__ void __launch_bounds__(kMaxThreads, Kernel::kResident)
    collective(const __grid_constant__ KernelArgs args) {
  Kernel::run(args);
}

}  // namespace

void launch(const Call& call, const Plan& plan, const KernelArgs& args, void* stream) {
  cudaError_t result = cudaSuccess;
  const bool exists = visit_kernel(kernel_of(call, plan), [&](auto kernel) {
    collective<decltype(kernel)>
        <<<plan.blocks, plan.threads, 0, static_cast<cudaStream_t>(stream)>>>(args);
    result = cudaGetLastError();
  });
  if (!exists) {
    throw Error(ErrorKind::usage, "there is no kernel for " +
                                      std::string(name_of(call.collective)) + " (" +
                                      std::string(name_of(call.dtype)) + ", " +
                                      std::string(name_of(plan.algorithm)) + ")");
  }
  if (result != cudaSuccess) {
    throw Error(ErrorKind::system,
                std::string(name_of(call.collective)) +
                    ": the kernel was not launched: " + cudaGetErrorString(result));
  }
}

}  // namespace rocenante::device
