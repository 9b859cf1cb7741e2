#include "device/proxy.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <exception>

#include "core/clock.h"
#include "core/pause.h"
#include "device/planted.h"
#include "transport/shm/futex.h"

namespace rocenante::device {

namespace {

// How long it stays awake when there is nothing to do: longer than the time between two exchanges
// of a model's layers.
constexpr uint64_t kAwake = 2'000'000;
constexpr uint64_t kShortestNap = 50'000;
constexpr uint64_t kNapAfterFailure = 100'000'000;  // stop() ends it
// Between looks at the health of a peer that is missed.
constexpr uint64_t kHealth = 10'000'000;

uint64_t load(const uint64_t& word, std::memory_order order = std::memory_order_acquire) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(order);
}

void pin(std::thread& thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(cpu), &set);
  if (const int error = pthread_setaffinity_np(thread.native_handle(), sizeof set, &set))
    throw Error(ErrorKind::config,
                with_errno("the proxy thread cannot run on processor " + std::to_string(cpu) +
                               " (ROCENANTE_PROXY_CPU): see which this process may use with "
                               "taskset -p or in the container's cpuset",
                           error));
}

}  // namespace

Proxy::Proxy(Transport& transport, const WindowLayout& layout, Control& control, int rank,
             std::string name, int cpu)
    : transport_(transport),
      layout_(layout),
      control_(control),
      rank_(static_cast<unsigned>(rank)),
      name_(std::move(name)),
      peers_(((layout.ranks < 64 ? uint64_t{1} << layout.ranks : 0) - 1) & ~(uint64_t{1} << rank)),
      spins_per_yield_(transport.has_processor_each() ? 64 : 1),
      thread_([this] { work(); }) {
  pthread_setname_np(thread_.native_handle(), "rocenante-proxy");
  try {
    if (cpu >= 0) pin(thread_, cpu);
  } catch (...) {
    stop();
    throw;
  }
}

Proxy::~Proxy() { stop(); }

void Proxy::wake() { shm::futex_wake_all(bed_); }

std::optional<Proxy::Failure> Proxy::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Proxy::fail(ErrorKind kind, const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = {kind, "rocenante[" + name_ + "] rank " + std::to_string(rank_) + ": " + what};
  failed_.store(true, std::memory_order_release);
  if (!planted(HostBug::kernels_not_aborted))
    std::atomic_ref<uint64_t>(control_.abort).store(1, std::memory_order_release);
  if (!has_left_ && !planted(HostBug::peers_not_told)) transport_.leave(failure_->what);
  has_left_ = true;
}

void Proxy::abort(const std::string& reason) { fail(ErrorKind::aborted, "aborted: " + reason); }

