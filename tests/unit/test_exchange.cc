// The invariants of the exchange, one test or more for each. tests/mutation/ takes out the line
// that enforces each of them, in a copy, and requires the test named after it to fail.
#include "exchange/exchange.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "collective/executor.h"
#include "ranks.h"

namespace rocenante::test {
namespace {

constexpr Milliseconds kShort{400};

void expect_contains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), text.npos) << part << " in: " << text;
}

// I1: a rank that waits for nobody is held back before it overwrites what a late peer still reads.
TEST(I1, ABroadcastsRootNeverOverwritesWhatALateRankStillReads) {
  run_ranks(3, [](Communicator& c) {
    std::vector<int64_t> v(1000);
    for (int i = 0; i < 12; ++i) {
      if (c.rank() == 2) std::this_thread::sleep_for(Milliseconds(10));
      if (c.rank() == 0) std::fill(v.begin(), v.end(), i);
      c.broadcast(v.data(), v.size() * 8, DType::int64, 0, kTimeout);
      for (int64_t x : v) ASSERT_EQ(x, i);
    }
  });
}

TEST(I1, MixedCollectivesWithRanksOfRandomSpeed) {
  run_ranks(4, [](Communicator& c) {
    unsigned seed = static_cast<unsigned>(c.rank());
    for (int i = 0; i < 400; ++i) {
      seed = seed * 1664525 + 1013904223;
      if (seed >> 28 == 0) std::this_thread::sleep_for(Milliseconds(2));
      std::vector<int32_t> v(600, c.rank() + i);
      const int root = i % 4;
      if (i % 3 == 0) {
        c.broadcast(v.data(), v.size() * 4, DType::int32, root, kTimeout);
        for (int32_t x : v) ASSERT_EQ(x, root + i);
      } else if (i % 3 == 1) {
        std::vector<int32_t> out(600);
        c.reduce(v.data(), out.data(), v.size(), DType::int32, {}, root, kTimeout);
        for (int32_t x : out) ASSERT_EQ(x, c.rank() == root ? 6 + 4 * i : 0);
      } else {
        c.all_reduce(v.data(), v.data(), v.size(), DType::int32, {}, kTimeout);
        for (int32_t x : v) ASSERT_EQ(x, 6 + 4 * i);
      }
    }
  });
}

// I2: whatever the threads, a communicator's operations run one by one in the order of their issue.
TEST(I2, AsynchronousOperationsKeepTheOrderOfIssue) {
  run_ranks(2, [](Communicator& c) {
    Executor executor;
    std::vector<int32_t> v(200);
    std::vector<std::shared_ptr<Task>> tasks;
    for (int i = 0; i < 200; ++i) {
      v[static_cast<size_t>(i)] = i;
      tasks.push_back(executor.submit([&, i] {
        int32_t& x = v[static_cast<size_t>(i)];
        c.all_reduce(&x, &x, 1, DType::int32, {}, kTimeout);
      }));
    }
    for (auto& t : tasks) executor.wait(t, Executor::kUnlimited);
    for (int i = 0; i < 200; ++i) ASSERT_EQ(v[static_cast<size_t>(i)], 2 * i);
  });
}

// I3: what was staged is there when the signal is. A missing release shows under ThreadSanitizer
// (ranks that are threads share one mapping of a window) and on processors with weak memory order.
TEST(I3, StagedBytesHappenBeforeTheSignal) {
  run_ranks(2, [](Communicator& c) {
    // By all_gather: it reads the peers' slots by memmove, which ThreadSanitizer sees wherever it
    // is.
    std::vector<int32_t> in(2000), zero(2000), one(2000);
    void* const out[] = {zero.data(), one.data()};
    for (int i = 0; i < 300; ++i) {
      std::fill(in.begin(), in.end(), c.rank() + i);
      c.all_gather(in.data(), out, in.size() * 4, DType::int32, kTimeout);
      for (int32_t x : zero) ASSERT_EQ(x, i);
      for (int32_t x : one) ASSERT_EQ(x, i + 1);
    }
  });
}

