// Kernels for x86 processors of the level x86-64-v4. The instruction set is chosen after the
// headers of the standard library: an inline function of theirs compiled here could otherwise be
// the copy that all others are linked to.
#include "collective/reduce_prelude.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
// The intrinsics leave operands uninitialised on purpose, and g++ 12 warns of it where they are
// inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define ROCENANTE_KERNELS_AVX512
#include "collective/reduce_kernels.h"
#pragma GCC pop_options

namespace rocenante {
const KernelTable* avx512_kernels() { return &kKernels; }
}  // namespace rocenante

#else

namespace rocenante {
const KernelTable* avx512_kernels() { return nullptr; }
}  // namespace rocenante

#endif