void Proxy::stop() {
  stopping_.store(true, std::memory_order_release);
  wake();
  if (thread_.joinable()) thread_.join();
  std::atomic_ref<uint64_t>(control_.abort).store(1, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  if (!has_left_) transport_.leave("");
  has_left_ = true;
}

void Proxy::work() {
  try {
    run();
  } catch (const std::exception& e) {  // such as a lack of memory for a message
    fail(ErrorKind::system, std::string("the proxy has failed: ") + e.what());
  }
}

void Proxy::run() {
  uint64_t quiet_since = nanoseconds(), looked = quiet_since;
  for (unsigned spins = 1;; ++spins) {
    // Both before the bells: what was rung before stop() is answered, and a wake() from here on
    // cuts the nap short.
    const bool last = stopping_.load(std::memory_order_acquire);
    const uint32_t bed = bed_.load(std::memory_order_acquire);
    bool news = false;
    if (last && planted(HostBug::no_last_look)) return;
    if (!failed_.load(std::memory_order_acquire) || planted(HostBug::sends_after_failure)) {
      news = answer_bells();
      news |= see_arrivals();
      read_record();
    }
    if (last) return;
    const uint64_t now = nanoseconds();
    if (news) quiet_since = looked = now;
    const uint64_t quiet = now - quiet_since;
    if (failed_.load(std::memory_order_acquire)) {
      shm::futex_wait(bed_, bed, kNapAfterFailure);
      continue;
    }
    if (is_waiting() && !planted(HostBug::lost_peers_unseen) && now - looked >= kHealth) {
      looked = now;
      look_for_lost_peers();
    }
    if (quiet >= kAwake && !planted(HostBug::never_naps)) {
      shm::futex_wait(bed_, bed, std::clamp(quiet / 8, kShortestNap, kLongestNap));
      if (bed_.load(std::memory_order_relaxed) != bed) quiet_since = nanoseconds();  // woken
    } else if (spins % spins_per_yield_ == 0) {
      sched_yield();
    } else {
      pause();
    }
  }
}

bool Proxy::answer_bells() {
  bool any = false;
  for (unsigned channel = 0; channel < layout_.channels; ++channel) {
    Line& line = lines_[channel];
    for (;;) {
      const Bell& bell = control_.bells[channel][line.next & 1];
      // I3: acquire, so that what was staged has been seen before it is sent.
      const uint64_t signal =
          load(bell.signal, planted(HostBug::bell_without_acquire) ? std::memory_order_relaxed
                                                                   : std::memory_order_acquire);
      if (uint32_t(signal) != uint32_t(line.next)) break;
      send(channel, line.next, bell.request, signal);
      ++line.next;
      line.missing = peers_;
      any = true;
    }
  }
  return any;
}

void Proxy::send(unsigned channel, uint64_t sequence, uint64_t request, uint64_t signal) {
  const auto payload = static_cast<Payload>(request >> Bell::kPayloadShift);
  const uint64_t lane = layout_.lane(sequence & 1, channel);
  const bool words = payload == Payload::lines;
  lines_[channel].words = words;
  RegionWrite write;
  write.bytes = request & ((uint64_t{1} << Bell::kPayloadShift) - 1);
  write.to = words ? layout_.received_lines(lane, rank_) : layout_.received(lane, rank_);
  write.signal_to = layout_.signal(lane, rank_);
  if (!words) write.signal = signal;
  // Starting behind this rank spreads the senders over the receivers.
  const unsigned end = layout_.ranks - (planted(HostBug::one_peer_forgotten) ? 1 : 0);
  for (unsigned step = 1; step < end; ++step) {
    const unsigned peer = (rank_ + step) % layout_.ranks;
    write.from = words ? layout_.sent_lines(lane)
                       : layout_.sent(lane, payload == Payload::per_peer ? peer : 0);
    transport_.push_region(static_cast<int>(peer), write);
  }
}

bool Proxy::has_arrived(unsigned channel, const Line& line, unsigned peer) const {
  const uint64_t sequence = line.next - 1;
  const uint64_t lane = layout_.lane(sequence & 1, channel);
  const uint64_t at = line.words ? layout_.received_lines(lane, peer) : layout_.signal(lane, peer);
  const uint64_t word = load(*reinterpret_cast<const uint64_t*>(transport_.region() + at));
  return uint32_t(line.words ? word >> 32 : word) == uint32_t(sequence);
}

bool Proxy::see_arrivals() {
  bool any = false;
  for (unsigned channel = 0; channel < layout_.channels; ++channel) {
    Line& line = lines_[channel];
    for (uint64_t left = line.missing; left != 0; left &= left - 1) {
      const auto peer = static_cast<unsigned>(std::countr_zero(left));
      if (!has_arrived(channel, line, peer)) continue;
      line.missing &= ~(uint64_t{1} << peer);
      any = true;
    }
  }
  return any;
}

bool Proxy::is_waiting() const {
  return std::any_of(lines_, lines_ + layout_.channels,
                     [](const Line& line) { return line.missing != 0; });
}

// Invariant I6: an end is told once, and says who, which exchange and why.
void Proxy::look_for_lost_peers() {
  for (unsigned channel = 0; channel < layout_.channels; ++channel) {
    const Line& line = lines_[channel];
    for (uint64_t left = line.missing; left != 0; left &= left - 1) {
      const auto peer = static_cast<unsigned>(std::countr_zero(left));
      const auto loss = transport_.lost(static_cast<int>(peer));
      // What it sent before its end counts.
      if (!loss || has_arrived(channel, line, peer)) continue;
      return fail(ErrorKind::peer_lost, exchange_name(line.next - 1, channel) +
                                            " cannot complete: rank " + std::to_string(peer) +
                                            " is lost: " + loss->why);
    }
  }
}

void Proxy::read_record() {
  const ErrorRecord& record = control_.record;
  const uint64_t failure = load(record.failure);
  if (failure == 0 || planted(HostBug::record_unread)) return;
  const std::string which = exchange_name(record.sequence, static_cast<unsigned>(record.channel));
  if (failure & kMismatched)
    return fail(ErrorKind::mismatch,
                which + ": " + list(record.mismatched, false) +
                    " made another call than this rank. All ranks must call the same collectives "
                    "in the same order, with the same dtype, size, operator and root");
  if (failure & kTimedOut)
    return fail(ErrorKind::timeout,
                which + ": Timed out waiting for " + list(record.missing, true) +
                    ". Check that all ranks make the same calls in the same order, and that the "
                    "late ones are not stopped or busy elsewhere");
  fail(ErrorKind::aborted, which + " was aborted");
}

std::string Proxy::exchange_name(uint64_t sequence, unsigned channel) const {
  return "exchange #" + std::to_string(sequence) + " of GPU channel " + std::to_string(channel);
}

std::string Proxy::list(uint64_t ranks, bool with_health) {
  std::string text;
  for (uint64_t left = ranks & peers_; left != 0; left &= left - 1) {
    const int peer = std::countr_zero(left);
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(peer);
    if (with_health) text += " (" + transport_.about(peer) + ")";
  }
  return text;
}

}  // namespace rocenante::device