// I4: contributions are reduced in rank order, whatever the algorithm: with these values any other
// order gives another float.
TEST(I4, TheSameBitsOnEveryRankByEveryAlgorithm) {
  const auto value = [](int rank, size_t i) {
    return std::ldexp(1.0f + 0.37f * static_cast<float>(rank),
                      (static_cast<int>(i) + 11 * rank) % 31);
  };
  Config one, two;
  one.one_shot_max_bytes = 1 << 20;
  two.one_shot_max_bytes = 1;
  for (const Config& config : {one, two})
    run_ranks(
        5,
        [&](Communicator& c) {
          std::vector<float> v(3001);
          for (size_t i = 0; i < v.size(); ++i) v[i] = value(c.rank(), i);
          c.all_reduce(v.data(), v.data(), v.size(), DType::float32, {}, kTimeout);
          size_t order_matters = 0;
          for (size_t i = 0; i < v.size(); ++i) {
            float sum = value(0, i), backwards = value(4, i);
            for (int r = 1; r < 5; ++r) {
              sum += value(r, i);
              backwards += value(4 - r, i);
            }
            ASSERT_EQ(v[i], sum) << i;
            order_matters += sum != backwards;
          }
          ASSERT_GT(order_matters, 100u);
        },
        config);
}

// I5: different calls raise on every rank, and each message names every rank's call.
TEST(I5, DifferentCallsRaiseOnEveryRankAndNameEachCall) {
  run_ranks(3, [](Communicator& c) {
    std::vector<float> v(100);
    c.barrier(kTimeout);
    const auto text = error_of(
        [&] {
          if (c.rank() == 1)
            c.broadcast(v.data(), 40, DType::int32, 2, kTimeout);
          else
            c.all_reduce(v.data(), v.data(), c.rank() == 0 ? 10 : 12, DType::float32, {}, kTimeout);
          c.barrier(kTimeout);  // where a rank that waits for nobody finds out
        },
        ErrorKind::mismatch);
    expect_contains(text, {"rank 0: all_reduce #2 (float32, sum, one_shot, 40 bytes)",
                           "rank 1: broadcast #2 (int32, 40 bytes, root 2)",
                           "rank 2: all_reduce #2 (float32, sum, one_shot, 48 bytes)"});
    error_of([&] { c.barrier(kTimeout); }, ErrorKind::aborted);  // failed for good
  });
}

TEST(I5, EveryFieldOfACallIsInItsFingerprint) {
  CallRecord base;
  base.reduces = true;
  base.bytes = 64;
  std::vector<CallRecord> others(6, base);
  others[0].bytes = 65;
  others[1].dtype = DType::int8;
  others[2].op = ReduceOp::max;
  others[3].root = 0;
  others[4].collective = Collective::reduce;
  others[5].algorithm = Algorithm::two_shot;
  for (const CallRecord& other : others)
    EXPECT_NE(fingerprint(base), fingerprint(other)) << describe(other);
}

TEST(I5, SplitSizesThatDoNotFitRaiseOnEveryRank) {
  run_ranks(3, [](Communicator& c) {
    char a[64] = {}, b[64] = {};
    const void* in[] = {a, a, a};
    void* out[] = {b, b, b};
    size_t in_bytes[] = {4, 4, 4}, out_bytes[] = {4, 4, 4};
    if (c.rank() == 1) in_bytes[2] = 8;
    const auto text =
        error_of([&] { c.all_to_all_v(in, in_bytes, out, out_bytes, DType::int8, kTimeout); },
                 ErrorKind::mismatch);
    expect_contains(text, {"rank 1 sends 8 bytes to rank 2, which expects 4"});
  });
}

// I6: every wait ends.
TEST(I6, ARankThatNeverCallsIsATimeoutThatNamesIt) {
  run_ranks(3, [](Communicator& c) {
    std::vector<float> v(10);
    if (c.rank() == 1) {
      std::this_thread::sleep_for(2 * kShort);
      return;
    }
    const uint64_t start = nanoseconds();
    // Whichever of the two gives up first fails; the other hears of it or gives up as well.
    std::string text;
    try {
      c.all_reduce(v.data(), v.data(), 10, DType::float32, {}, kShort);
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_TRUE(e.kind() == ErrorKind::timeout || e.kind() == ErrorKind::peer_lost) << e.what();
      text = e.what();
    }
    EXPECT_LT(nanoseconds() - start, uint64_t(kShort.count()) * 3'000'000);
    expect_contains(text,
                    {"all_reduce #1", "Timed out after 400 ms", "rank 1", "has called nothing"});
  });
}

