#include "collective/selector.h"

#include <algorithm>
#include <cstdint>

namespace rocenante {

namespace {
// On one host all n ranks' one-shot reductions read n(n-1) messages from memory that is shared,
// where two-shot reads 2(n-1): measured, the second step pays once bytes * n * (n-1) exceeds this.
constexpr size_t kTwoShotTraffic = 400'000;
// Between hosts each rank has a link of its own. Two-shot saves it (n-1)(n-2)/n messages and costs
// a step: worth it once what is saved takes longer than a step, about 5 us at 25 GB/s.
constexpr size_t kBytesPerStep = 125'000;

size_t default_limit(size_t n, bool pushed) {
  if (!pushed) return kTwoShotTraffic / (n * (n - 1));
  return n == 2 ? SIZE_MAX : kBytesPerStep * n / ((n - 1) * (n - 2));
}
}  // namespace

Algorithm select_all_reduce(size_t bytes, int world_size, bool pushed, const Config& config) {
  const auto n = static_cast<size_t>(std::max(world_size, 2));
  size_t limit = config.one_shot_max_bytes ? config.one_shot_max_bytes : default_limit(n, pushed);
  for (const OneShotLimit& tuned : config.one_shot_limits)
    if (tuned.several_hosts == pushed && tuned.ranks == world_size) limit = tuned.bytes;
  return bytes <= std::min(limit, config.slot_bytes) ? Algorithm::one_shot : Algorithm::two_shot;
}

}  // namespace rocenante
