#include "scenarios.h"

#include <algorithm>
#include <atomic>
#include <deque>

#include "cluster.h"
#include "device/kernel_table.h"
#include "job.h"
#include "operation.h"

namespace rocenante::test {

namespace {

using device::Control;

// Nanoseconds of emulated time, 50 to a switch.
constexpr uint64_t kLong = 100'000'000;  // never reached unless something is lost
constexpr uint64_t kShort = 3'000'000;   // long enough for every peer that is there
constexpr uint64_t kLimit = 2'500'000;   // switches: beyond every timeout

using Complaints = std::vector<std::string>;

std::string first_of(const Complaints& complaints) {
  for (const std::string& complaint : complaints) {
    if (!complaint.empty()) return complaint;
  }
  return {};
}

Cluster cluster_of(unsigned ranks, uint64_t seed, Random& random) {
  const unsigned channels = 1 + random() % 4;
  const unsigned threads = ranks * channels > 16 ? 2 : 2u << random() % 3;
  return Cluster(ranks, channels, threads, 128 * (1 + random() % 4), 128 * (1 + random() % 2),
                 seed);
}

Cluster random_cluster(uint64_t seed, Random& random, unsigned least_ranks = 1) {
  constexpr unsigned kRanks[] = {1, 2, 2, 2, 3, 4, 4, 4, 5, 8};
  return cluster_of(std::max(least_ranks, kRanks[random() % std::size(kRanks)]), seed, random);
}

// Several random calls of all ranks of `cluster`, all of which must go well.
Outcome make_calls(Cluster& cluster, Random& random) {
  const unsigned ranks = cluster.layout().ranks;
  Outcome outcome;
  Complaints wrong(ranks);
  std::deque<Operation> operations;
  std::deque<Job> jobs;
  for (int i = 0; i < 8; ++i) {
    operations.push_back(random_operation(cluster.layout(), random));
    jobs.emplace_back(operations.back(), ranks, kLong);
    for (unsigned r = 0; r < ranks; ++r)
      jobs.back().add(cluster.gpu(r), operations.back(), wrong[r]);
  }
  outcome.run = cluster.run(kLimit);
  outcome.wrong = first_of(wrong);
  return outcome;
}

struct Expected {
  uint64_t failure;
  unsigned peer;
};

std::string check_record(Cluster& cluster, unsigned rank, const Expected& expected, uint64_t mask) {
  const device::ErrorRecord& record = cluster.control(rank).record;
  const std::string who = "rank " + std::to_string(rank) + ": ";
  if (record.failure != expected.failure)
    return who + "failure " + std::to_string(record.failure) + ", not " +
           std::to_string(expected.failure);
  if (mask != uint64_t{1} << expected.peer)
    return who + "blames " + std::to_string(mask) + ", not rank " + std::to_string(expected.peer);
  if (record.sequence == 0) return who + "no sequence in the record";
  return {};
}

// Some calls that go well, then one that rank `absent` does not make, then one more by everybody.
Outcome without_one(uint64_t seed, uint64_t timeout, uint64_t failure) {
  Random random(seed);
  Cluster cluster = random_cluster(seed, random, 2);
  const unsigned ranks = cluster.layout().ranks;
  const unsigned absent = static_cast<unsigned>(random() % ranks);
  const size_t good = random() % 3;
  std::atomic<unsigned> begun{0};
  Outcome outcome;
  Complaints wrong(ranks);
  std::deque<Operation> operations;
  std::deque<Job> jobs;
  for (size_t i = 0; i < good + 2; ++i) {
    operations.push_back(random_operation(cluster.layout(), random));
    // The good calls may take their time; so that the last two have something to write, they have
    // elements.
    while (i >= good && operations.back().call.count == 0)
      operations.back() = random_operation(cluster.layout(), random);
    jobs.emplace_back(operations.back(), ranks, i < good ? kLong : timeout);
  }
  for (unsigned r = 0; r < ranks; ++r) {
    for (size_t i = 0; i < good; ++i) jobs[i].add(cluster.gpu(r), operations[i], wrong[r]);
    if (r == absent) continue;
    jobs[good].add_doomed(cluster.gpu(r), begun);
    jobs[good + 1].add_idle(cluster.gpu(r), wrong[r]);
  }
  if (failure == device::kAborted) {
    cluster.add_host([&] {
      while (begun.load() != ranks - 1) emulator::pause();
      for (uint64_t n = random() % 20000; n > 0; --n) emulator::pause();
      for (unsigned r = 0; r < ranks; ++r)
        __atomic_store_n(&cluster.control(r).abort, 1, __ATOMIC_RELEASE);
    });
  }
  outcome.run = cluster.run(kLimit);
  outcome.wrong = first_of(wrong);
  for (unsigned r = 0; r < ranks; ++r) {
    if (!outcome.wrong.empty()) break;
    if (r == absent) continue;
    const device::ErrorRecord& record = cluster.control(r).record;
    // Who gives up early may not yet have heard of peers that are there.
    const uint64_t mask =
        failure == device::kAborted ? record.missing & uint64_t{1} << absent : record.missing;
    outcome.wrong = check_record(cluster, r, {failure, absent}, mask);
  }
  return outcome;
}

}  // namespace

Outcome plans(uint64_t seed) {
  Random random(seed);
  const device::WindowLayout layout(1 + random() % kMaxRanks, 1 + random() % device::kMaxChannels,
                                    64 << 10, 4 << 10);
  const device::Thresholds thresholds{size_t{1} << random() % 14, size_t{1} << random() % 22};
  Outcome outcome;
  const auto check = [&](const device::Call& call) {
    const ReduceOp op = call.reduction.op;
    if (is_reduction(call.collective) && !is_defined(call.dtype, op)) return;
    const device::Plan plan = device::make_plan(call, layout, thresholds);
    const device::Plan again = device::make_plan(call, layout, thresholds);
    const bool exists = device::visit_kernel(device::kernel_of(call, plan), [](auto) {});
    const bool fits = plan.blocks >= 1 && plan.blocks <= layout.channels &&
                      plan.threads % 32 == 0 && plan.threads >= 32 &&
                      plan.threads <= device::kMaxThreads;
    const bool pure = plan.algorithm == again.algorithm && plan.low_latency == again.low_latency &&
                      plan.blocks == again.blocks && plan.threads == again.threads;
    if (exists == device::is_supported(call.collective, call.dtype, op) && fits && pure) return;
    outcome.wrong = "the plan of " + std::string(name_of(call.collective)) + " " +
                    std::string(name_of(call.dtype)) + " " + std::string(name_of(op)) + ", " +
                    std::to_string(call.count) + " elements" + (exists ? "" : ", without a kernel");
  };
  for (int c = 0; c <= static_cast<int>(Collective::barrier); ++c) {
    for (int t = 0; t < kDTypeCount; ++t) {
      for (int o = 0; o < kReduceOpCount; ++o) {
        check({static_cast<Collective>(c),
               static_cast<DType>(t),
               {static_cast<ReduceOp>(o), 1},
               0,
               random() % (size_t{1} << random() % 24)});
      }
    }
  }
  return outcome;
}

Outcome random_calls(uint64_t seed) {
  Random random(seed);
  Cluster cluster = random_cluster(seed, random);
  return make_calls(cluster, random);
}

Outcome calls_without_peers(uint64_t seed) {
  Random random(seed);
  Cluster cluster = cluster_of(1, seed, random);
  Outcome outcome = make_calls(cluster, random);
  for (const auto& bells : cluster.control(0).bells) {
    for (const device::Bell& bell : bells) {
      if (bell.signal != 0 && outcome.wrong.empty())
        outcome.wrong = "a bell that no peer's signal can show to have been taken";
    }
  }
  return outcome;
}

Outcome replayed_graph(uint64_t seed) {
  Random random(seed);
  Cluster cluster = random_cluster(seed, random);
  const unsigned ranks = cluster.layout().ranks;
  Outcome outcome;
  Complaints wrong(ranks);
  std::deque<Operation> graph;
  std::deque<Operation> versions;
  std::deque<Job> jobs;
  for (int node = 0; node < 2; ++node) {
    graph.push_back(random_operation(cluster.layout(), random));
    jobs.emplace_back(graph.back(), ranks, kLong);
  }
  for (int replay = 0; replay < 4; ++replay) {
    for (size_t node = 0; node < graph.size(); ++node) {
      versions.push_back(graph[node]);
      renew(versions.back(), ranks, random);
      for (unsigned r = 0; r < ranks; ++r)
        jobs[node].add(cluster.gpu(r), versions.back(), wrong[r]);
    }
  }
  outcome.run = cluster.run(kLimit);
  outcome.wrong = first_of(wrong);
  return outcome;
}

Outcome absent_rank(uint64_t seed) { return without_one(seed, kShort, device::kTimedOut); }

Outcome aborted_by_host(uint64_t seed) { return without_one(seed, ~uint64_t{0}, device::kAborted); }

Outcome mismatched_calls(uint64_t seed) {
  Random random(seed);
  Cluster cluster = random_cluster(seed, random, 2);
  const unsigned ranks = cluster.layout().ranks;
  const unsigned odd = static_cast<unsigned>(random() % ranks);
  Outcome outcome;
  std::deque<Operation> calls;
  const auto fingerprint = [&](const Operation& o) {
    return device::make_args(o.call, o.plan, cluster.layout()).fingerprint;
  };
  calls.push_back(random_operation(cluster.layout(), random));
  calls.push_back(random_operation(cluster.layout(), random));
  while (fingerprint(calls[1]) == fingerprint(calls[0]) ||
         calls[1].plan.low_latency != calls[0].plan.low_latency)
    calls[1] = random_operation(cluster.layout(), random);
  std::deque<Job> jobs;
  for (const Operation& call : calls) jobs.emplace_back(call, ranks, kLong);
  std::atomic<unsigned> begun{0};
  for (unsigned r = 0; r < ranks; ++r) jobs[r == odd ? 1 : 0].add_doomed(cluster.gpu(r), begun);
  outcome.run = cluster.run(kLimit);
  for (unsigned r = 0; r < ranks && outcome.wrong.empty(); ++r) {
    const uint64_t mask = cluster.control(r).record.mismatched;
    if (r == odd) {  // differs from everybody, and stops at the first that it meets
      const unsigned other = odd == 0 ? 1 : 0;
      const bool blames_others = mask != 0 && (mask >> odd & 1) == 0 && mask >> ranks == 0;
      outcome.wrong = check_record(cluster, r, {device::kMismatched, other},
                                   blames_others ? uint64_t{1} << other : 0);
    } else {
      outcome.wrong = check_record(cluster, r, {device::kMismatched, odd}, mask);
    }
  }
  return outcome;
}

}  // namespace rocenante::test
