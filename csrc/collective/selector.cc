#include "collective/selector.h"

#include <algorithm>
#include <cstdint>

namespace rocenante {

namespace {
// Two-shot saves each rank (n-1)(n-2)/n messages, none of two ranks, and costs a step. On one host
// a step takes the longer the more ranks there are, so that the limit falls less than that saving
// grows: this fits what `rocenante tune` measured (benchmarks/results/tune.json).
constexpr size_t kStepOnHost = 11'000;
// Between hosts each rank has a link of its own: two-shot is worth it once what is saved takes
// longer than a step, about 5 us at 25 GB/s.
constexpr size_t kBytesPerStep = 125'000;

size_t default_limit(size_t n, bool pushed) {
  if (n == 2) return SIZE_MAX;
  return (pushed ? kBytesPerStep * n : kStepOnHost * n * n) / ((n - 1) * (n - 2));
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
