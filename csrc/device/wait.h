// Waiting in a kernel, and what happens when it is in vain.
#pragma once

#include "device/args.h"
#include "device/dialect.h"
#include "device/planted.h"

namespace rocenante::device {

// One thread's patience in one exchange.
class Patience {
 public:
  ROCENANTE_DEVICE explicit Patience(const KernelArgs& args) : args_(args) {}

  // False once there is no point in asking again. I6: every wait is bounded by elapsed time; polls
  // are counted only to look at the clock and at host memory less often than at what is awaited.
  ROCENANTE_DEVICE bool lasts() {
    if (spent_) return false;
    if (++polls_ % polls_per_look() != 0) return true;
    pause();
    const uint64_t now = nanoseconds();
    if (begin_ == 0) begin_ = now;
    if (load_relaxed(&args_.control->abort) != 0 && !planted(Bug::abort_unchecked)) {
      give_up(kAborted);
    } else if (now - begin_ >= args_.timeout && !planted(Bug::timeout_unchecked)) {
      give_up(kTimedOut);
    } else if (load_relaxed(&args_.state->failure) != 0) {
      spent_ = true;  // another thread found a reason
    }
    return !spent_;
  }

 private:
  ROCENANTE_DEVICE void give_up(Failure reason) {
    fetch_or(&args_.state->failure, reason);
    spent_ = true;
  }

  const KernelArgs& args_;
  uint64_t begin_ = 0;
  unsigned polls_ = 0;
  bool spent_ = false;
};

ROCENANTE_DEVICE void blame_missing(const KernelArgs& args, unsigned peer) {
  if (planted(Bug::wrong_peer_blamed)) peer = (peer + 1) % args.layout.ranks;
  fetch_or(&args.state->missing, uint64_t{1} << peer);
}

ROCENANTE_DEVICE void blame_mismatched(const KernelArgs& args, unsigned peer) {
  fetch_or(&args.state->mismatched, uint64_t{1} << peer);
  fetch_or(&args.state->failure, kMismatched);
}

// I5: what arrived belongs to the call that this rank makes.
ROCENANTE_DEVICE bool check_fingerprint(const KernelArgs& args, unsigned peer,
                                        uint32_t fingerprint) {
  if (fingerprint == args.fingerprint || planted(Bug::fingerprint_unchecked)) return true;
  blame_mismatched(args, peer);
  return false;
}

// Tells the host, once per communicator. Called by one thread of a block whose threads have all
// blamed whom they had to, so that at least this block's peers are complete.
ROCENANTE_DEVICE void report(const KernelArgs& args, unsigned channel, uint64_t sequence) {
  const uint64_t failure = fetch_or(&args.state->failure, kReported);
  if (failure & kReported) return;
  ErrorRecord* const record = &args.control->record;
  store(&record->sequence, sequence);
  store(&record->channel, uint64_t{channel});
  store(&record->missing, load_relaxed(&args.state->missing));
  store(&record->mismatched, load_relaxed(&args.state->mismatched));
  store_release(&record->failure, failure);
}

}  // namespace rocenante::device
