#include "collective/reduce.h"

#include "collective/reduce_table.h"
#include "core/error.h"

namespace rocenante {
namespace {

bool runs_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("x86-64-v3");
#else
  return false;
#endif
}

bool runs_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("x86-64-v4");
#else
  return false;
#endif
}

const KernelTable& best_kernels() {
  static const KernelTable& best = *usable_kernels().front();
  return best;
}

}  // namespace

std::vector<const KernelTable*> usable_kernels() {
  std::vector<const KernelTable*> tables;
  if (avx512_kernels() != nullptr && runs_avx512()) tables.push_back(avx512_kernels());
  if (avx2_kernels() != nullptr && runs_avx2()) tables.push_back(avx2_kernels());
  tables.push_back(baseline_kernels());
  return tables;
}

void reduce(const KernelTable& kernels, DType dtype, ReduceOp op, void* out, const void* const* in,
            int ranks, size_t count) {
  const auto row = static_cast<size_t>(dtype);
  const auto column = static_cast<size_t>(op);
  if (row < kDTypeCount && column < kReduceOpCount) [[likely]] {
    const KernelTable::Reduce& kernel = kernels.reduce[row][column];
    if (kernel.run != nullptr) [[likely]] {
      kernel.run(out, in, ranks, count * kernel.lanes);
      return;
    }
  }
  check_reduction(dtype, op);
}

void premultiply(const KernelTable& kernels, DType dtype, double factor, void* out, const void* in,
                 size_t count) {
  const auto row = static_cast<size_t>(dtype);
  if (row < kDTypeCount && kernels.premultiply[row].run != nullptr) {
    const KernelTable::Premultiply& kernel = kernels.premultiply[row];
    kernel.run(factor, out, in, count * kernel.lanes);
    return;
  }
  check_reduction(dtype, ReduceOp::premul_sum);
}

void reduce(DType dtype, ReduceOp op, void* out, const void* const* in, int ranks, size_t count) {
  reduce(best_kernels(), dtype, op, out, in, ranks, count);
}

void premultiply(DType dtype, double factor, void* out, const void* in, size_t count) {
  premultiply(best_kernels(), dtype, factor, out, in, count);
}

const char* simd_level() { return best_kernels().level; }

}  // namespace rocenante
