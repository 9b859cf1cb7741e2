// Issue order, whoever runs what.
#include "collective/executor.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/error.h"

namespace rocenante {
namespace {

TEST(I2, RunsEverythingInTheOrderOfIssue) {
  Executor executor;
  std::vector<int> order;
  std::vector<std::shared_ptr<Task>> tasks;
  for (int i = 0; i < 100; ++i) {
    if (i % 3 == 0)
      executor.run([&, i] { order.push_back(i); });
    else
      tasks.push_back(executor.submit([&, i] { order.push_back(i); }));
  }
  for (auto& t : tasks) EXPECT_TRUE(executor.wait(t, Executor::kUnlimited));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(I2, NeverRunsTwoAtOnce) {
  Executor executor;
  std::atomic<int> inside{0}, done{0};
  const auto body = [&] {
    ASSERT_EQ(inside.fetch_add(1), 0);
    std::this_thread::yield();
    inside.fetch_sub(1);
    done.fetch_add(1);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        if ((t + i) % 2)
          executor.run(body);
        else
          executor.wait(executor.submit(body), Executor::kUnlimited);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(done.load(), 800);
}

TEST(Executor, AWaitingThreadRunsWhatTheWorkerCannot) {
  Executor executor;
  std::thread::id ran_on;
  std::atomic<bool> inside{false}, let_go{false};
  // A blocking call on another thread holds the turn; the queued task's turn comes after it.
  std::thread holder([&] {
    executor.run([&] {
      inside = true;
      while (!let_go) std::this_thread::yield();
    });
  });
  while (!inside) std::this_thread::yield();
  auto task = executor.submit([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_FALSE(executor.wait(task, Milliseconds(20)));
  let_go = true;
  EXPECT_TRUE(executor.wait(task, Executor::kUnlimited));
  EXPECT_NE(ran_on, std::thread::id());
  holder.join();
}

TEST(Executor, KeepsATasksErrorAndGoesOn) {
  Executor executor;
  auto bad = executor.submit([] { throw Error(ErrorKind::usage, "no"); });
  auto good = executor.submit([] {});
  EXPECT_TRUE(executor.wait(good, Executor::kUnlimited));
  EXPECT_TRUE(bad->done());
  EXPECT_THROW(std::rethrow_exception(bad->error()), Error);
  EXPECT_FALSE(good->error());
  EXPECT_THROW(executor.run([] { throw Error(ErrorKind::usage, "no"); }), Error);
  executor.run([] {});
}

TEST(Executor, CallsThenOnceTheTaskIsDone) {
  Executor executor;
  std::atomic<int> called{0};
  std::shared_ptr<Task> task;
  task = executor.submit([] {}, [&] { called.fetch_add(1); });
  EXPECT_TRUE(executor.wait(task, Executor::kUnlimited));
  executor.wait(executor.submit([] {}), Executor::kUnlimited);
  EXPECT_EQ(called.load(), 1);
}

TEST(Executor, StopFailsWhatHasNotBegun) {
  Executor executor;
  std::atomic<bool> inside{false}, let_go{false};
  auto running = executor.submit([&] {
    inside = true;
    while (!let_go) std::this_thread::yield();
  });
  while (!inside) std::this_thread::yield();
  auto queued = executor.submit([] { FAIL() << "ran after stop"; });
  std::thread blocked([&] { EXPECT_THROW(executor.run([] {}), Error); });
  std::this_thread::sleep_for(Milliseconds(20));
  executor.stop("test over");
  EXPECT_TRUE(queued->done());
  EXPECT_THROW(std::rethrow_exception(queued->error()), Error);
  let_go = true;
  blocked.join();
  EXPECT_TRUE(executor.wait(running, Executor::kUnlimited));
  EXPECT_FALSE(running->error());
  EXPECT_THROW(executor.run([] {}), Error);
  EXPECT_TRUE(executor.submit([] {})->done());
}

}  // namespace
}  // namespace rocenante
