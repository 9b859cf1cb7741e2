#include "collective/point_to_point_engine.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace rocenante {

namespace {
constexpr int kYields = 100;
constexpr uint64_t kYieldNanoseconds = 500'000;
constexpr uint64_t kHealthNanoseconds = 10'000'000;
}  // namespace

class PointToPointEngine::Operation final : public Transfer,
                                            public std::enable_shared_from_this<Operation> {
 public:
  Operation(PointToPointEngine& engine, bool sends, char* data, size_t bytes, DType dtype, int peer,
            int tag, Milliseconds timeout)
      : engine_(engine),
        sends_(sends),
        data_(data),
        bytes_(bytes),
        dtype_(dtype),
        peer_(peer),
        tag_(tag),
        deadline_(timeout) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }
  int source() const override { return source_; }
  void wait(Milliseconds budget) override {
    engine_.drive(shared_from_this(), budget);
    if (error_) std::rethrow_exception(error_);
  }

  PointToPointEngine& engine_;
  const bool sends_;
  char* const data_;
  const size_t bytes_;
  const DType dtype_;
  const int peer_;  // kAnySource: any
  const int tag_;
  const Deadline deadline_;
  size_t moved_ = 0;
  bool begun_ = false;
  int source_ = -1;
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
};

PointToPointEngine::PointToPointEngine(Transport& transport, int rank, int size, std::string name)
    : transport_(transport),
      rank_(rank),
      size_(size),
      name_(std::move(name)),
      peers_(static_cast<size_t>(size)) {}

PointToPointEngine::~PointToPointEngine() {
  stop("it was closed");
  if (worker_.joinable()) worker_.join();
}

std::string PointToPointEngine::who(const Operation& o) const {
  const std::string peer = o.peer_ == kAnySource ? "any rank" : "rank " + std::to_string(o.peer_);
  return "rocenante[" + name_ + "] rank " + std::to_string(rank_) +
         (o.sends_ ? ": send to " : ": recv from ") + peer + " (tag " + std::to_string(o.tag_) +
         ", " + std::string(name_of(o.dtype_)) + ", " + std::to_string(o.bytes_) + " bytes)";
}

std::shared_ptr<Transfer> PointToPointEngine::send(const void* data, size_t bytes, DType dtype,
                                                   int destination, int tag, Milliseconds timeout) {
  if (destination < 0 || destination >= size_ || destination == rank_)
    throw Error(ErrorKind::usage, "send: rank " + std::to_string(destination) +
                                      " is not a peer of rank " + std::to_string(rank_) +
                                      " in a group of " + std::to_string(size_));
  auto* p = const_cast<char*>(static_cast<const char*>(data));  // only read: see push()
  return post(std::make_shared<Operation>(*this, true, p, bytes, dtype, destination, tag, timeout));
}

std::shared_ptr<Transfer> PointToPointEngine::recv(void* data, size_t bytes, DType dtype,
                                                   int source, int tag, Milliseconds timeout) {
  if (source != kAnySource && (source < 0 || source >= size_ || source == rank_))
    throw Error(ErrorKind::usage, "recv: rank " + std::to_string(source) +
                                      " is not a peer of rank " + std::to_string(rank_) +
                                      " in a group of " + std::to_string(size_));
  return post(std::make_shared<Operation>(*this, false, static_cast<char*>(data), bytes, dtype,
                                          source, tag, timeout));
}

std::shared_ptr<Transfer> PointToPointEngine::post(OperationPtr operation) {
  std::unique_lock lock(mutex_);
  if (stopped_) throw Error(ErrorKind::aborted, who(*operation) + ": " + reason_);
  active_.push_back(operation);
  if (operation->sends_)
    peers_[static_cast<size_t>(operation->peer_)].sends.push_back(operation);
  else if (!serve_unexpected(operation))
    recvs_.push_back(operation);
  progress();
  if (!operation->done() && !worker_.joinable()) worker_ = std::thread([this] { work(); });
  lock.unlock();
  changed_.notify_all();
  return operation;
}

void PointToPointEngine::complete(const OperationPtr& operation, std::exception_ptr error) {
  operation->error_ = std::move(error);
  operation->done_.store(true, std::memory_order_release);
  active_.remove(operation);
  recvs_.remove(operation);
  // Whoever waits for it may sleep beside the thread that completes it.
  if (drivers_ > 0) transport_.wake_self();
}

// Moves what can be moved now; true if anything was.
bool PointToPointEngine::progress() {
  bool moved = false;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    moved |= push(r);
    moved |= take(r);
  }
  return moved;
}

