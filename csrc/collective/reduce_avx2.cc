// Kernels for x86 processors of the level x86-64-v3. The instruction set is chosen after the
// headers of the standard library: an inline function of theirs compiled here could otherwise be
// the copy that all others are linked to.
#include "collective/reduce_prelude.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define ROCENANTE_KERNELS_AVX2
#include "collective/reduce_kernels.h"
#pragma GCC pop_options

namespace rocenante {
const KernelTable* avx2_kernels() { return &kKernels; }
}  // namespace rocenante

#else

namespace rocenante {
const KernelTable* avx2_kernels() { return nullptr; }
}  // namespace rocenante

#endif
