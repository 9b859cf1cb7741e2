// The real proxy, over shared memory, with emulated GPUs. What only another process can do to a
// rank (dying) is in emulated_ranks.cc.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "core/error.h"
#include "job.h"
#include "operation.h"
#include "proxied.h"

namespace rocenante::test {
namespace {

using device::Proxy;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kNever = 60'000'000'000;  // nanoseconds: no test runs as long

// Threads of this process that are proxies, by kernel thread id.
std::vector<pid_t> proxy_threads() {
  std::vector<pid_t> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
    if (name == "rocenante-proxy") found.push_back(std::stoi(task.path().filename()));
  }
  return found;
}

// Several random calls of all ranks, which must go well.
std::string make_calls(ProxiedRanks& ranks, uint64_t seed, int calls) {
  Random random(seed);
  std::vector<std::string> wrong(ranks.size());
  std::deque<Operation> operations;
  std::deque<Job> jobs;
  for (int i = 0; i < calls; ++i) {
    operations.push_back(random_operation(ranks.layout(), random));
    jobs.emplace_back(operations.back(), ranks.size(), kNever);
    for (unsigned r = 0; r < ranks.size(); ++r)
      jobs.back().add(ranks.gpu(r), operations.back(), wrong[r]);
  }
  ranks.run(seed);
  for (unsigned r = 0; r < ranks.size(); ++r) {
    if (!wrong[r].empty()) return wrong[r];
    if (const auto failure = ranks.proxy(r).failure()) return failure->what;
  }
  return {};
}

// An all_reduce that only some ranks make, or that they make differently.
struct Doomed {
  Doomed(ProxiedRanks& ranks, uint64_t timeout, size_t count = 100) : random(1) {
    operation = random_operation(ranks.layout(), random);
    operation.call = {Collective::all_reduce, DType::float32, {ReduceOp::sum, 1}, 0, count};
    operation.plan = device::make_plan(operation.call, ranks.layout(), {0, ~size_t{0}});
    operation.plan.blocks = 1;
    operation.in_place = false;
    operation.in_offset = operation.out_offset = 0;
    renew(operation, ranks.size(), random);
    job = std::make_unique<Job>(operation, ranks.size(), timeout);
  }
  Random random;
  Operation operation;
  std::unique_ptr<Job> job;
  std::atomic<unsigned> begun{0};
};

// The kernel has given up, or its proxy has: each says so within moments of the other.
Proxy::Failure failure_of(Proxy& proxy) {
  const Deadline deadline(seconds(10));
  while (!proxy.failure() && !deadline.passed()) std::this_thread::sleep_for(milliseconds(1));
  return proxy.failure().value_or(Proxy::Failure{ErrorKind::usage, "no failure"});
}

TEST(Proxy, ServesRandomCalls) {
  for (const unsigned size : {1u, 2u, 3u, 4u}) {
    ProxiedRanks ranks(size);
    for (uint64_t seed = 1; seed <= 4; ++seed) EXPECT_EQ(make_calls(ranks, seed, 12), "") << size;
  }
}

void sleep_here(int) {
  timespec left{2, 0};
  while (nanosleep(&left, &left) != 0) {
  }
}

// Wherever it is: in the middle of a copy, before or after it has read a bell.
TEST(Proxy, ThatIsStoppedForSecondsLosesNothing) {
  struct sigaction action{}, before{};
  action.sa_handler = sleep_here;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, &before);
  ProxiedRanks ranks(3);
  const auto threads = proxy_threads();
  ASSERT_EQ(threads.size(), 3u);
  std::atomic<bool> over{false};
  std::atomic<int> stops{0};
  std::thread stopper([&] {
    Random random(3);
    while (!over && stops < 3) {
      std::this_thread::sleep_for(milliseconds(10 + random() % 40));
      syscall(SYS_tgkill, getpid(), threads[random() % 3], SIGUSR1);
      ++stops;
      for (int i = 0; i < 300 && !over; ++i) std::this_thread::sleep_for(milliseconds(10));
    }
  });
  std::string wrong;
  uint64_t seed = 100;
  while (stops < 3 && wrong.empty()) wrong = make_calls(ranks, seed++, 8);
  if (wrong.empty()) wrong = make_calls(ranks, seed, 8);
  over = true;
  stopper.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(wrong, "");
}

struct Seconds {
  double run = 0, wait = 0;  // on a processor; for one
};
Seconds seconds_of(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
  Seconds s;
  file >> s.run >> s.wait;
  return {s.run / 1e9, s.wait / 1e9};
}

