// A cluster in one process: every rank has a window, a Control, an emulated GPU, and the model of a
// proxy with its NIC, which reads bells and copies in random order and at random times.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "device/args.h"
#include "device/emulator.h"
#include "gpu.h"

namespace rocenante::test {

class Cluster {
 public:
  Cluster(unsigned ranks, unsigned channels, unsigned threads, uint64_t slot_bytes,
          uint64_t line_bytes, uint64_t seed);

  const device::WindowLayout& layout() const { return layout_; }
  Gpu& gpu(unsigned rank) { return *ranks_[rank].gpu; }
  device::Control& control(unsigned rank) { return *ranks_[rank].control; }
  // Another fiber that runs beside the grids, such as a host thread.
  void add_host(std::function<void()> body) { hosts_.push_back(std::move(body)); }

  // Runs all launches of all ranks; see emulator::run.
  emulator::Run run(uint64_t limit);

 private:
  // One RDMA WRITE.
  struct Write {
    const char* from;
    char* to;
    size_t bytes;
    uint64_t signal;  // what to write where there are no bytes
    bool lines;
  };
  struct Rank {
    std::vector<Chunk> window;
    std::unique_ptr<device::Control> control;
    std::unique_ptr<Gpu> gpu;
    std::vector<uint64_t> next;  // by channel: the exchange whose bell the proxy awaits
    std::vector<std::deque<Write>> queue_pairs;  // by peer
  };

  void run_nic(unsigned me);
  void answer_bells(unsigned me);
  void post(unsigned me, unsigned channel, uint64_t sequence, uint64_t request, uint64_t signal);
  void progress(Rank& rank, unsigned peer, Random& random);

  const device::WindowLayout layout_;
  const uint64_t seed_;
  std::vector<Rank> ranks_;
  std::vector<std::function<void()>> hosts_;
  std::atomic<unsigned> live_{0};  // emulated threads that have not ended
};

}  // namespace rocenante::test
