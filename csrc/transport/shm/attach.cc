// How the ranks of one host meet: publish an address, map each peer's window, and be sure that the
// peer has mapped ours before the first signal is stored.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "transport/shm/transport.h"

namespace rocenante::shm {

namespace {

std::string key(int rank) { return "rank/" + std::to_string(rank); }

std::string hostname() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

uint64_t random_nonce() {
  uint64_t nonce = 0;
  while (nonce == 0)
    if (getrandom(&nonce, sizeof nonce, 0) < 0 && errno != EINTR)
      throw Error(ErrorKind::system, with_errno("getrandom", errno));
  return nonce;
}

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

ShmTransport::ShmTransport(Bootstrap& bootstrap, int rank, int size, size_t slot_bytes,
                           std::vector<std::pair<std::string, std::string>> config,
                           Milliseconds timeout)
    : rank_(rank), size_(size), layout_(size, slot_bytes), peers_(static_cast<size_t>(size)) {
  address_.config = std::move(config);
  make_window();
  attach_all(bootstrap, timeout);
  mine_->close_fd();
  for (int r = 0; r < size_; ++r)
    for (uint64_t epoch : {0u, 1u}) {
      char* base = peers_[static_cast<size_t>(r)].window->data();
      views_[r].line[epoch] = &reinterpret_cast<WindowHeader*>(base)->lines[epoch];
      views_[r].slot[epoch] = base + layout_.slot(epoch);
    }
}

ShmTransport::~ShmTransport() {
  for (Peer& p : peers_)
    if (p.pid_fd >= 0) close(p.pid_fd);
}

void ShmTransport::make_window() {
  mine_ = Memory::create(layout_.bytes());
  WindowHeader& h = *new (mine_->data()) WindowHeader;
  h.magic = kWindowMagic;
  h.nonce = random_nonce();
  h.bytes = layout_.bytes();
  h.rank = static_cast<uint32_t>(rank_);
  h.size = static_cast<uint32_t>(size_);
  h.state.store(WindowState::open, std::memory_order_release);
  address_.rank = h.rank;
  address_.size = h.size;
  address_.pid = getpid();
  address_.fd = mine_->fd();
  address_.nonce = h.nonce;
  address_.window_bytes = h.bytes;
  address_.host = host_identity();
  address_.hostname = hostname();
}

void ShmTransport::check_config(const Address& theirs) const {
  for (size_t i = 0; i < address_.config.size() && i < theirs.config.size(); ++i) {
    const auto& [name, mine] = address_.config[i];
    if (theirs.config[i].second != mine)
      throw Error(ErrorKind::config, name + " is \"" + theirs.config[i].second + "\" on rank " +
                                         std::to_string(theirs.rank) + " but \"" + mine +
                                         "\" on rank " + std::to_string(rank_) +
                                         ": set it alike on all ranks");
  }
}

// True once this rank has mapped the window that `peer` last announced. The store may still hold
// what an earlier group of the same name left there: such a window is gone, closed or of another
// nonce, and the next look finds the new one.
bool ShmTransport::try_attach(Bootstrap& bootstrap, int peer) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  if (!bootstrap.check(key(peer))) return false;
  Address a = decode(bootstrap.get(key(peer)));
  if (p.window && a.nonce == p.address.nonce) return true;
  if (a.rank != static_cast<uint32_t>(peer) || a.size != static_cast<uint32_t>(size_)) {
    p.last_problem = "it announced rank " + std::to_string(a.rank) + " of " +
                     std::to_string(a.size) + " instead of " + std::to_string(peer) + " of " +
                     std::to_string(size_);
    return false;
  }
  if (a.host != address_.host)
    throw Error(ErrorKind::system,
                "rank " + std::to_string(rank_) + " (" + address_.hostname + ") and rank " +
                    std::to_string(peer) + " (" + a.hostname +
                    ") do not share a host (or run in containers with process ids of their own), "
                    "and shared memory is the only transport built in");
  check_config(a);
  try {
    auto window = Memory::attach(a.pid, a.fd, a.window_bytes);
    auto& h = *reinterpret_cast<WindowHeader*>(window->data());
    if (h.magic != kWindowMagic || h.nonce != a.nonce ||
        h.state.load(std::memory_order_acquire) != WindowState::open) {
      p.last_problem = "its window is closed or not the one it announced";
      return false;
    }
    // pidfd_open by number: glibc 2.36 has no wrapper on every architecture.
    const int pid_fd = a.pid == getpid() ? -1 : static_cast<int>(syscall(SYS_pidfd_open, a.pid, 0));
    if (p.pid_fd >= 0) close(p.pid_fd);
    p.pid_fd = pid_fd;
    p.window = std::move(window);
    p.address = std::move(a);
  } catch (const Error& e) {
    p.last_problem = e.what();
    return false;
  }
  header(peer).attached[rank_].store(address_.nonce, std::memory_order_release);
  return true;
}

void ShmTransport::attach_all(Bootstrap& bootstrap, Milliseconds timeout) {
  const Deadline deadline(timeout);
  bootstrap.set(key(rank_), encode(address_));
  Peer& self = peers_[static_cast<size_t>(rank_)];
  self.address = address_;
  self.window = mine_;
  Milliseconds nap{1};
  for (;;) {
    bool all = true;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const auto& p = peers_[static_cast<size_t>(r)];
      const bool met =
          p.window && header().attached[r].load(std::memory_order_acquire) == p.address.nonce;
      if (!met) {
        try_attach(bootstrap, r);
        all = false;
      }
    }
    if (all) return;
    if (deadline.passed()) raise_missing(deadline);
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, Milliseconds(20));
  }
}

void ShmTransport::raise_missing(const Deadline& deadline) {
  std::vector<int> missing;
  std::string problems;
  for (int r = 0; r < size_; ++r) {
    const auto& p = peers_[static_cast<size_t>(r)];
    if (r == rank_ || (p.window && header().attached[r].load() == p.address.nonce)) continue;
    missing.push_back(r);
    if (!p.last_problem.empty()) problems += "; rank " + std::to_string(r) + ": " + p.last_problem;
  }
  throw Error(ErrorKind::timeout, list(missing) + " of " + std::to_string(size_) +
                                      " did not arrive within " +
                                      std::to_string(deadline.budget().count()) + " ms" + problems +
                                      ". Check that every rank was started with the same world "
                                      "size and address, and did not fail before");
}

}  // namespace rocenante::shm