// One that only spins takes a whole processor, or waits for one; it never sleeps.
TEST(Proxy, SleepsWhileIdleAndMissesNothing) {
  ProxiedRanks ranks(2);
  ASSERT_EQ(make_calls(ranks, 1, 4), "");
  std::this_thread::sleep_for(milliseconds(200));
  const auto threads = proxy_threads();
  std::vector<Seconds> before;
  for (const pid_t thread : threads) before.push_back(seconds_of(thread));
  const uint64_t start = nanoseconds();
  std::this_thread::sleep_for(seconds(1));
  for (size_t i = 0; i < threads.size(); ++i) {
    const Seconds after = seconds_of(threads[i]);
    const double run = after.run - before[i].run, wait = after.wait - before[i].wait;
    const double all = double(nanoseconds() - start) / 1e9;
    std::printf("an idle proxy runs %.1f ms in %.0f ms, and waits %.1f ms to run\n", run * 1e3,
                all * 1e3, wait * 1e3);
#ifndef __SANITIZE_THREAD__
    EXPECT_LT(run / all, 0.03);
#endif
    EXPECT_GT(run, 0) << "nothing was measured";
    EXPECT_GT(all - run - wait, 0.1 * all) << "it hardly sleeps";
  }
  EXPECT_EQ(make_calls(ranks, 2, 4), "");  // nobody woke them
}

TEST(Proxy, RunsOnTheProcessorThatItIsGiven) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int cpu = CPU_SETSIZE - 1;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &allowed)) --cpu;
  MapBootstrap bootstrap;
  Config config;
  config.proxy_cpu = cpu;
  device::Endpoint endpoint(bootstrap, 0, 1, config, kTimeout, "test", kSmall);
  const auto threads = proxy_threads();
  ASSERT_EQ(threads.size(), 1u);
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(threads[0], sizeof set, &set), 0);
  EXPECT_EQ(CPU_COUNT(&set), 1);
  EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(cpu), &set));

  config.proxy_cpu = 1023;
  const std::string error = error_of(
      [&] {
        MapBootstrap another;
        device::Endpoint(another, 0, 1, config, kTimeout, "test", kSmall);
      },
      ErrorKind::config);
  EXPECT_NE(error.find("processor 1023 (ROCENANTE_PROXY_CPU)"), std::string::npos) << error;
}

TEST(Proxy, EndsKernelsThatWaitForAPeerThatFailed) {
  ProxiedRanks ranks(3);
  Doomed doomed(ranks, kNever);
  for (const unsigned r : {0u, 1u}) doomed.job->add_doomed(ranks.gpu(r), doomed.begun);
  std::thread peer([&] {
    while (doomed.begun < 2) std::this_thread::yield();
    ranks.proxy(2).abort("the third had enough");
  });
  ranks.run(1);
  peer.join();
  for (const unsigned r : {0u, 1u}) {
    const auto failure = failure_of(ranks.proxy(r));
    EXPECT_EQ(failure.kind, ErrorKind::peer_lost);
    EXPECT_NE(failure.what.find("exchange #1 of GPU channel 0 cannot complete: rank 2 is lost"),
              std::string::npos)
        << failure.what;
    EXPECT_NE(failure.what.find("the third had enough"), std::string::npos) << failure.what;
    EXPECT_EQ(ranks.endpoint(r).control().record.failure, device::kAborted);
    EXPECT_TRUE(ranks.endpoint(r).control().record.missing & 4u);
  }
}

TEST(Proxy, EndsKernelsThatWaitForAPeerThatLeft) {
  ProxiedRanks ranks(2);
  Doomed doomed(ranks, kNever);
  doomed.job->add_doomed(ranks.gpu(0), doomed.begun);
  ranks.proxy(1).stop();
  ranks.run(1);
  const auto failure = failure_of(ranks.proxy(0));
  EXPECT_EQ(failure.kind, ErrorKind::peer_lost);
  EXPECT_NE(failure.what.find("rank 1 is lost: it has left the group"), std::string::npos)
      << failure.what;
}

TEST(Proxy, TellsOfAKernelThatTimedOut) {
  ProxiedRanks ranks(2);
  Doomed doomed(ranks, 50'000'000);
  doomed.job->add_doomed(ranks.gpu(0), doomed.begun);
  ranks.run(1);
  const auto failure = failure_of(ranks.proxy(0));
  EXPECT_EQ(failure.kind, ErrorKind::timeout);
  EXPECT_NE(failure.what.find("Timed out waiting for rank 1 (pid"), std::string::npos)
      << failure.what;
  // The late one, when it comes, does not wait for a rank that has given up: it got its data.
  doomed.job->add_doomed(ranks.gpu(1), doomed.begun);
  ranks.run(2);
  EXPECT_FALSE(ranks.proxy(1).failure());
  // But of the next call nothing comes any more.
  Doomed next(ranks, kNever);
  next.job->add_doomed(ranks.gpu(1), next.begun);
  ranks.run(3);
  const auto theirs = failure_of(ranks.proxy(1));
  EXPECT_EQ(theirs.kind, ErrorKind::peer_lost);
  EXPECT_NE(theirs.what.find("rank 0 is lost: it failed: "), std::string::npos) << theirs.what;
}

