// The word that says a contribution is there: fingerprint << 32 | (stripes - 1) << 30 | step. Of
// the step its low 30 bits are enough: no rank is ever more than one step ahead (I1).
#pragma once

#include <atomic>
#include <cstdint>

#include "window/layout.h"

namespace rocenante {

inline constexpr int kStepBits = 30;
inline constexpr uint64_t kStepMask = (uint64_t{1} << kStepBits) - 1;
static_assert(kMaxRails <= 4, "a signal has two bits for the number of stripes");

inline uint64_t signal_of(uint32_t fingerprint, uint64_t step) {
  return uint64_t{fingerprint} << 32 | (step & kStepMask);
}
inline bool same_step(uint64_t a, uint64_t b) { return ((a ^ b) & kStepMask) == 0; }
inline uint64_t striped(uint64_t signal, int stripes) {
  return signal | static_cast<uint64_t>(stripes - 1) << kStepBits;
}
inline int stripes_of(uint64_t signal) { return 1 + static_cast<int>(signal >> kStepBits & 3); }

// I3 over several rails: nothing orders what goes over one queue pair after what goes over another,
// so the signal vouches for the first stripe alone, which was sent before it over the same rail.
// Each other stripe has a word of its own, sent after it over the rail that the stripe took; the
// signal tells how many to wait for.
inline bool arrived(const SignalLine& line, uint64_t signal, uint64_t step) {
  if (!same_step(signal, step)) return false;
  for (int k = 1; k < stripes_of(signal); ++k)
    if (line.stripes[k - 1].load(std::memory_order_acquire) != step) return false;
  return true;
}

}  // namespace rocenante
