// One block's exchanges with all peers: open, then any number of (begin, stage, publish, await),
// then close. All threads of the block call every member together.
#pragma once

#include "device/args.h"
#include "device/dialect.h"
#include "device/planted.h"
#include "device/wait.h"

namespace rocenante::device {

// Where the contributions of one exchange lie.
class Lane {
 public:
  ROCENANTE_DEVICE Lane(const KernelArgs& args, uint64_t lane)
      : window_(args.window), layout_(args.layout), lane_(lane) {}
  template <class V = Vector>
  ROCENANTE_DEVICE V* sent(unsigned peer = 0) const {
    return reinterpret_cast<V*>(window_ + layout_.sent(lane_, peer));
  }
  template <class V = Vector>
  ROCENANTE_DEVICE const V* received(unsigned peer) const {
    return reinterpret_cast<const V*>(window_ + layout_.received(lane_, peer));
  }
  ROCENANTE_DEVICE LinePair* sent_lines() const {
    return reinterpret_cast<LinePair*>(window_ + layout_.sent_lines(lane_));
  }
  ROCENANTE_DEVICE const LinePair* received_lines(unsigned peer) const {
    return reinterpret_cast<const LinePair*>(window_ + layout_.received_lines(lane_, peer));
  }
  ROCENANTE_DEVICE const uint64_t* signal(unsigned peer) const {
    return reinterpret_cast<const uint64_t*>(window_ + layout_.signal(lane_, peer));
  }

 private:
  char* const window_;
  const WindowLayout& layout_;
  const uint64_t lane_;
};

class Channel {
 public:
  // The sequence number comes from device memory, where close() leaves it: a replayed graph goes on
  // counting.
  ROCENANTE_DEVICE explicit Channel(const KernelArgs& args)
      : args_(args), index_(block()), sequence_(load(&args.state->sequence[block()])) {}

  // False if an earlier launch has failed: then this one does nothing, since nobody can know what
  // the window holds. The barrier also parts every thread's reading of the sequence from close().
  ROCENANTE_DEVICE bool open() {
    const bool failed =
        load_relaxed(&args_.state->failure) != 0 && !planted(Bug::failure_forgotten);
    return !sync_or(failed);
  }

  // The next exchange. Its lane may be read until publish() of the one after it.
  ROCENANTE_DEVICE Lane begin() {
    ++sequence_;
    return lane();
  }
  ROCENANTE_DEVICE uint64_t sequence() const { return sequence_; }

  // Has the proxy send what was staged.
  //
  // I1 (no acknowledgements): slots of this epoch may be overwritten by a peer as soon as it has
  // received this exchange's signal and completed the exchange, that is one exchange later. So
  // whatever this block still reads of the exchange before must be read before the bell rings: the
  // barrier sees to it. It is also why staging needs no wait: the peers' signals of the exchange
  // before, which this block has awaited, prove that they received the one before that, so the NIC
  // has read those slots, and that the proxy has taken that bell, so there is no need to ask
  // either. A rank without peers has no such proof, and nothing to send: it rings no bell.
  //
  // I3 (publish before signal): the barrier orders every thread's staging before the first thread's
  // release, and release is cumulative: whoever acquires the bell sees all of it.
  ROCENANTE_DEVICE void publish(Payload payload, uint64_t bytes) {
    if (!planted(Bug::no_barrier_before_bell)) sync();
    if (thread() != 0) return;
    if (args_.layout.ranks == 1 && !planted(Bug::bell_without_peers)) return;
    Bell* const bell = &args_.control->bells[index_][sequence_ & 1];
    store(&bell->request, static_cast<uint64_t>(payload) << Bell::kPayloadShift | bytes);
    const uint64_t signal = uint64_t{args_.fingerprint} << 32 | uint32_t(sequence_);
    if (planted(Bug::bell_without_release)) {
      store_relaxed(&bell->signal, signal);
    } else {
      store_release(&bell->signal, signal);
    }
  }

  // True once every peer's contribution has arrived; false on all threads, and reported, if one
  // does not or is not what this rank expects. One thread per peer waits.
  //
  // I3 (signal before read): the acquire orders the NIC's writes before what this thread does next,
  // the barrier in settle() before what the others do.
  //
  // Signals are compared for equality, and per epoch: a peer that is one exchange ahead writes to
  // the other word, and a word that is two behind is unequal, also where 32 bits wrap.
  ROCENANTE_DEVICE bool await() {
    const Lane arrivals = lane();
    Patience patience(args_);
    bool ok = true;
    ROCENANTE_ROLLED
    for (unsigned peer = thread(); peer < args_.layout.ranks; peer += threads()) {
      if (peer == args_.rank) continue;
      const uint64_t* const word = arrivals.signal(peer);
      for (;;) {
        const uint64_t signal =
            planted(Bug::signal_without_acquire) ? load_relaxed(word) : load_acquire(word);
        if (uint32_t(signal) == uint32_t(sequence_)) {
          ok &= check_fingerprint(args_, peer, uint32_t(signal >> 32));
          break;
        }
        if (patience.lasts()) continue;
        blame_missing(args_, peer);
        ok = false;
        break;
      }
    }
    if (planted(Bug::no_barrier_before_read)) return ok;
    return settle(ok);
  }

  // True if it went well on all threads; else false on all, after the report.
  ROCENANTE_DEVICE bool settle(bool ok) {
    if (!sync_or(!ok)) return true;
    if (thread() == 0) report(args_, index_, sequence_);
    return false;
  }

  ROCENANTE_DEVICE void close() {
    if (planted(Bug::sequence_not_advanced)) return;
    if (thread() == 0) store(&args_.state->sequence[index_], sequence_);
  }

 private:
  ROCENANTE_DEVICE Lane lane() const {
    const uint64_t epoch = planted(Bug::single_buffering) ? 0 : sequence_ & 1;
    if (planted(Bug::slot_stride_by_launch)) return Lane(args_, epoch * blocks() + index_);
    return Lane(args_, args_.layout.lane(epoch, index_));
  }

  const KernelArgs& args_;
  const unsigned index_;
  uint64_t sequence_;
};

}  // namespace rocenante::device
