// A cluster in one process: every rank has a window, device and host-mapped memory, a grid of
// emulated GPU threads that run one launch after the other, and a proxy with its NIC.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "device/args.h"
#include "device/emulator.h"
#include "device/kernel_table.h"

namespace rocenante::test {

using Random = std::mt19937_64;

struct alignas(128) Chunk {
  char bytes[128];
};

// One rank's launch of a kernel. `prepare` runs before it and `check` after it, as host code that
// the stream orders.
struct Launch {
  device::KernelId kernel;
  device::KernelArgs args;  // memory and rank are filled in by the cluster
  unsigned blocks = 1;
  std::function<void()> prepare;
  std::function<void()> check;
};

class Cluster {
 public:
  Cluster(unsigned ranks, unsigned channels, unsigned threads, uint64_t slot_bytes,
          uint64_t line_bytes, uint64_t seed);

  const device::WindowLayout& layout() const { return layout_; }
  device::Control& control(unsigned rank) { return *ranks_[rank].control; }
  void add(unsigned rank, Launch launch) { ranks_[rank].launches.push_back(std::move(launch)); }
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
    std::unique_ptr<device::ChannelState> state;
    std::unique_ptr<device::Control> control;
    std::vector<Launch> launches;
    std::vector<std::unique_ptr<emulator::Block>> grid;
    std::unique_ptr<emulator::Barrier> stream;
    std::vector<uint64_t> next;  // by channel: the exchange whose bell the proxy awaits
    std::vector<std::deque<Write>> queue_pairs;  // by peer
  };

  void run_thread(Rank& rank, unsigned block, unsigned thread);
  void run_nic(unsigned me);
  void answer_bells(unsigned me);
  void post(unsigned me, unsigned channel, uint64_t sequence, uint64_t request, uint64_t signal);
  void progress(Rank& rank, unsigned peer, Random& random);

  const device::WindowLayout layout_;
  const unsigned threads_;
  const uint64_t seed_;
  std::vector<Rank> ranks_;
  std::vector<std::function<void()>> hosts_;
  std::atomic<unsigned> live_{0};  // emulated threads that have not ended
};

}  // namespace rocenante::test
