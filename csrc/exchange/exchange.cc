#include "exchange/exchange.h"

#include <sched.h>

#include <utility>

#include "core/pause.h"
#include "exchange/digest.h"
#include "exchange/signal.h"

namespace rocenante {

namespace {

// With a processor for each rank a peer is running and about to publish: spinning is the fastest.
// With fewer, whoever spins keeps the peer that it waits for from running.
constexpr int kSpinsOfOwnProcessor = 2000, kSpinsOfShared = 8;
constexpr int kYields = 100;
constexpr int kYieldsPerLookAtClock = 10;  // which is a system call on some machines
constexpr uint64_t kYieldNanoseconds = 500'000;
// Nobody wakes a rank that sleeps for a peer of another host.
constexpr uint64_t kYieldForPushed = 4'000'000;
// More than enough for the rest of a cache line to become visible.
constexpr uint64_t kLandingNanoseconds = 1'000'000;
constexpr uint64_t kHealthNanoseconds = 10'000'000;  // between looks at a late peer's health

}  // namespace

Exchange::Exchange(Transport& transport, int rank, int size, std::string name)
    : transport_(transport),
      rank_(rank),
      size_(size),
      name_(std::move(name)),
      spins_(transport.has_processor_each() ? kSpinsOfOwnProcessor : kSpinsOfShared) {}

void Exchange::begin(CallRecord call, Milliseconds timeout) {
  throw_if_failed();
  call.operation = operations_.load(std::memory_order_relaxed) + 1;
  operations_.store(call.operation, std::memory_order_relaxed);
  transport_.count_operation(call.operation);
  call_ = call;
  previous_fingerprint_ = std::exchange(fingerprint_, fingerprint(call));
  first_step_ = true;
  deadline_ = Deadline(timeout);
}

char* Exchange::open(size_t bytes) {
  // I1: see every peer's signal of the last step before this rank may overwrite the slot of the one
  // before it. After a step in which it awaited all there is nothing to wait for.
  if (!seen_all_)
    for (int r = 0; r < size_; ++r)
      if (r != rank_) await_signal(r, step_);
  ++step_;
  seen_all_ = false;
  step_bytes_ = bytes;
  inline_ = bytes <= kInlineBytes;
  return inline_ ? transport_.inline_data(step_ & 1) : transport_.slot(step_ & 1);
}

void Exchange::publish(const Parts& parts) {
  transport_.publish({step_, signal_of(fingerprint_, step_),
                      std::exchange(first_step_, false) ? &call_ : nullptr, inline_, step_bytes_,
                      parts});
}

bool Exchange::arrived(int peer, uint64_t step) const {
  // I3: acquire pairs with the publisher's release. Sequentially consistent for sleep(); it costs a
  // load nothing on x86 and Arm.
  const SignalLine& line = *transport_.view(peer).line[step & 1];
  return rocenante::arrived(line, line.signal.load(std::memory_order_seq_cst), step);
}

const char* Exchange::await(int peer) {
  if (peer != rank_) await_signal(peer, step_);
  const PeerView& view = transport_.view(peer);
  const uint64_t epoch = step_ & 1;
  return inline_ ? view.line[epoch]->data : view.slot[epoch];
}

void Exchange::await_all() {
  // Starting behind this rank spreads the readers over the publishers' lines.
  for (int k = 1; k < size_; ++k) await_signal((rank_ + k) % size_, step_);
  seen_all_ = true;
}

void Exchange::await_signal(int peer, uint64_t step) {
  const SignalLine& line = *transport_.view(peer).line[step & 1];
  uint64_t signal = line.signal.load(std::memory_order_acquire);
  for (int i = 0; !rocenante::arrived(line, signal, step); ++i) {
    if (i < spins_) {
      pause();
    } else {
      wait_slowly(peer, step);
    }
    signal = line.signal.load(std::memory_order_acquire);
  }
  // I5. Before its first step an operation looks at signals of the operation before it.
  const uint32_t expected = first_step_ ? previous_fingerprint_ : fingerprint_;
  if (static_cast<uint32_t>(signal >> 32) != expected) settle(peer, step, expected);
}

// The signal is there, but is not the plain fingerprint: the contribution lies in its line, pushed
// together with it, and may not be visible yet (digest.h); or the peer makes another call.
void Exchange::settle(int peer, uint64_t step, uint32_t expected) {
  const PeerView& view = transport_.view(peer);
  const SignalLine& line = *view.line[step & 1];
  const auto high = static_cast<uint32_t>(line.signal.load(std::memory_order_acquire) >> 32);
  if (view.pushed && inline_) {
    const auto landed = [&] { return (digest(line.data, step_bytes_) ^ high) == expected; };
    if (landed()) return;
    for (const uint64_t start = nanoseconds(); nanoseconds() - start < kLandingNanoseconds;) {
      static_cast<void>(line.signal.load(std::memory_order_acquire));  // look at memory again
      if (landed()) return;
    }
  }
  raise_mismatch(step);
}

// Yields, then sleeps until the peer's signal is there, the peer is lost, this rank is told to
// abort, or the time is over (I6). The peer's signal is looked at once more after it was found
// lost: what it published before its end counts.
void Exchange::wait_slowly(int peer, uint64_t step) {
  struct Context {
    const Exchange* self;
    int peer;
    uint64_t step;
  } context{this, peer, step};
  const auto ready = [](void* p) {
    const auto& c = *static_cast<Context*>(p);
    return c.self->arrived(c.peer, c.step) || c.self->failed_.load(std::memory_order_relaxed);
  };
  const uint64_t start = nanoseconds();
  const bool pushed = transport_.view(peer).pushed;
  const uint64_t patience = pushed ? kYieldForPushed : kYieldNanoseconds;
  for (int i = 1; pushed || i <= kYields; ++i) {
    if (arrived(peer, step)) return;
    sched_yield();
    if (i % kYieldsPerLookAtClock == 0 && nanoseconds() - start >= patience) break;
  }
  uint64_t looked = start;
  for (;;) {
    if (arrived(peer, step)) return;
    if (failed_.load(std::memory_order_acquire)) throw_if_failed();
    const uint64_t now = nanoseconds();
    if (now - looked >= kHealthNanoseconds) {
      looked = now;
      const auto lost = transport_.lost(peer);
      if (lost && !arrived(peer, step))
        fail(ErrorKind::peer_lost,
             who() + " cannot complete: rank " + std::to_string(peer) + " is lost: " + lost->why);
      if (deadline_.passed() && !arrived(peer, step)) raise_timeout(step);
    }
    transport_.sleep_for_signal(peer, now - start, ready, &context);
  }
}

}  // namespace rocenante