bool PointToPointEngine::push(int peer) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  bool moved = false;
  while (!p.sends.empty()) {
    const OperationPtr o = p.sends.front();
    if (o->done()) {  // failed before it began
      p.sends.pop_front();
      continue;
    }
    const uint64_t credit = transport_.credit_from(peer).load(std::memory_order_seq_cst);
    if (p.pushed - credit >= kRingSlots) break;
    Fragment f;
    f.message_bytes = o->bytes_;
    f.bytes = static_cast<uint32_t>(std::min(o->bytes_ - o->moved_, kFragmentBytes));
    f.tag = o->tag_;
    f.dtype = o->dtype_;
    f.first = !o->begun_;
    transport_.push_fragment(peer, ++p.pushed, f, o->data_ + o->moved_);
    o->begun_ = true;
    o->moved_ += f.bytes;
    moved = true;
    if (o->moved_ == o->bytes_) {
      p.sends.pop_front();
      complete(o, nullptr);
    }
  }
  return moved;
}

// A ring nobody receives from is left alone: a full one holds its sender back.
bool PointToPointEngine::wanted_from(int peer) const {
  const Peer& p = peers_[static_cast<size_t>(peer)];
  return p.receiving || p.buffering || p.discarding ||
         std::any_of(recvs_.begin(), recvs_.end(), [&](const OperationPtr& o) {
           return o->peer_ == peer || o->peer_ == kAnySource;
         });
}

bool PointToPointEngine::take(int peer) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  bool moved = false;
  while (wanted_from(peer)) {
    const Fragment& f = transport_.fragment_from(peer, p.taken + 1);
    if (f.number.load(std::memory_order_seq_cst) != p.taken + 1) break;
    take_fragment(peer, f);
    transport_.push_credit(peer, ++p.taken);
    moved = true;
  }
  return moved;
}

void PointToPointEngine::take_fragment(int peer, const Fragment& f) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  if (f.first) {
    abandon_message(peer);
    if (OperationPtr o = match(peer, f.tag)) {
      recvs_.remove(o);
      if (accept(o, peer, f.message_bytes, f.dtype))
        p.receiving = o;
      else
        p.discarding = true;
    } else {
      p.unexpected.push_back({f.tag, f.dtype, std::vector<char>(f.message_bytes), 0});
      p.buffering = true;
    }
    p.discard_left = f.message_bytes;
  }
  p.discard_left -= f.bytes;
  if (p.receiving && p.receiving->done()) {  // cancelled or timed out meanwhile
    p.receiving = nullptr;
    p.discarding = true;
  }
  if (p.receiving) {
    if (f.bytes > 0) std::memcpy(p.receiving->data_ + p.receiving->moved_, f.payload, f.bytes);
    p.receiving->moved_ += f.bytes;
  } else if (p.buffering) {
    Unexpected& u = p.unexpected.back();
    if (f.bytes > 0) std::memcpy(u.data.data() + u.arrived, f.payload, f.bytes);
    u.arrived += f.bytes;
  }
  if (p.discard_left > 0) return;
  if (p.receiving) complete(std::exchange(p.receiving, nullptr), nullptr);
  if (p.buffering) {
    p.buffering = false;
    // A recv may have been posted while the message came in.
    const Unexpected& u = p.unexpected.back();
    if (OperationPtr o = match(peer, u.tag)) serve_unexpected(o);
  }
  p.discarding = false;
}

// A new message begins: if the last one is not whole, its sender gave up in the middle (time-out,
// cancel).
void PointToPointEngine::abandon_message(int peer) {
  Peer& p = peers_[static_cast<size_t>(peer)];
  if (p.receiving && !p.receiving->done())
    complete(p.receiving,
             std::make_exception_ptr(
                 Error(ErrorKind::peer_lost, who(*p.receiving) + ": rank " + std::to_string(peer) +
                                                 " gave up sending in mid-message")));
  if (p.buffering) p.unexpected.pop_back();
  p.receiving = nullptr;
  p.buffering = p.discarding = false;
}

PointToPointEngine::OperationPtr PointToPointEngine::match(int peer, int tag) {
  const auto found = std::find_if(recvs_.begin(), recvs_.end(), [&](const OperationPtr& o) {
    return (o->peer_ == peer || o->peer_ == kAnySource) && o->tag_ == tag;
  });
  return found == recvs_.end() ? nullptr : *found;
}

// Hands a message that came early to `recv`; true if there was one (whole: the rest of a message
// still coming in is waited for like any other).
bool PointToPointEngine::serve_unexpected(const OperationPtr& recv) {
  for (int r = 0; r < size_; ++r) {
    if (recv->peer_ != kAnySource && recv->peer_ != r) continue;
    Peer& p = peers_[static_cast<size_t>(r)];
    const auto u = std::find_if(p.unexpected.begin(), p.unexpected.end(),
                                [&](const Unexpected& m) { return m.tag == recv->tag_; });
    if (u == p.unexpected.end()) continue;
    if (p.buffering && std::next(u) == p.unexpected.end()) continue;
    recvs_.remove(recv);
    if (accept(recv, r, u->data.size(), u->dtype)) {
      if (!u->data.empty()) std::memcpy(recv->data_, u->data.data(), u->data.size());
      complete(recv, nullptr);
    }
    p.unexpected.erase(u);
    return true;
  }
  return false;
}

