// Starting a kernel, for callers that know nothing of CUDA.
#pragma once

#include "device/plan.h"

namespace rocenante::device {

// Queues the kernel of (call, plan) on `stream`, a cudaStream_t, of the current device. Fit to be
// captured into a graph: nothing is allocated and nothing waits. Throws Error: usage if there is no
// such kernel, system naming CUDA's reason.
void launch(const Call& call, const Plan& plan, const KernelArgs& args, void* stream);

}  // namespace rocenante::device
