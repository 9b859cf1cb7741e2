// The kernels on emulated GPUs, seed after seed. Any failure prints the command that repeats it.
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "device/planted.h"
#include "scenarios.h"

namespace rocenante::test {
namespace {

using device::Bug;

constexpr const char* kBugNames[] = {
    "none",
    "bell_without_release",
    "bell_without_peers",
    "signal_without_acquire",
    "no_barrier_before_bell",
    "no_barrier_before_read",
    "single_buffering",
    "slot_stride_by_launch",
    "half_of_the_flags",
    "sequence_not_advanced",
    "not_in_rank_order",
    "rounded_at_every_step",
    "factor_forgotten",
    "tail_off_by_one",
    "alignment_ignored",
    "fingerprint_unchecked",
    "timeout_unchecked",
    "abort_unchecked",
    "failure_forgotten",
    "wrong_peer_blamed",
    "signal_overtakes_data",
    "writes_of_four_bytes",
};
static_assert(std::size(kBugNames) == static_cast<size_t>(Bug::count));

constexpr const char* kUsage =
    "usage: emulation [--seeds N] [--first SEED] [--scenario NAME] [--bug NAME] [--list-bugs]\n"
    "Runs every scenario for N seeds. Ends with 0 if all is well, 1 at the first thing that is "
    "wrong, 2 for\n"
    "this text, 3 if a run has no end; a sanitizer ends it with a code of its own.\n";

struct Options {
  uint64_t first = 1;
  uint64_t seeds = 100;
  std::string scenario;
};

[[noreturn]] void usage() {
  std::fputs(kUsage, stderr);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--list-bugs") {
      for (const char* name : kBugNames) std::puts(name);
      std::exit(0);
    }
    if (++i >= argc) usage();
    const std::string value = argv[i];
    if (option == "--seeds") {
      options.seeds = std::stoull(value);
    } else if (option == "--first") {
      options.first = std::stoull(value);
    } else if (option == "--scenario") {
      options.scenario = value;
    } else if (option == "--bug") {
      size_t bug = 0;
      while (bug < std::size(kBugNames) && value != kBugNames[bug]) ++bug;
      if (bug == std::size(kBugNames)) usage();
      device::planted_bug = static_cast<Bug>(bug);
    } else {
      usage();
    }
  }
  return options;
}

int run_all(const Options& options) {
  uint64_t runs = 0, switches = 0;
  for (uint64_t seed = options.first; seed < options.first + options.seeds; ++seed) {
    for (const Scenario& scenario : kScenarios) {
      if (!options.scenario.empty() && options.scenario != scenario.name) continue;
      const Outcome outcome = scenario.run(seed);
      ++runs;
      switches += outcome.run.switches;
      // A failing seed is worth something only if it fails again: the schedule must be the same.
      const bool same = seed % 16 != 1 || !outcome.wrong.empty() ||
                        scenario.run(seed).run.trace == outcome.run.trace;
      if (outcome.wrong.empty() && same) continue;
      std::printf("%s\nto repeat: --scenario %s --first %llu --seeds 1\n",
                  same ? outcome.wrong.c_str() : "the same seed ran otherwise the second time",
                  scenario.name.data(), static_cast<unsigned long long>(seed));
      return 1;
    }
  }
  if (runs == 0) usage();
  std::printf("%llu runs, %llu switches: all well\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(switches));
  return 0;
}

}  // namespace
}  // namespace rocenante::test

int main(int argc, char** argv) {
  return rocenante::test::run_all(rocenante::test::parse(argc, argv));
}
