// The protocol: steps in which each rank publishes a contribution and reads its peers'. Everything
// that collectives do is built of these steps; nothing here knows a transport's kind.
//
// Steps are numbered from 1; epoch = step & 1 selects one of two slots. Invariants, each enforced
// where it is named in exchange.cc:
//  I1  Two epochs suffice, without acknowledgements: a rank publishes step s only after it has seen
//  every
//      peer's signal of step s-1, and a peer publishes s-1 only after it has finished reading s-2.
//      Hence the slot of s-2, which step s overwrites, is read by nobody, whether or not a rank
//      waits for all in a given step (a broadcast's root does not). No rank is ever more than one
//      step ahead of another.
//  I2  One operation at a time, in the same order on all ranks.
//  I3  Staged bytes happen before the signal, the signal before the read (release, acquire).
//  I5  A signal carries the call's fingerprint; ranks that call different things all raise.
//  I6  Every wait is bounded by elapsed time, ends on abort and on a peer's death, and fails only
//  once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "core/clock.h"
#include "core/error.h"
#include "exchange/call.h"
#include "transport/transport.h"

namespace rocenante {

class Exchange {
 public:
  Exchange(Transport& transport, int rank, int size, std::string name);

  // Begins an operation: numbers it, and throws if the communicator has failed. `call.operation` is
  // set here.
  void begin(CallRecord call, Milliseconds timeout);

  // Opens the next step; `bytes` is the most that any rank stages in it (a rank-invariant number,
  // at most the slot's size). Returns where this rank's contribution goes.
  char* open(size_t bytes);
  // Publishes what was staged, of which each peer reads its part. To be called once after each
  // open(), also with nothing staged.
  void publish(const Parts& parts);
  // This step's contribution of `peer`, once it is there.
  const char* await(int peer);
  void await_all();

  uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }
  void abort(const std::string& reason);
  std::string failure() const;
  // Ends the communicator in good order; operations throw from now on.
  void close();
  // Throws what await() would throw if this rank disagreed with a peer: used where an operation
  // finds out by the data that the calls don't fit.
  [[noreturn]] void raise(ErrorKind kind, const std::string& why);

 private:
  bool arrived(int peer, uint64_t step) const;
  void await_signal(int peer, uint64_t step);
  void wait_slowly(int peer, uint64_t step);
  void settle(int peer, uint64_t step, uint32_t expected);
  void throw_if_failed() const;
  std::string who() const;  // "rocenante[name] rank 2: all_reduce #5 (...)"
  std::string missing(uint64_t step) const;
  [[noreturn]] void raise_mismatch(uint64_t step);
  [[noreturn]] void raise_timeout(uint64_t step);
  [[noreturn]] void fail(ErrorKind kind, const std::string& what);

  Transport& transport_;
  const int rank_, size_;
  const std::string name_;
  int spins_;

  CallRecord call_;
  uint32_t fingerprint_ = 0, previous_fingerprint_ = 0;
  bool first_step_ = false;  // nothing of call_ has been published yet
  Deadline deadline_{Milliseconds(0)};
  uint64_t step_ = 0;
  size_t step_bytes_ = 0;  // as given to open()
  bool inline_ = false;
  bool seen_all_ = true;  // every peer's signal of step_ has been seen
  std::atomic<uint64_t> operations_{0};

  mutable std::mutex failure_mutex_;
  std::string failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace rocenante
