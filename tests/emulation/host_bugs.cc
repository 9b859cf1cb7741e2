// The main() of tests of the host's code: PROGRAM [--bug NAME] plants a bug of
// csrc/device/planted.h, for host_mutations.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "device/planted.h"

namespace {

using rocenante::device::HostBug;

constexpr const char* kBugNames[] = {
    "none",
    "bell_without_acquire",
    "no_last_look",
    "never_naps",
    "lost_peers_unseen",
    "record_unread",
    "kernels_not_aborted",
    "peers_not_told",
    "sends_after_failure",
    "one_peer_forgotten",
    "streams_unordered",
    "captures_wait",
    "failure_unread",
    "closed_without_abort",
};
static_assert(std::size(kBugNames) == static_cast<size_t>(HostBug::count));

}  // namespace

int main(int count, char** words) {
  testing::InitGoogleTest(&count, words);
  if (count == 1) return RUN_ALL_TESTS();
  const std::string bug = count == 3 && words[1] == std::string("--bug") ? words[2] : "";
  const auto* const found = std::find(std::begin(kBugNames), std::end(kBugNames), bug);
  if (found == std::end(kBugNames)) return 2;
  rocenante::device::planted_host_bug = static_cast<HostBug>(found - std::begin(kBugNames));
  return RUN_ALL_TESTS();
}
