#include "transport/rails.h"

#include <algorithm>

#include "exchange/signal.h"

namespace rocenante {

Part stripe_of(const Part& whole, int count, int index) {
  constexpr size_t kUnit = 256;  // the smallest packet
  const auto n = static_cast<size_t>(count), k = static_cast<size_t>(index);
  const size_t each = ((whole.bytes + n - 1) / n + kUnit - 1) / kUnit * kUnit;
  const size_t begin = std::min(k * each, whole.bytes);
  return {whole.offset + begin, std::min(each, whole.bytes - begin)};
}

bool lost_with(size_t rail, const RailEnd& theirs, const SentStep& sent, size_t stripe) {
  return theirs.dropped.load(std::memory_order_acquire) != 0 && sent.step != 0 &&
         stripe < static_cast<size_t>(sent.stripes) && sent.rail[stripe] == rail &&
         !same_step(theirs.steps[sent.step & 1][stripe], sent.step);
}

bool lost_with(size_t rail, const RailEnd& theirs, const SentFragment& sent) {
  return theirs.dropped.load(std::memory_order_acquire) != 0 && sent.number != 0 &&
         sent.rail == rail && theirs.fragments[sent.number % kRingSlots] != sent.number;
}

void note_steps(RailEnd& end, const SignalLine* const lines[2]) {
  for (size_t epoch : {0u, 1u}) {
    end.steps[epoch][0] = lines[epoch]->signal.load(std::memory_order_acquire) & kStepMask;
    for (size_t k = 1; k < kMaxRails; ++k)
      end.steps[epoch][k] = lines[epoch]->stripes[k - 1].load(std::memory_order_acquire);
  }
}

}  // namespace rocenante