TEST(Proxy, TellsOfRanksThatMadeDifferentCalls) {
  ProxiedRanks ranks(2);
  Doomed one(ranks, kNever, 100), other(ranks, kNever, 101);
  one.job->add_doomed(ranks.gpu(0), one.begun);
  other.job->add_doomed(ranks.gpu(1), other.begun);
  ranks.run(1);
  for (const unsigned r : {0u, 1u}) {
    const auto failure = failure_of(ranks.proxy(r));
    EXPECT_EQ(failure.kind, ErrorKind::mismatch);
    EXPECT_NE(failure.what.find("rank " + std::to_string(1 - r) + " made another call"),
              std::string::npos)
        << failure.what;
  }
}

void ring(ProxiedRanks& ranks, unsigned rank, uint64_t sequence) {
  device::Bell& bell = ranks.endpoint(rank).control().bells[0][sequence & 1];
  bell.request = static_cast<uint64_t>(device::Payload::to_all) << device::Bell::kPayloadShift;
  __atomic_store_n(&bell.signal, sequence, __ATOMIC_RELEASE);
}

uint64_t signal_at(ProxiedRanks& ranks, unsigned rank, unsigned from, uint64_t sequence) {
  const uint64_t lane = ranks.layout().lane(sequence & 1, 0);
  return __atomic_load_n(reinterpret_cast<uint64_t*>(ranks.endpoint(rank).window() +
                                                     ranks.layout().signal(lane, from)),
                         __ATOMIC_ACQUIRE);
}

TEST(Proxy, SendsNothingAfterAFailure) {
  ProxiedRanks ranks(2);
  ranks.proxy(0).abort("enough");
  ring(ranks, 0, 1);
  ranks.proxy(0).stop();  // looks at the bells a last time
  EXPECT_EQ(signal_at(ranks, 1, 0, 1), 0u);
  EXPECT_EQ(ranks.proxy(0).failure()->kind, ErrorKind::aborted);
  EXPECT_NE(ranks.proxy(0).failure()->what.find("rank 0: aborted: enough"), std::string::npos);
  // A kernel that is launched all the same ends at once.
  Doomed doomed(ranks, kNever);
  doomed.job->add_doomed(ranks.gpu(0), doomed.begun);
  ranks.run(1);
  EXPECT_EQ(ranks.endpoint(0).control().record.failure, device::kAborted);
}

TEST(Proxy, SendsWhatWasRungForBeforeItStops) {
  for (int i = 0; i < 50; ++i) {
    ProxiedRanks ranks(2, 1, {1, 128, 128});
    // Now while it spins, now while it naps.
    if (i % 5 == 0) std::this_thread::sleep_for(milliseconds(10));
    ring(ranks, 0, 1);
    ranks.proxy(0).stop();
    ASSERT_EQ(signal_at(ranks, 1, 0, 1), 1u) << i;
  }
}

TEST(Proxy, StopsFromAnyState) {
  const auto stop_quickly = [](ProxiedRanks& ranks) {
    const uint64_t start = nanoseconds();
    ranks.proxy(0).stop();
    EXPECT_LT(nanoseconds() - start, 5'000'000'000u);
    EXPECT_FALSE(ranks.proxy(0).failure());
    ranks.proxy(0).stop();
  };
  {
    ProxiedRanks ranks(2);  // has never done anything
    stop_quickly(ranks);
  }
  {
    ProxiedRanks ranks(2);
    EXPECT_EQ(make_calls(ranks, 1, 4), "");
    std::this_thread::sleep_for(milliseconds(100));  // naps
    stop_quickly(ranks);
  }
  {
    ProxiedRanks ranks(2);  // a kernel waits: it ends, and so does what its peer begins
    Doomed doomed(ranks, kNever);
    doomed.job->add_doomed(ranks.gpu(0), doomed.begun);
    std::thread host([&] {
      while (doomed.begun < 1) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(20));
      stop_quickly(ranks);
    });
    ranks.run(1);
    host.join();
    EXPECT_EQ(ranks.endpoint(0).control().record.failure, device::kAborted);
  }
  {
    ProxiedRanks ranks(2);
    ranks.proxy(0).abort("enough");
    ranks.proxy(0).abort("again");
    ranks.proxy(0).stop();
    EXPECT_NE(ranks.proxy(0).failure()->what.find("enough"), std::string::npos);
  }
}

TEST(Proxy, RanksMustAgreeOnTheWindow) {
  MapBootstrap bootstrap;
  std::vector<std::future<std::string>> ranks;
  for (int r = 0; r < 2; ++r)
    ranks.push_back(std::async(std::launch::async, [&, r]() -> std::string {
      try {
        device::Shape shape = kSmall;
        if (r == 1) shape.slot_bytes *= 2;
        device::Endpoint(bootstrap, r, 2, {}, kTimeout, "test", shape);
        return "no error";
      } catch (const Error& e) {
        return e.what();
      }
    }));
  for (auto& rank : ranks) {
    const std::string error = rank.get();
    EXPECT_NE(error.find("the GPU window"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace rocenante::test
