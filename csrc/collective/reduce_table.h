// The kernels behind reduce(), compiled once per instruction set. Only reduce*.cc and the tests
// include this.
#pragma once

#include <cstddef>
#include <vector>

#include "core/types.h"

namespace rocenante {

struct KernelTable {
  struct Reduce {
    void (*run)(void* out, const void* const* in, int ranks, size_t count) = nullptr;
    size_t lanes = 1;  // kernel elements per element: 2 for complex, bytes for bitwise operations
  };
  struct Premultiply {
    void (*run)(double factor, void* out, const void* in, size_t count) = nullptr;
    size_t lanes = 1;
  };

  const char* level = nullptr;
  Reduce reduce[kDTypeCount][kReduceOpCount] = {};
  Premultiply premultiply[kDTypeCount] = {};
};

// Null where the build has no such kernels; whether the processor can run them is for the caller to
// find out.
const KernelTable* baseline_kernels();
const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();

// All tables that this processor can run, best first.
std::vector<const KernelTable*> usable_kernels();

void reduce(const KernelTable& kernels, DType dtype, ReduceOp op, void* out, const void* const* in,
            int ranks, size_t count);
void premultiply(const KernelTable& kernels, DType dtype, double factor, void* out, const void* in,
                 size_t count);

}  // namespace rocenante
