// The loops that every kernel shares: accumulators stay in registers from the first rank's input to
// the last one's. Part of reduce_kernels.h; compiled once per instruction set, hence the unnamed
// namespace.
#pragma once

#include "collective/reduce_elements.h"

namespace rocenante {
namespace {

// Reduces kUnroll registers of kN elements, from element `first` on. All loads precede all stores,
// so `out` may be an input.
template <int kN, int kUnroll, class Kernel>
ROCENANTE_INLINE void reduce_block(const Kernel& kernel, char* out, const char* const* in,
                                   int ranks, size_t first) {
  constexpr size_t kStep = kN * Kernel::kBytes;
  const size_t at = first * Kernel::kBytes;
  typename Kernel::template Acc<kN> sums[kUnroll];
  for (int u = 0; u < kUnroll; ++u) sums[u] = Kernel::template load<kN>(in[0] + at + u * kStep);
  for (int r = 1; r < ranks; ++r) {
    const char* from = in[r] + at;
    for (int u = 0; u < kUnroll; ++u) {
      sums[u] = Kernel::template combine<kN>(sums[u], Kernel::template load<kN>(from + u * kStep));
    }
  }
  for (int u = 0; u < kUnroll; ++u) kernel.template store<kN>(out + at + u * kStep, sums[u]);
}

template <int kN, class Kernel>
ROCENANTE_INLINE auto reduce_last(const Kernel&, const char* const* in, int ranks, size_t count) {
  const size_t at = (count - kN) * Kernel::kBytes;
  auto sum = Kernel::template load<kN>(in[0] + at);
  for (int r = 1; r < ranks; ++r) {
    sum = Kernel::template combine<kN>(sum, Kernel::template load<kN>(in[r] + at));
  }
  return sum;
}

// A remainder is not done element by element: the last register overlaps the one before it, and is
// computed first, while its inputs are whole even if `out` is one of them.
template <int kN, int kUnroll, class Kernel>
ROCENANTE_INLINE void reduce_registers(const Kernel& kernel, char* out, const char* const* in,
                                       int ranks, size_t count) {
  const bool ragged = count % kN != 0;
  typename Kernel::template Acc<kN> last{};
  if (ragged) last = reduce_last<kN>(kernel, in, ranks, count);
  size_t i = 0;
  if constexpr (kUnroll > 1) {
    for (; i + kN * kUnroll <= count; i += kN * kUnroll) {
      reduce_block<kN, kUnroll>(kernel, out, in, ranks, i);
    }
  }
  for (; i + kN <= count; i += kN) reduce_block<kN, 1>(kernel, out, in, ranks, i);
  if (ragged) kernel.template store<kN>(out + (count - kN) * Kernel::kBytes, last);
}

// Fewer elements than a full register has: an eighth or a quarter of it at a time, then single
// ones.
template <int kN, class Kernel>
ROCENANTE_INLINE void reduce_few(const Kernel& kernel, char* out, const char* const* in, int ranks,
                                 size_t count) {
  if constexpr (kN > 1) {
    if (count < kN) {
      reduce_few<1>(kernel, out, in, ranks, count);
    } else {
      reduce_registers<kN, 1>(kernel, out, in, ranks, count);
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      reduce_block<1, 1>(kernel, out, in, ranks, i);
      asm volatile("");  // at most seven times round: not worth vectorising
    }
  }
}

template <class Kernel>
ROCENANTE_INLINE void reduce_all(const Kernel& kernel, char* out, const char* const* in, int ranks,
                                 size_t count) {
  constexpr int kN = Kernel::kLanes;
  constexpr int kFew = kN >= 32 ? 8 : (kN > 4 ? 4 : 1);
  // The accumulators of narrow formats are several registers each.
  constexpr size_t kRegisters = sizeof(typename Kernel::template Acc<kN>) / kRegisterBytes;
  constexpr int kUnroll = kRegisters > 1 ? (kRegisters > 2 ? 1 : 2) : (Kernel::kPairs ? 4 : 2);
  if (count < kN) {
    reduce_few<kFew>(kernel, out, in, ranks, count);
  } else if (Kernel::kPairs && ranks == 2) {
    // The addresses as locals: a store through a char pointer might change `in`, for all that the
    // compiler knows.
    const char* const both[2] = {in[0], in[1]};
    reduce_registers<kN, kUnroll>(kernel, out, both, 2, count);
  } else {
    reduce_registers<kN, kUnroll>(kernel, out, in, ranks, count);
  }
}

}  // namespace
}  // namespace rocenante
