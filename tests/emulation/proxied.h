// Ranks of one process, each with a real Endpoint, window and proxy thread; their GPUs are emulated
// together on the calling thread, by the wall clock.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "../unit/ranks.h"
#include "device/endpoint.h"
#include "gpu.h"

namespace rocenante::test {

inline constexpr device::Shape kSmall{2, 512, 256};

class ProxiedRanks {
 public:
  explicit ProxiedRanks(unsigned ranks, unsigned threads = 4, const device::Shape& shape = kSmall)
      : endpoints_(ranks) {
    MapBootstrap bootstrap;
    std::vector<std::thread> meeting;
    for (unsigned r = 0; r < ranks; ++r)
      meeting.emplace_back([&, r] {
        endpoints_[r] = std::make_unique<device::Endpoint>(
            bootstrap, static_cast<int>(r), static_cast<int>(ranks), config_of(static_cast<int>(r)),
            kTimeout, "test", shape);
      });
    for (std::thread& t : meeting) t.join();
    for (unsigned r = 0; r < ranks; ++r)
      gpus_.push_back(std::make_unique<Gpu>(r, endpoints_[r]->layout(), threads,
                                            endpoints_[r]->window(), endpoints_[r]->control()));
  }

  unsigned size() const { return static_cast<unsigned>(gpus_.size()); }
  const device::WindowLayout& layout() const { return endpoints_[0]->layout(); }
  device::Endpoint& endpoint(unsigned rank) { return *endpoints_[rank]; }
  device::Proxy& proxy(unsigned rank) { return endpoints_[rank]->proxy(); }
  Gpu& gpu(unsigned rank) { return *gpus_[rank]; }
  // Runs what has been launched, on all GPUs, to its end.
  void run(uint64_t seed) {
    for (const auto& gpu : gpus_) gpu->start(live_);
    emulator::run(seed, UINT64_MAX, emulator::Clock::wall);
    for (const auto& gpu : gpus_) gpu->clear();
  }

 private:
  std::vector<std::unique_ptr<device::Endpoint>> endpoints_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::atomic<unsigned> live_{0};
};

}  // namespace rocenante::test
