#include "transport/shm/transport.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <new>

#include "core/error.h"
#include "transport/shm/futex.h"

namespace rocenante::shm {

namespace {
// Bounds how late a sleeper notices what nobody wakes it for: a death, an abort, the deadline.
constexpr uint64_t kNap = 10'000'000;
// Nobody wakes a rank for what a peer elsewhere pushes: its sleep must be short beside its wait.
uint64_t nap_for_pushed(uint64_t waited) {
  return std::clamp<uint64_t>(waited / 8, 50'000, 1'000'000);
}
}  // namespace

ShmTransport::ShmTransport(const Group& group)
    : group_(group),
      rank_(group.rank),
      size_(group.size()),
      layout_(group.layout()),
      mine_(Memory::create(layout_.bytes())),
      peers_(static_cast<size_t>(size_)) {
  pushes_ = group.any_pushed;
  WindowHeader& h = *new (mine_->data()) WindowHeader;
  h.magic = kWindowMagic;
  h.generation = group.generation;
  h.bytes = layout_.bytes();
  h.rank = static_cast<uint32_t>(rank_);
  h.size = static_cast<uint32_t>(size_);
  h.notice.state.store(WindowState::open, std::memory_order_release);
  show(rank_, mine_->data());
}

ShmTransport::~ShmTransport() {
  for (Peer& p : peers_)
    if (p.pid_fd >= 0) close(p.pid_fd);
}

Address ShmTransport::address() {
  Address a;
  a.fd = mine_->fd();
  a.window_bytes = layout_.bytes();
  return a;
}

void ShmTransport::attach(int peer, const Address& theirs) {
  const int pid = group_.hello(peer).pid;
  Peer& p = peers_[static_cast<size_t>(peer)];
  p.window = Memory::attach(pid, theirs.fd, theirs.window_bytes);
  const WindowHeader& h = header(peer);
  if (h.magic != kWindowMagic || h.generation != group_.generation || h.bytes != layout_.bytes())
    throw Error(ErrorKind::system,
                "the window of rank " + std::to_string(peer) + " is not the one it announced");
  // pidfd_open by number: glibc 2.36 has no wrapper on every architecture.
  if (pid != getpid()) p.pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  show(peer, p.window->data());
}

void ShmTransport::open() { mine_->close_fd(); }

void ShmTransport::show(int peer, char* window) {
  for (uint64_t epoch : {0u, 1u}) {
    views_[peer].line[epoch] = &reinterpret_cast<WindowHeader*>(window)->lines[epoch];
    views_[peer].slot[epoch] = window + layout_.slot(epoch);
  }
}

void ShmTransport::publish(const Publication& p) {
  WindowHeader& h = header();
  const uint64_t epoch = p.step & 1;
  if (p.call) h.notice.calls[epoch] = *p.call;
  // I3: release, so that what was staged is seen by whoever sees the signal. Sequentially
  // consistent, so that either this rank sees a sleeper below, or the sleeper's last look sees the
  // signal.
  h.lines[epoch].signal.store(p.signal, std::memory_order_seq_cst);
  for (int r = 0; r < size_; ++r) {
    if (!mapped(r)) continue;
    Bed& bed = header(r).collective_bed;
    if (bed.awaited.load(std::memory_order_seq_cst) == static_cast<uint32_t>(rank_) + 1)
      futex_wake_all(bed.word);
  }
}

void ShmTransport::sleep_for_signal(int peer, uint64_t waited, bool (*ready)(void*),
                                    void* context) {
  Bed& bed = header().collective_bed;
  const uint32_t word = bed.word.load(std::memory_order_acquire);
  bed.awaited.store(static_cast<uint32_t>(peer) + 1, std::memory_order_seq_cst);
  if (!ready(context)) futex_wait(bed.word, word, pushed(peer) ? nap_for_pushed(waited) : kNap);
  bed.awaited.store(0, std::memory_order_relaxed);
}

void ShmTransport::sleep_for_message(uint64_t waited, bool (*ready)(void*), void* context) {
  Bed& bed = header().point_to_point_bed;
  const uint32_t word = bed.word.load(std::memory_order_acquire);
  bed.awaited.fetch_add(1, std::memory_order_seq_cst);
  if (!ready(context))
    futex_wait(bed.word, word, group_.any_pushed ? nap_for_pushed(waited) : kNap);
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

std::optional<Loss> ShmTransport::end_in(const Notice& notice) {
  switch (notice.state.load(std::memory_order_acquire)) {
    case WindowState::closed:
      return Loss{"it has left the group (destroy_process_group or close)", true};
    case WindowState::failed:
      return Loss{"it failed: " + std::string(notice.reason, strnlen(notice.reason, kReasonBytes))};
    default:
      return std::nullopt;
  }
}

std::optional<Loss> ShmTransport::lost(int peer) {
  if (auto end = end_in(header(peer).notice)) return end;
  pollfd end{peers_[static_cast<size_t>(peer)].pid_fd, POLLIN, 0};
  if (end.fd >= 0 && poll(&end, 1, 0) == 1)
    return Loss{"its process (pid " + std::to_string(group_.hello(peer).pid) +
                ") has ended: was it killed? see its log and the kernel's (dmesg)"};
  return std::nullopt;
}

std::string ShmTransport::about(int peer) {
  const int pid = group_.hello(peer).pid;
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

std::optional<CallRecord> ShmTransport::call_of(int peer, uint64_t epoch) {
  return (peer == rank_ ? header() : header(peer)).notice.calls[epoch];
}

std::optional<uint64_t> ShmTransport::operations_of(int peer) {
  return header(peer).notice.operations.load(std::memory_order_relaxed);
}

void ShmTransport::count_operation(uint64_t operation) {
  header().notice.operations.store(operation, std::memory_order_relaxed);
}

bool ShmTransport::has_processor_each() const {
  int ranks = 0;
  std::string all;
  for (const Hello& h : group_.hellos) {
    if (h.machine != group_.hello(rank_).machine) continue;
    ++ranks;
    all.resize(std::max(all.size(), h.processors.size()));
    for (size_t i = 0; i < h.processors.size(); ++i) all[i] |= h.processors[i];
  }
  int processors = 0;
  for (const char byte : all) processors += std::popcount(static_cast<unsigned char>(byte));
  return ranks <= processors;
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
  if (f.bytes > 0) std::memcpy(slot.payload, payload, f.bytes);
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

void ShmTransport::push_region(int peer, const RegionWrite& w) {
  char* const from = region() + w.from;
  char* const theirs = peers_[static_cast<size_t>(peer)].window->data() + layout_.region();
  const auto word = [](char* p) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(p));
  };
  if (w.signal) {
    if (w.bytes > 0) std::memcpy(theirs + w.to, from, w.bytes);
    word(theirs + w.signal_to).store(*w.signal, std::memory_order_release);
    return;
  }
  // Release: whoever sees a word may take it that its source has been read.
  for (size_t at = 0; at < w.bytes; at += sizeof(uint64_t))
    word(theirs + w.to + at)
        .store(*reinterpret_cast<const uint64_t*>(from + at), std::memory_order_release);
}

bool ShmTransport::end(const std::string& reason) {
  Notice& notice = header().notice;
  WindowState expected = WindowState::open;
  if (!reason.empty()) {
    if (notice.state.load() != WindowState::open) return false;
    const size_t n = std::min(reason.size(), kReasonBytes - 1);
    std::memcpy(notice.reason, reason.data(), n);
    notice.reason[n] = 0;
  }
  if (!notice.state.compare_exchange_strong(
          expected, reason.empty() ? WindowState::closed : WindowState::failed))
    return false;
  for (int r = 0; r < size_; ++r)
    if (mapped(r) && peers_[static_cast<size_t>(r)].window) {
      futex_wake_all(header(r).collective_bed.word);
      futex_wake_all(header(r).point_to_point_bed.word);
    }
  return true;
}

}  // namespace rocenante::shm
