// What a transport offers the exchange. shm/ serves ranks of one host, verbs/ those of several.
#pragma once

#include <algorithm>
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
  bool pushed = false;  // the peer writes these from another host
};

// The part of a staged contribution that one peer reads.
struct Part {
  size_t offset = 0;
  size_t bytes = 0;
};

// Which part each peer reads. A transport that has to send the bytes sends those alone.
class Parts {
 public:
  static Parts none() { return {kEveryone, 0, 0, nullptr, 0}; }
  // Every peer reads the first `bytes` bytes.
  static Parts same(size_t bytes) { return {kEveryone, 0, bytes, nullptr, bytes}; }
  static Parts range(size_t begin, size_t bytes) {
    Parts parts = same(bytes);
    parts.base_ = begin;
    return parts;
  }
  static Parts only(int peer, size_t bytes) { return {peer, 0, bytes, nullptr, bytes}; }
  // Peer r reads `bytes` bytes from r * stride on, but none from `end` on.
  static Parts lanes(size_t stride, size_t bytes, size_t end = SIZE_MAX) {
    return {kEveryone, stride, bytes, nullptr, end};
  }
  // Peer r reads bytes[r] bytes from r * stride on; `bytes` must outlive the publication.
  static Parts lanes(size_t stride, const size_t* bytes) {
    return {kEveryone, stride, 0, bytes, SIZE_MAX};
  }

  Part of(int peer) const {
    if (peer_ != kEveryone && peer_ != peer) return {};
    const size_t lane = std::min(static_cast<size_t>(peer) * stride_, end_);
    return {base_ + lane, std::min(each_ ? each_[peer] : bytes_, end_ - lane)};
  }

 private:
  static constexpr int kEveryone = -1;
  Parts(int peer, size_t stride, size_t bytes, const size_t* each, size_t end)
      : peer_(peer), stride_(stride), bytes_(bytes), each_(each), end_(end) {}
  int peer_;
  size_t base_ = 0;
  size_t stride_, bytes_;
  const size_t* each_;
  size_t end_;
};

// One step of the exchange, as this rank publishes it.
struct Publication {
  uint64_t step;
  uint64_t signal;
  const CallRecord* call;  // null unless this is the first step of its call
  bool in_line;            // staged in the signal's own line
  size_t bytes;            // the most that any rank stages in this step
  Parts parts;
};

// What one rank sends one peer of its region. Offsets are the same in both regions.
struct RegionWrite {
  size_t from = 0;  // in this rank's
  size_t to = 0;    // in the peer's
  size_t bytes = 0;
  // The word that follows the bytes, in that order (I3), and where it goes. Without one the bytes
  // announce themselves: they are 8-byte words, each of which arrives whole.
  std::optional<uint64_t> signal;
  size_t signal_to = 0;
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
  // time has gone by that is short beside a person's patience, or beside the nanoseconds `waited`
  // so far. `ready` is asked once more when the peer can no longer miss the sleeper.
  virtual void sleep_for_signal(int peer, uint64_t waited, bool (*ready)(void*), void* context) = 0;
  virtual void sleep_for_message(uint64_t waited, bool (*ready)(void*), void* context) = 0;
  // Wakes this rank's own sleepers (abort).
  virtual void wake_self() = 0;

  // Whether and why nothing more can come from the peer. Not cheap; not for the first microseconds
  // of a wait.
  virtual std::optional<Loss> lost(int peer) = 0;
  // "pid 4711, stopped": what is known of a peer that is late.
  virtual std::string about(int peer) = 0;
  // What a peer calls, and how many operations it has begun: nothing if it cannot be asked.
  virtual std::optional<CallRecord> call_of(int peer, uint64_t epoch) = 0;
  virtual std::optional<uint64_t> operations_of(int peer) = 0;
  virtual void count_operation(uint64_t operation) = 0;

  // Point to point: rings in the receiver's window, credits in the sender's.
  virtual void push_fragment(int peer, uint64_t number, const Fragment& header,
                             const void* payload) = 0;
  virtual const Fragment& fragment_from(int peer, uint64_t number) = 0;
  virtual void push_credit(int peer, uint64_t consumed) = 0;
  virtual const std::atomic<uint64_t>& credit_from(int peer) = 0;

  // The part of the window that GPU kernels exchange through, zero at first; only if meet() was
  // asked for one.
  virtual char* region() = 0;
  // Bytes and offsets are multiples of 8; the bytes must stay as they are until the peer can have
  // answered.
  virtual void push_region(int peer, const RegionWrite& write) = 0;

  // Tells the peers that nothing more comes from this rank: `reason` is empty if it leaves in good
  // order.
  virtual void leave(const std::string& reason) = 0;
  // Whether the ranks are on several hosts: the same on all of them.
  bool pushes() const { return pushes_; }
  // Whether the ranks that share processors with this one can each run on one of their own.
  virtual bool has_processor_each() const = 0;

 protected:
  PeerView views_[kMaxRanks];
  bool pushes_ = false;
};

}  // namespace rocenante
