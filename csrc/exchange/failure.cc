// How an exchange fails: once, for good, and saying who, what and what to check (I6).
#include <algorithm>
#include <thread>

#include "exchange/exchange.h"

namespace rocenante {

namespace {
constexpr Milliseconds kMismatchPatience{2000};
}  // namespace

std::string Exchange::who() const {
  return "rocenante[" + name_ + "] rank " + std::to_string(rank_) + ": " + describe(call_);
}

void Exchange::throw_if_failed() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(failure_mutex_);
  throw Error(ErrorKind::aborted, "rocenante[" + name_ + "] rank " + std::to_string(rank_) +
                                      ": this communicator can no longer be used: " + failure_);
}

std::string Exchange::failure() const {
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

void Exchange::fail(ErrorKind kind, const std::string& what) {
  {
    std::lock_guard lock(failure_mutex_);
    if (failure_.empty()) {
      failure_ = what;
      transport_.leave(what);
    }
    failed_.store(true, std::memory_order_release);
  }
  throw Error(kind, what);
}

void Exchange::raise(ErrorKind kind, const std::string& why) { fail(kind, who() + ": " + why); }

void Exchange::abort(const std::string& reason) {
  {
    std::lock_guard lock(failure_mutex_);
    if (failure_.empty()) {
      failure_ = "aborted: " + reason;
      transport_.leave(failure_);
    }
    failed_.store(true, std::memory_order_release);
  }
  transport_.wake_self();
}

void Exchange::close() {
  std::lock_guard lock(failure_mutex_);
  if (!failure_.empty()) return;
  failure_ = "it was closed";
  transport_.leave("");
  failed_.store(true, std::memory_order_release);
}

std::string Exchange::missing(uint64_t step) const {
  std::string text;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || arrived(r, step)) continue;
    const auto theirs = transport_.operations_of(r);
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(r) + " (" + transport_.about(r);
    if (theirs && *theirs == 0)
      text += ", has called nothing yet";
    else if (theirs && *theirs < call_.operation)
      text += ", has come as far as operation #" + std::to_string(*theirs);
    text += ")";
  }
  return text;
}

void Exchange::raise_timeout(uint64_t step) {
  fail(ErrorKind::timeout,
       who() + ": Timed out after " + std::to_string(deadline_.budget().count()) +
           " ms waiting for " + missing(step) +
           ". Check that all ranks make the same calls in the same order, and that the late ones "
           "are "
           "not stopped or busy elsewhere; if they are only slow, raise the timeout");
}

// All ranks find out in the same step, since each sees the signals of all others in it; those that
// have not published yet get a moment, so that the message can name every rank's call.
void Exchange::raise_mismatch(uint64_t step) {
  const Deadline patience(std::min(kMismatchPatience, deadline_.left()));
  for (int r = 0; r < size_; ++r)
    while (r != rank_ && !arrived(r, step) && !patience.passed())
      std::this_thread::sleep_for(Milliseconds(1));
  std::string calls;
  for (int r = 0; r < size_; ++r) {
    calls += "\n  rank " + std::to_string(r) + ": ";
    if (r != rank_ && !arrived(r, step)) {
      calls += "nothing yet";
      continue;
    }
    const auto call = transport_.call_of(r, step & 1);
    calls += call ? describe(*call) : "not known: it no longer answers";
  }
  fail(ErrorKind::mismatch,
       "rocenante[" + name_ + "] rank " + std::to_string(rank_) +
           ": ranks made different calls:" + calls +
           "\nAll ranks must call the same collectives in the same order, with "
           "the same dtype, size, operator and root");
}

}  // namespace rocenante
