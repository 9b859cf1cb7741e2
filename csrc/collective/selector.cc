#include "collective/selector.h"

#include <algorithm>

namespace rocenante {

namespace {
// On one host all n ranks' one-shot reductions read n(n-1) messages from memory that is shared,
// where two-shot reads 2(n-1): measured, the second step pays once bytes * n * (n-1) exceeds this.
constexpr size_t kTwoShotTraffic = 400'000;
}  // namespace

Algorithm select_all_reduce(size_t bytes, int world_size, const Config& config) {
  const auto n = static_cast<size_t>(std::max(world_size, 2));
  const size_t limit =
      config.one_shot_max_bytes ? config.one_shot_max_bytes : kTwoShotTraffic / (n * (n - 1));
  return bytes <= std::min(limit, config.slot_bytes) ? Algorithm::one_shot : Algorithm::two_shot;
}

}  // namespace rocenante
