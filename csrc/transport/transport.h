// What a transport offers the exchange. Every transport folder has the same files: address (the
// blob that peers exchange through the store), memory (a window's memory), transport (this
// interface).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/clock.h"
#include "exchange/call.h"
#include "window/layout.h"

namespace rocenante {

// What one rank sees of a peer (or of itself), by epoch. The exchange polls and reads through these
// pointers alone, whichever transport fills the memory behind them.
struct PeerView {
  const SignalLine* line[2] = {};
  const char* slot[2] = {};
};

// The part of a staged contribution that one peer reads.
struct Part {
  size_t offset = 0;
  size_t bytes = 0;
};

// One step of the exchange, as this rank publishes it.
struct Publication {
  uint64_t step = 0;
  uint64_t signal = 0;
  const CallRecord* call = nullptr;  // null unless this is the first step of its call
};

// A peer from which nothing more can come.
struct Loss {
  std::string why;
  bool in_good_order = false;  // it left the group; else it died or failed
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Set once all ranks have attached.
  const PeerView& view(int rank) const { return views_[rank]; }
  // Where this rank stages its contribution: in the slot, or in the signal's own line.
  virtual char* slot(uint64_t epoch) = 0;
  virtual char* inline_data(uint64_t epoch) = 0;

  // Makes what was staged for this step, then its signal, visible to every peer, in that order
  // (I3).
  virtual void publish(const Publication& publication) = 0;

  // Sleeps until `peer` may have published, any peer may have pushed a fragment or a credit, or a
  // few milliseconds have gone by. `ready` is asked once more when the peer can no longer miss the
  // sleeper.
  virtual void sleep_for_signal(int peer, bool (*ready)(void*), void* context) = 0;
  virtual void sleep_for_message(bool (*ready)(void*), void* context) = 0;
  // Wakes this rank's own sleepers (abort).
  virtual void wake_self() = 0;

  // Whether and why nothing more can come from the peer. Not cheap; not for the first microseconds
  // of a wait.
  virtual std::optional<Loss> lost(int peer) = 0;
  // "pid 4711, stopped": what is known of a peer that is late.
  virtual std::string about(int peer) = 0;
  virtual CallRecord call_of(int peer, uint64_t epoch) = 0;
  virtual uint64_t operations_of(int peer) = 0;
  virtual void count_operation(uint64_t operation) = 0;

  // Point to point: rings in the receiver's window, credits in the sender's.
  virtual void push_fragment(int peer, uint64_t number, const Fragment& header,
                             const void* payload) = 0;
  virtual const Fragment& fragment_from(int peer, uint64_t number) = 0;
  virtual void push_credit(int peer, uint64_t consumed) = 0;
  virtual const std::atomic<uint64_t>& credit_from(int peer) = 0;

  // Tells the peers that nothing more comes from this rank: `reason` is empty if it leaves in good
  // order.
  virtual void leave(const std::string& reason) = 0;
  // How many of the ranks share this host's processors, this one included.
  virtual int local_ranks() const = 0;

 protected:
  PeerView views_[kMaxRanks];
};

}  // namespace rocenante
