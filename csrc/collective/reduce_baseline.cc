// Kernels for what every processor of the architecture has: SSE2 on x86-64, NEON on aarch64.
#include "collective/reduce_prelude.h"
//
#include "collective/reduce_kernels.h"

namespace rocenante {
const KernelTable* baseline_kernels() { return &kKernels; }
}  // namespace rocenante
