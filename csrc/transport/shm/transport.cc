#include "transport/shm/transport.h"

#include <poll.h>
#include <signal.h>

#include <cstring>
#include <fstream>

#include "core/error.h"
#include "transport/shm/futex.h"

namespace rocenante::shm {

namespace {
// Bounds how late a sleeper notices what nobody wakes it for: a death, an abort, the deadline.
constexpr Milliseconds kNap{10};
}  // namespace

void ShmTransport::publish(const Publication& p) {
  WindowHeader& h = header();
  const uint64_t epoch = p.step & 1;
  if (p.call) h.calls[epoch] = *p.call;
  // I3: release, so that what was staged is seen by whoever sees the signal. Sequentially
  // consistent, so that either this rank sees a sleeper below, or the sleeper's last look sees the
  // signal.
  h.lines[epoch].signal.store(p.signal, std::memory_order_seq_cst);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    Bed& bed = header(r).collective_bed;
    if (bed.awaited.load(std::memory_order_seq_cst) == static_cast<uint32_t>(rank_) + 1)
      futex_wake_all(bed.word);
  }
}

void ShmTransport::sleep_for_signal(int peer, bool (*ready)(void*), void* context) {
  Bed& bed = header().collective_bed;
  const uint32_t word = bed.word.load(std::memory_order_acquire);
  bed.awaited.store(static_cast<uint32_t>(peer) + 1, std::memory_order_seq_cst);
  if (!ready(context)) futex_wait(bed.word, word, kNap);
  bed.awaited.store(0, std::memory_order_relaxed);
}

void ShmTransport::sleep_for_message(bool (*ready)(void*), void* context) {
  Bed& bed = header().point_to_point_bed;
  const uint32_t word = bed.word.load(std::memory_order_acquire);
  bed.awaited.fetch_add(1, std::memory_order_seq_cst);
  if (!ready(context)) futex_wait(bed.word, word, kNap);
  bed.awaited.fetch_sub(1, std::memory_order_relaxed);
}

void ShmTransport::wake_receiver(int peer) {
  Bed& bed = header(peer).point_to_point_bed;
  if (bed.awaited.load(std::memory_order_seq_cst) > 0) futex_wake_all(bed.word);
}

void ShmTransport::wake_self() {
  futex_wake_all(header().collective_bed.word);
  futex_wake_all(header().point_to_point_bed.word);
}

std::optional<Loss> ShmTransport::lost(int peer) {
  WindowHeader& h = header(peer);
  switch (h.state.load(std::memory_order_acquire)) {
    case WindowState::closed:
      return Loss{"it has left the group (destroy_process_group or close)", true};
    case WindowState::failed:
      return Loss{"it failed: " + std::string(h.reason, strnlen(h.reason, kReasonBytes))};
    default:
      break;
  }
  const Peer& p = peers_[static_cast<size_t>(peer)];
  pollfd end{p.pid_fd, POLLIN, 0};
  if (p.pid_fd >= 0 && poll(&end, 1, 0) == 1)
    return Loss{"its process (pid " + std::to_string(p.address.pid) +
                ") has ended: was it killed? see its log and the kernel's (dmesg)"};
  return std::nullopt;
}

std::string ShmTransport::about(int peer) {
  const int pid = peers_[static_cast<size_t>(peer)].address.pid;
  const std::string text = "pid " + std::to_string(pid);
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  const size_t name_end = line.rfind(") ");
  const char state = name_end == std::string::npos ? '?' : line[name_end + 2];
  if (state == 'T' || state == 't') return text + ", stopped: send it SIGCONT";
  if (state == 'Z' || state == 'X' || state == '?') return text + ", ended";
  return text + ", alive";
}

uint64_t ShmTransport::operations_of(int peer) {
  return header(peer).operations.load(std::memory_order_relaxed);
}

void ShmTransport::count_operation(uint64_t operation) {
  header().operations.store(operation, std::memory_order_relaxed);
}

void ShmTransport::push_fragment(int peer, uint64_t number, const Fragment& f,
                                 const void* payload) {
  char* at = peers_[static_cast<size_t>(peer)].window->data() + layout_.fragment(rank_, number);
  Fragment& slot = *reinterpret_cast<Fragment*>(at);
  slot.message_bytes = f.message_bytes;
  slot.bytes = f.bytes;
  slot.tag = f.tag;
  slot.dtype = f.dtype;
  slot.first = f.first;
  std::memcpy(slot.payload, payload, f.bytes);
  slot.number.store(number, std::memory_order_seq_cst);  // as in publish()
  wake_receiver(peer);
}

const Fragment& ShmTransport::fragment_from(int peer, uint64_t number) {
  return *reinterpret_cast<const Fragment*>(mine_->data() + layout_.fragment(peer, number));
}

void ShmTransport::push_credit(int peer, uint64_t consumed) {
  header(peer).credits[rank_].consumed.store(consumed, std::memory_order_seq_cst);
  wake_receiver(peer);
}

const std::atomic<uint64_t>& ShmTransport::credit_from(int peer) {
  return header().credits[peer].consumed;
}

void ShmTransport::leave(const std::string& reason) {
  WindowHeader& h = header();
  WindowState expected = WindowState::open;
  if (!reason.empty()) {
    if (h.state.load() != WindowState::open) return;
    const size_t n = std::min(reason.size(), kReasonBytes - 1);
    std::memcpy(h.reason, reason.data(), n);
    h.reason[n] = 0;
  }
  if (!h.state.compare_exchange_strong(expected,
                                       reason.empty() ? WindowState::closed : WindowState::failed))
    return;
  for (int r = 0; r < size_; ++r)
    if (r != rank_) {
      futex_wake_all(header(r).collective_bed.word);
      futex_wake_all(header(r).point_to_point_bed.word);
    }
}

}  // namespace rocenante::shm
