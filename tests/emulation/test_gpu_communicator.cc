// GpuCommunicator, with emulated GPUs in the place of CUDA and everything else real.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../unit/ranks.h"
#include "device/gpu_communicator.h"
#include "fake_gpu.h"
#include "operation.h"

namespace rocenante::test {
namespace {

using device::GpuCommunicator;

class Group {
 public:
  explicit Group(int ranks) : streams(static_cast<size_t>(ranks)), ends_(streams.size()) {
    std::vector<std::thread> meeting;
    for (int r = 0; r < ranks; ++r)
      meeting.emplace_back([&, r] {
        ends_[static_cast<size_t>(r)] =
            std::make_unique<GpuCommunicator>(bootstrap_, r, ranks, Config{}, kTimeout, "test", 0);
      });
    for (std::thread& t : meeting) t.join();
  }
  ~Group() { forget_fake_gpus(); }
  GpuCommunicator& operator[](size_t rank) { return *ends_[rank]; }
  size_t size() const { return ends_.size(); }

  std::vector<FakeStream> streams;

 private:
  MapBootstrap bootstrap_;
  std::vector<std::unique_ptr<GpuCommunicator>> ends_;
};

device::Call sum_of(size_t count) {
  return {Collective::all_reduce, DType::float32, {ReduceOp::sum, 1}, 0, count};
}

// A call that `except` does not make; -1: everybody does.
void launch_sum(Group& group, std::vector<std::vector<float>>& data, Milliseconds timeout,
                size_t except = SIZE_MAX) {
  for (size_t r = 0; r < group.size(); ++r)
    if (r != except)
      group[r].run(sum_of(data[r].size()), data[r].data(), data[r].data(), timeout,
                   &group.streams[r]);
}

TEST(GpuCommunicator, GivesTheBitsOfTheCpu) {
  for (const int size : {1, 2, 3}) {
    Group group(size);
    Random random(static_cast<uint64_t>(size));
    const device::WindowLayout layout(static_cast<uint32_t>(size), 8, 64 << 10, 4 << 10);
    for (int i = 0; i < 25; ++i) {
      Operation operation = random_operation(layout, random, i % 5 == 0 ? 300'000 : 1600);
      std::vector<std::vector<char>> out(group.size());
      for (size_t r = 0; r < group.size(); ++r) {
        device::Call call = operation.call;
        call.reduction.factor = operation.factors[r];
        out[r].resize(operation.out[r].size());
        group[r].run(call, operation.in[r].data(), out[r].data(), kTimeout, &group.streams[r]);
      }
      run_fake_gpus(random());
      for (size_t r = 0; r < group.size(); ++r) {
        EXPECT_EQ(group[r].failure(), "");
        ASSERT_EQ(out[r], operation.out[r]) << r << ": " << describe(operation, group.size());
      }
    }
  }
}

TEST(GpuCommunicator, ReplaysAGraphOnNewValues) {
  Group group(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(1000));
  for (FakeStream& stream : group.streams) stream.capturing = true;
  launch_sum(group, data, kTimeout);
  for (FakeStream& stream : group.streams) stream.capturing = false;
  for (int replay = 1; replay <= 20; ++replay) {
    for (size_t r = 0; r < 2; ++r) {
      std::fill(data[r].begin(), data[r].end(), static_cast<float>(replay * (r + 1)));
      group.streams[r].replay(static_cast<int>(r));
    }
    run_fake_gpus(static_cast<uint64_t>(replay));
    for (size_t r = 0; r < 2; ++r)
      ASSERT_EQ(data[r], std::vector<float>(1000, static_cast<float>(3 * replay)));
  }
}

TEST(GpuCommunicator, OrdersStreamsAsTheCallsCome) {
  Group group(1);
  FakeStream a, b;
  float x = 1;
  const auto run_on = [&](FakeStream& stream) {
    group[0].run(sum_of(1), &x, &x, kTimeout, &stream);
  };
  run_on(a);
  run_on(a);
  EXPECT_EQ(a.waits + b.waits, 0);
  run_on(b);
  EXPECT_EQ(b.waits, 1);
  run_on(a);
  EXPECT_EQ(a.waits, 1);
  b.capturing = true;  // what is captured cannot wait for what is not
  run_on(b);
  EXPECT_EQ(b.waits, 1);
  run_fake_gpus(1);
}

TEST(GpuCommunicator, TellsOfAFailureAtTheNextCall) {
  Group group(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(10));
  launch_sum(group, data, Milliseconds(50), 1);
  run_fake_gpus(1);
  const Deadline deadline(kTimeout);
  while (group[0].failure().empty() && !deadline.passed())
    std::this_thread::sleep_for(Milliseconds(1));
  const std::string first =
      error_of([&] { launch_sum(group, data, kTimeout, 1); }, ErrorKind::timeout);
  EXPECT_NE(first.find("Timed out waiting for rank 1"), std::string::npos) << first;
}

TEST(GpuCommunicator, AbortEndsKernels) {
  Group group(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(10));
  launch_sum(group, data, std::chrono::hours(1), 1);
  std::thread host([&] { group[0].abort("enough"); });
  run_fake_gpus(1);
  host.join();
  error_of([&] { launch_sum(group, data, kTimeout, 1); }, ErrorKind::aborted);
}

TEST(GpuCommunicator, ClosesWithAKernelUnderWay) {
  Group group(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(10));
  launch_sum(group, data, std::chrono::hours(1), 1);
  std::thread host([&] { group[0].close(Milliseconds(20)); });
  run_fake_gpus(1);  // ends, though rank 1 never came
  host.join();
  EXPECT_NE(group[0].failure().find("closed with kernels under way"), std::string::npos);
  error_of([&] { launch_sum(group, data, kTimeout, 1); }, ErrorKind::aborted);
}

TEST(GpuCommunicator, GivesBackItsMemory) {
  {
    Group group(2);
    EXPECT_EQ(live_memories(), 6);
  }
  EXPECT_EQ(live_memories(), 0);
}

TEST(GpuCommunicator, SaysWhatCouldNotBeMapped) {
  MapBootstrap bootstrap;
  fail_next_mapping("the control block");
  const std::string error = error_of(
      [&] { GpuCommunicator(bootstrap, 0, 1, {}, kTimeout, "test", 3); }, ErrorKind::system);
  EXPECT_NE(
      error.find("rocenante[test] rank 0: init on GPU 3: cudaHostRegister (the control block)"),
      std::string::npos)
      << error;
  EXPECT_EQ(live_memories(), 0);
}

TEST(GpuCommunicator, RefusesWhatNoKernelDoes) {
  Group group(1);
  float x = 1;
  device::Call call = sum_of(1);
  call.collective = Collective::gather;
  error_of([&] { group[0].run(call, &x, &x, kTimeout, &group.streams[0]); }, ErrorKind::usage);
  call = sum_of(1);
  call.reduction.op = ReduceOp::band;
  error_of([&] { group[0].run(call, &x, &x, kTimeout, &group.streams[0]); }, ErrorKind::usage);
  EXPECT_EQ(group[0].failure(), "");
}

}  // namespace
}  // namespace rocenante::test
