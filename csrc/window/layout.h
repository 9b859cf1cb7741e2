// The layout of a window: one fixed region per rank and communicator, the same on every rank. What
// a peer needs to find in it is an offset, computed here and nowhere else.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/types.h"
#include "exchange/call.h"

namespace rocenante {

inline constexpr size_t kLine = 128;  // two cache lines: adjacent-line prefetchers pair them
inline constexpr size_t kPage = 4096;

// The arrival of one contribution; exchange/signal.h says what a signal holds. Contributions of up
// to kInlineBytes travel in the signal's own cache line, so that they cost one line transfer in
// all. One pushed over several rails comes in stripes: of the second and those behind it, the step
// whose stripe is in place.
inline constexpr size_t kInlineBytes = 56;
struct alignas(kLine) SignalLine {
  std::atomic<uint64_t> signal;
  char data[kInlineBytes];
  std::atomic<uint64_t> stripes[kMaxRails - 1];
};

// A fragment of a point-to-point message: header and payload lie in a ring in the receiver's
// window.
inline constexpr size_t kFragmentBytes = 16 << 10;
inline constexpr uint64_t kRingSlots = 4;
struct alignas(kLine) Fragment {
  std::atomic<uint64_t> number;  // 1, 2, ... per pair; stored last: the payload is then in place
  uint64_t message_bytes;
  uint32_t bytes;  // of this fragment
  int32_t tag;
  DType dtype;
  bool first;  // of its message
  alignas(kLine) char payload[kFragmentBytes];
};

enum class WindowState : uint32_t { attaching, open, closed, failed };

// Where threads sleep; a peer spends a system call only where somebody does. In the collectives'
// bed at most one thread sleeps, for one peer: `awaited` names it, plus one. In the point-to-point
// bed `awaited` counts the sleepers.
struct alignas(kLine) Bed {
  std::atomic<uint32_t> word;  // futex
  std::atomic<uint32_t> awaited;
};

inline constexpr uint64_t kWindowMagic = 0x31746e616e65636f;  // "ocenant1"
inline constexpr size_t kReasonBytes = 512;

// What a rank has to say about itself beside its contributions.
struct alignas(kLine) Notice {
  std::atomic<WindowState> state;  // written last
  char reason[kReasonBytes];       // why it failed
  std::atomic<uint64_t> operations;
  CallRecord calls[2];  // by epoch: the call that the step of that epoch belongs to
};

// What a rank tells a peer of a rail between them that it has given up: what had come over it by
// then, for nothing more can. See transport/rails.h.
struct alignas(kLine) RailEnd {
  std::atomic<uint64_t> dropped;   // 1; written last
  uint64_t steps[2][kMaxRails];    // by epoch and stripe
  uint64_t fragments[kRingSlots];  // numbers, by slot of the ring
};

struct alignas(kPage) WindowHeader {
  uint64_t magic;
  uint64_t generation;  // tells this group's window from one left under the same name
  uint64_t bytes;
  uint32_t rank, size;
  Notice notice;
  Bed collective_bed;
  Bed point_to_point_bed;
  SignalLine lines[2];  // by epoch: this rank's own contributions, for those who read in place
  struct Credit {
    alignas(
        kLine) std::atomic<uint64_t> consumed;  // fragments that the peer has taken from its ring
  };
  Credit credits[kMaxRanks];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Offsets in a window of `size` ranks. If ranks of several hosts share the group (`pushed`),
// regions follow that ranks of other hosts write into: a line and a slot for each peer and epoch,
// its notice, and the ends of rails to it. Last comes the region that GPU kernels exchange through,
// if there is one; what is in it is laid out by device/args.h.
class Layout {
 public:
  Layout(int size, size_t slot_bytes, bool pushed, size_t region_bytes = 0)
      : size_(static_cast<size_t>(size)),
        slot_bytes_(slot_bytes),
        pushed_(pushed),
        region_bytes_(region_bytes) {}

  size_t slot(uint64_t epoch) const { return sizeof(WindowHeader) + epoch * slot_bytes_; }
  size_t fragment(int peer, uint64_t number) const {
    return slot(2) + ring(peer, number) * sizeof(Fragment);
  }

  size_t line_from(int peer, uint64_t epoch) const {
    return slot(2) + size_ * kRingSlots * sizeof(Fragment) + of(peer, epoch) * sizeof(SignalLine);
  }
  size_t notice_from(int peer) const {
    return line_from(0, 2) + static_cast<size_t>(peer) * sizeof(Notice);
  }
  // Where a fragment for `peer` is staged: a NIC reads nothing but windows.
  size_t fragment_to(int peer, uint64_t number) const {
    return line_from(0, 2) + size_ * sizeof(Notice) + ring(peer, number) * sizeof(Fragment);
  }
  size_t rail_end_from(int peer, size_t rail) const {
    return fragment_to(0, 0) + size_ * kRingSlots * sizeof(Fragment) +
           (static_cast<size_t>(peer) * kMaxRails + rail) * sizeof(RailEnd);
  }
  size_t rail_end_to(int peer, size_t rail) const {
    return rail_end_from(static_cast<int>(size_), 0) +
           (static_cast<size_t>(peer) * kMaxRails + rail) * sizeof(RailEnd);
  }
  // Where packets may land that mean nothing.
  size_t probe() const { return page(rail_end_to(static_cast<int>(size_), 0)); }
  size_t slot_from(int peer, uint64_t epoch) const {
    return probe() + kPage + of(peer, epoch) * slot_bytes_;
  }

  size_t region() const { return page(pushed_ ? slot_from(0, 2) : line_from(0, 0)); }

  size_t bytes() const { return region() + page(region_bytes_); }
  size_t slot_bytes() const { return slot_bytes_; }
  bool pushed() const { return pushed_; }

 private:
  static size_t page(size_t n) { return (n + kPage - 1) / kPage * kPage; }
  static size_t ring(int peer, uint64_t number) {
    return static_cast<size_t>(peer) * kRingSlots + number % kRingSlots;
  }
  size_t of(int peer, uint64_t epoch) const { return epoch * size_ + static_cast<size_t>(peer); }

  size_t size_, slot_bytes_;
  bool pushed_;
  size_t region_bytes_;
};

}  // namespace rocenante
