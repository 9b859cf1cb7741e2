// What is tried with one seed. Each scenario returns what is wrong, or nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "device/emulator.h"

namespace rocenante::test {

struct Outcome {
  std::string wrong;  // empty: all is well
  emulator::Run run;
};

struct Scenario {
  std::string_view name;
  Outcome (*run)(uint64_t seed);
};

// Plans are sound and pure, and name kernels that exist, for every collective, type and operation.
Outcome plans(uint64_t seed);
// Random calls on random clusters; results, guards and bits against the CPU executor.
Outcome random_calls(uint64_t seed);
// The same on a cluster of one rank, which has nothing to tell its proxy.
Outcome calls_without_peers(uint64_t seed);
// The same launches again and again with other values, as a replayed graph does.
Outcome replayed_graph(uint64_t seed);
// A rank stops taking part: the others time out and name it, and launches that follow do nothing.
Outcome absent_rank(uint64_t seed);
// The same, but the host calls it off.
Outcome aborted_by_host(uint64_t seed);
// One rank makes another call.
Outcome mismatched_calls(uint64_t seed);

inline constexpr Scenario kScenarios[] = {
    {"plans", plans},
    {"random_calls", random_calls},
    {"calls_without_peers", calls_without_peers},
    {"replayed_graph", replayed_graph},
    {"absent_rank", absent_rank},
    {"aborted_by_host", aborted_by_host},
    {"mismatched_calls", mismatched_calls},
};

}  // namespace rocenante::test
