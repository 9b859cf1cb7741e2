#include "fake_gpu.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "core/error.h"
#include "device/gpu.h"

namespace rocenante::test {

namespace {

constexpr unsigned kThreads = 2;

std::mutex mutex;
std::map<int, std::unique_ptr<Gpu>> gpus;  // by rank
std::string mapping_that_fails;
std::atomic<int> memories{0};
uint64_t runs = 0;  // a mark is passed once everything has run

void queue(int rank, Launch launch) {
  const std::lock_guard lock(mutex);
  auto& gpu = gpus[rank];
  if (!gpu)
    gpu = std::make_unique<Gpu>(rank, launch.args.layout, kThreads, launch.args.window,
                                *launch.args.control);
  gpu->add_as_it_is(std::move(launch));
}

}  // namespace

void FakeStream::replay(int rank) {
  for (const Launch& launch : graph) queue(rank, launch);
}

void fail_next_mapping(const std::string& what) { mapping_that_fails = what; }

int live_memories() { return memories; }

void run_fake_gpus(uint64_t seed) {
  std::atomic<unsigned> live{0};
  for (const auto& [rank, gpu] : gpus) gpu->start(live);
  emulator::run(seed, UINT64_MAX, emulator::Clock::wall);
  for (const auto& [rank, gpu] : gpus) gpu->clear();
  ++runs;
}

void forget_fake_gpus() { gpus.clear(); }

}  // namespace rocenante::test

namespace rocenante::device {

using test::FakeStream;

OnGpu::OnGpu(int gpu) : before_(gpu) {}
OnGpu::~OnGpu() = default;

MappedMemory::MappedMemory(void* memory, size_t, const char* what)
    : memory_(memory), mapped_(memory) {
  const std::lock_guard lock(test::mutex);
  if (what == test::mapping_that_fails) {
    test::mapping_that_fails.clear();
    throw Error(ErrorKind::system, "cudaHostRegister (" + std::string(what) + ") failed");
  }
  ++test::memories;
}
MappedMemory::~MappedMemory() { --test::memories; }

DeviceMemory::DeviceMemory(size_t bytes, const char*) : data_(std::aligned_alloc(128, bytes)) {
  std::fill_n(static_cast<char*>(data_), bytes, char{0});
  ++test::memories;
}
DeviceMemory::~DeviceMemory() {
  std::free(data_);
  --test::memories;
}

Mark::Mark() : event_(new uint64_t(0)) {}
Mark::~Mark() { delete static_cast<uint64_t*>(event_); }
void Mark::set(void*) { *static_cast<uint64_t*>(event_) = test::runs + 1; }
bool Mark::passed() const { return test::runs >= *static_cast<uint64_t*>(event_); }
void Mark::precede(void* stream) const { ++static_cast<FakeStream*>(stream)->waits; }

bool is_capturing(void* stream) { return static_cast<FakeStream*>(stream)->capturing; }

void launch(const Call& call, const Plan& plan, const KernelArgs& args, void* stream) {
  test::Launch launch;
  launch.kernel = kernel_of(call, plan);
  launch.args = args;
  launch.blocks = plan.blocks;
  launch.prepare = launch.check = [] {};
  auto& to = *static_cast<FakeStream*>(stream);
  if (to.capturing)
    to.graph.push_back(std::move(launch));
  else
    test::queue(static_cast<int>(args.rank), std::move(launch));
}

}  // namespace rocenante::device