TEST(I6, AbortEndsAWaitAtOnce) {
  run_ranks(2, [](Communicator& c) {
    char x = 0;
    if (c.rank() == 1) {
      std::this_thread::sleep_for(Milliseconds(200));
      c.all_reduce(&x, &x, 1, DType::int8, {}, kTimeout);  // rank 0 had published its part
      const auto text = error_of([&] { c.barrier(kTimeout); }, ErrorKind::peer_lost);
      expect_contains(text, {"rank 0 is lost", "aborted: enough"});
      return;
    }
    std::thread aborter([&] {
      std::this_thread::sleep_for(Milliseconds(50));
      c.abort("enough");
    });
    const uint64_t start = nanoseconds();
    const auto text =
        error_of([&] { c.all_reduce(&x, &x, 1, DType::int8, {}, kTimeout); }, ErrorKind::aborted);
    expect_contains(text, {"enough"});
    EXPECT_LT(nanoseconds() - start, 2'000'000'000u);
    aborter.join();
  });
}

TEST(I6, APeerThatLeavesInGoodOrderIsNamedToThoseWhoStillWait) {
  run_ranks(2, [](Communicator& c) {
    c.barrier(kTimeout);
    if (c.rank() == 1) return;
    const auto text = error_of([&] { c.barrier(kTimeout); }, ErrorKind::peer_lost);
    expect_contains(text, {"rank 1 is lost", "left the group"});
  });
}

TEST(I6, WhatAPeerPublishedBeforeItLeftStillCounts) {
  for (int i = 0; i < 50; ++i)
    run_ranks(2, [](Communicator& c) {
      int32_t x = 7;
      if (c.rank() == 1) std::this_thread::sleep_for(Milliseconds(1));
      c.broadcast(&x, 4, DType::int32, 0, kTimeout);  // rank 0 leaves without waiting
      ASSERT_EQ(x, 7);
    });
}

TEST(I6, ARankThatNeverArrivesIsNamedAtInit) {
  MapBootstrap bootstrap;
  const auto text =
      error_of([&] { Communicator c(bootstrap, 0, 3, {}, kShort, "late"); }, ErrorKind::timeout);
  expect_contains(text, {"rocenante[late] rank 0: init", "ranks 1, 2 of 3 did not arrive"});
}

TEST(Init, DifferentConfigurationsRaiseOnEveryRankAndNameTheVariable) {
  MapBootstrap bootstrap;
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      Config config;
      if (r == 1) config.slot_bytes = 65536;
      const auto text =
          error_of([&] { Communicator c(bootstrap, r, 2, config_of(r, config), kTimeout, "t"); },
                   ErrorKind::config);
      expect_contains(text, {"ROCENANTE_SLOT_BYTES", "65536", "524288", "rank 0", "rank 1"});
    });
  for (auto& t : threads) t.join();
}

TEST(Init, AStoreThatStillHoldsAnEarlierGroupIsNoObstacle) {
  MapBootstrap bootstrap;
  for (int i = 0; i < 3; ++i) {
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        Communicator c(bootstrap, r, 2, config_of(r), kTimeout, "again");
        c.barrier(kTimeout);
      });
    for (auto& t : threads) t.join();
  }
}

TEST(Init, RefusesImpossibleRanks) {
  MapBootstrap bootstrap;
  for (auto [rank, size] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, kMaxRanks + 1}})
    error_of(
        [&, rank = rank, size = size] { Communicator c(bootstrap, rank, size, {}, kShort, "t"); },
        ErrorKind::usage);
}

TEST(Usage, AWrongCallByItselfLeavesTheCommunicatorHealthy) {
  run_ranks(2, [](Communicator& c) {
    float x = 1;
    error_of([&] { c.all_reduce(&x, &x, 1, DType::float32, {ReduceOp::band}, kTimeout); },
             ErrorKind::usage);
    error_of([&] { c.broadcast(&x, 4, DType::float32, 2, kTimeout); }, ErrorKind::usage);
    c.all_reduce(&x, &x, 1, DType::float32, {}, kTimeout);
    ASSERT_EQ(x, 2);
  });
}

TEST(Fork, AChildCanNeitherUseNorTearDownItsParentsGroup) {
  run_ranks(2, [](Communicator& c) {
    c.barrier(kTimeout);
    if (c.rank() == 0) {
      const pid_t child = fork();
      if (child == 0) {
        bool refused = false;
        try {
          c.barrier(kTimeout);
        } catch (const Error& e) {
          refused = e.kind() == ErrorKind::usage;
        }
        c.close();
        _exit(refused ? 0 : 1);
      }
      int status = -1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
    c.barrier(kTimeout);
  });
}

}  // namespace
}  // namespace rocenante::test
