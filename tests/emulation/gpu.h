// One rank's emulated GPU: device memory, and a grid of threads that run one launch after the
// other, as a stream does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "device/args.h"
#include "device/emulator.h"
#include "device/plan.h"

namespace rocenante::test {

using Random = std::mt19937_64;

// Aligned as slots must be.
struct alignas(128) Chunk {
  char bytes[128];
};

// One rank's launch of a kernel. `prepare` runs before it and `check` after it, as host code that
// the stream orders.
struct Launch {
  device::KernelId kernel;
  device::KernelArgs args;  // memory and rank are filled in by the GPU
  unsigned blocks = 1;
  std::function<void()> prepare;
  std::function<void()> check;
};

class Gpu {
 public:
  // `window` and `control` belong to the rank and must outlive its GPU. Every block has `threads`
  // threads.
  Gpu(unsigned rank, const device::WindowLayout& layout, unsigned threads, char* window,
      device::Control& control);

  unsigned rank() const { return rank_; }
  const device::WindowLayout& layout() const { return layout_; }
  device::Control& control() { return control_; }
  void add(Launch launch);
  // ... with memory of its own.
  void add_as_it_is(Launch launch) { launches_.push_back(std::move(launch)); }
  // Spawns the grid, for emulator::run(); `live` counts its threads that have not ended.
  void start(std::atomic<unsigned>& live);
  // Forgets launches that have run.
  void clear() { launches_.clear(); }

 private:
  void run_thread(unsigned block, unsigned thread);

  const unsigned rank_;
  const device::WindowLayout layout_;
  const unsigned threads_;
  char* const window_;
  device::Control& control_;
  std::unique_ptr<device::ChannelState> state_;
  std::vector<Launch> launches_;
  std::vector<std::unique_ptr<emulator::Block>> grid_;
  emulator::Barrier stream_;
};

}  // namespace rocenante::test
