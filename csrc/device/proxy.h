// The proxy: a CPU thread that is a GPU's hands on the transport. Kernels ring doorbells in
// host-mapped memory; the proxy sends what they ask for, watches whether peers answer, and stops
// kernels that wait in vain.
//
// It may be descheduled for any time: a rank is at most one exchange ahead of its own proxy (see
// Bell), so bells wait until they are answered. It spins while there is work and for a short time
// after, then naps: nobody has to wake it for a replayed graph, whose first exchange may then wait
// for the rest of a nap (at most kLongestNap); wake() saves a launch that the host knows of even
// that.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/error.h"
#include "device/args.h"
#include "transport/transport.h"

namespace rocenante::device {

class Proxy {
 public:
  static constexpr uint64_t kLongestNap = 1'000'000;  // nanoseconds

  // Starts the thread. Everything given must outlive the proxy; `layout` is of transport.region().
  // `cpu`: the processor that it shall run on, or -1. Throws Error(ErrorKind::config) if it may
  // not.
  Proxy(Transport& transport, const WindowLayout& layout, Control& control, int rank,
        std::string name, int cpu);
  ~Proxy();  // stop()
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // A kernel is about to be launched.
  void wake();

  // What ended this rank's part in the group: a peer that is lost, a kernel that gave up, abort().
  // From then on the proxy sends nothing, and every kernel that waits, or is launched later, ends.
  struct Failure {
    ErrorKind kind;
    std::string what;
  };
  std::optional<Failure> failure() const;

  // From any thread: kernels that wait end, and so do peers', with `reason`.
  void abort(const std::string& reason);

  // Sends what has been rung for, then leaves the group. Kernels of this rank should have ended; if
  // one still waits it gives up, but its memory must stay until it has. Idempotent.
  void stop();

 private:
  // What the proxy knows of one channel.
  struct Line {
    uint64_t next = 1;     // the exchange whose bell is awaited
    uint64_t missing = 0;  // bit p: rank p's part of the exchange before has not been seen
    bool words = false;    // that exchange goes by the LL protocol
  };

  void work();
  void run();
  bool answer_bells();
  void send(unsigned channel, uint64_t sequence, uint64_t request, uint64_t signal);
  bool see_arrivals();
  bool has_arrived(unsigned channel, const Line& line, unsigned peer) const;
  bool is_waiting() const;
  void read_record();
  void look_for_lost_peers();
  std::string exchange_name(uint64_t sequence, unsigned channel) const;
  std::string list(uint64_t ranks, bool with_health);
  void fail(ErrorKind kind, const std::string& what);

  Transport& transport_;
  const WindowLayout layout_;
  Control& control_;
  const unsigned rank_;
  const std::string name_;
  const uint64_t peers_;  // bits
  const unsigned spins_per_yield_;

  Line lines_[kMaxChannels];  // the thread's own

  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  bool has_left_ = false;
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> bed_{0};  // futex
  std::thread thread_;
};

}  // namespace rocenante::device