// I5 for messages: a recv of another size or dtype fails, naming both, and the message is dropped.
bool PointToPointEngine::accept(const OperationPtr& recv, int peer, size_t bytes, DType dtype) {
  recv->source_ = peer;
  if (recv->bytes_ == bytes && recv->dtype_ == dtype) return true;
  complete(recv,
           std::make_exception_ptr(Error(
               ErrorKind::mismatch, who(*recv) + ": rank " + std::to_string(peer) + " sent " +
                                        std::string(name_of(dtype)) + ", " + std::to_string(bytes) +
                                        " bytes: the two calls must agree")));
  return false;
}

// Why the operation can no longer complete, if so. A recv from any rank goes on while peers leave
// in good order, until the last has.
std::optional<std::string> PointToPointEngine::loss_for(const Operation& o) {
  std::optional<std::string> why;
  bool all_left = true;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || (o.peer_ != kAnySource && o.peer_ != r)) continue;
    const auto loss = transport_.lost(r);
    all_left &= loss.has_value();
    if (!loss) continue;
    why = "rank " + std::to_string(r) + " is lost: " + loss->why;
    if (!loss->in_good_order) return why;
  }
  return all_left ? why : std::nullopt;
}

void PointToPointEngine::check_health() {
  const uint64_t now = nanoseconds();
  if (now - looked_ < kHealthNanoseconds) return;
  looked_ = now;
  const std::list<OperationPtr> active = active_;
  for (const OperationPtr& o : active) {
    const auto loss = o->done() ? std::nullopt : loss_for(*o);
    if (loss) progress();  // what a peer sent before its end counts
    if (loss && !o->done())
      complete(o, std::make_exception_ptr(Error(ErrorKind::peer_lost, who(*o) + ": " + *loss)));
    if (!o->done() && o->deadline_.passed()) {
      const std::string late =
          o->peer_ == kAnySource ? "" : " (" + transport_.about(o->peer_) + ")";
      complete(o,
               std::make_exception_ptr(Error(
                   ErrorKind::timeout, who(*o) + ": Timed out after " +
                                           std::to_string(o->deadline_.budget().count()) + " ms" +
                                           late + ". Check that the peer makes the matching " +
                                           (o->sends_ ? "recv" : "send") + " with the same tag")));
    }
  }
}

void PointToPointEngine::drive(const OperationPtr& operation, Milliseconds budget) {
  struct Driver {  // while somebody waits here, the worker need not
    PointToPointEngine& e;
    std::unique_lock<std::mutex>& lock;
    ~Driver() {
      if (!lock.owns_lock()) lock.lock();
      --e.drivers_;
      lock.unlock();
      e.changed_.notify_all();
    }
  };
  if (operation->done()) return;
  const Deadline deadline(budget);
  const uint64_t start = nanoseconds();
  std::unique_lock lock(mutex_);
  ++drivers_;
  const Driver driver{*this, lock};
  for (int i = 0; !operation->done(); ++i) {
    if (progress()) continue;
    if (operation->done()) return;
    check_health();
    if (operation->done()) return;
    if (deadline.passed())
      throw Error(ErrorKind::timeout, who(*operation) + ": not complete after " +
                                          std::to_string(budget.count()) + " ms; it goes on");
    lock.unlock();
    if (i < kYields && nanoseconds() - start < kYieldNanoseconds)
      sched_yield();
    else
      sleep(nanoseconds() - start);
    lock.lock();
  }
}

void PointToPointEngine::sleep(uint64_t waited) {
  // The last look before sleeping sees whatever a peer stored without finding a sleeper to wake.
  const auto ready = [](void* p) {
    auto& e = *static_cast<PointToPointEngine*>(p);
    const std::lock_guard lock(e.mutex_);
    return e.progress() || e.stopped_;
  };
  transport_.sleep_for_message(waited, ready, this);
}

void PointToPointEngine::work() {
  std::unique_lock lock(mutex_);
  uint64_t moved = nanoseconds();
  while (!stopped_) {
    changed_.wait(lock, [&] { return stopped_ || (drivers_ == 0 && !active_.empty()); });
    if (stopped_) return;
    if (progress()) {
      moved = nanoseconds();
      continue;
    }
    check_health();
    lock.unlock();
    sleep(nanoseconds() - moved);
    lock.lock();
  }
}

void PointToPointEngine::cancel(const std::shared_ptr<Transfer>& transfer) {
  const auto operation = std::static_pointer_cast<Operation>(transfer);
  const std::lock_guard lock(mutex_);
  if (operation->done()) return;
  complete(operation,
           std::make_exception_ptr(Error(ErrorKind::aborted, who(*operation) + " was cancelled")));
}

void PointToPointEngine::stop(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    reason_ = reason;
    const std::list<OperationPtr> active = active_;
    for (const OperationPtr& o : active)
      complete(o, std::make_exception_ptr(Error(ErrorKind::aborted, who(*o) + ": " + reason)));
  }
  changed_.notify_all();
  transport_.wake_self();
}

}  // namespace rocenante
