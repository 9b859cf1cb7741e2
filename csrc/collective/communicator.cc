#include "collective/communicator.h"

#include "collective/point_to_point_engine.h"
#include "core/fork.h"
#include "exchange/exchange.h"
#include "transport/meet.h"

namespace rocenante {

namespace {

int checked_size(int rank, int size) {
  if (size < 1 || size > kMaxRanks)
    throw Error(ErrorKind::usage, "a world of " + std::to_string(size) +
                                      " ranks is not possible: 1 to " + std::to_string(kMaxRanks) +
                                      " are");
  if (rank < 0 || rank >= size)
    throw Error(ErrorKind::usage, "rank " + std::to_string(rank) + " is not in a world of " +
                                      std::to_string(size) + " ranks");
  return size;
}

Milliseconds init_timeout(const Config& config, Milliseconds group) {
  if (config.init_timeout_seconds == 0) return group;
  return std::chrono::seconds(config.init_timeout_seconds);
}

std::vector<std::pair<std::string, std::string>> agreed_rows(const Config& config) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const ConfigRow& row : describe(config))
    if (row.must_agree) rows.emplace_back(row.name, row.value);
  return rows;
}

std::unique_ptr<Transport> make_transport(Bootstrap& bootstrap, int rank, int size,
                                          const Config& config, Milliseconds timeout,
                                          const std::string& name) {
  try {
    return meet(bootstrap, rank, size, config, agreed_rows(config), init_timeout(config, timeout));
  } catch (const Error& e) {
    throw Error(e.kind(),
                "rocenante[" + name + "] rank " + std::to_string(rank) + ": init: " + e.what());
  }
}

}  // namespace

Communicator::Communicator(Bootstrap& bootstrap, int rank, int size, const Config& config,
                           Milliseconds timeout, std::string name)
    : rank_(rank),
      size_(checked_size(rank, size)),
      name_(std::move(name)),
      config_(config),
      fork_generation_(fork_generation()),
      transport_(make_transport(bootstrap, rank, size, config_, timeout, name_)),
      exchange_(std::make_unique<Exchange>(*transport_, rank, size, name_)),
      point_to_point_(std::make_unique<PointToPointEngine>(*transport_, rank, size, name_)) {}

Communicator::~Communicator() {
  if (!forked()) {
    close();
    return;
  }
  // The parent still uses what the child inherited a view of; the child must not say goodbye for
  // it, nor wait for threads it does not have.
  static_cast<void>(point_to_point_.release());
  static_cast<void>(exchange_.release());
  static_cast<void>(transport_.release());
}

bool Communicator::forked() const { return fork_generation() != fork_generation_; }

void Communicator::throw_if_forked() const {
  if (forked())
    throw Error(ErrorKind::usage,
                "rocenante[" + name_ + "] rank " + std::to_string(rank_) +
                    ": this group belongs to the parent process; a forked child (a DataLoader "
                    "worker?) cannot use it: make a group of its own there, or start with spawn");
}

uint64_t Communicator::operations() const { return exchange_->operations(); }

CallRecord Communicator::record(Collective collective, size_t bytes, DType dtype, int root) const {
  CallRecord call;
  call.collective = collective;
  call.bytes = bytes;
  call.dtype = dtype;
  call.root = root;
  return call;
}

void Communicator::begin(const CallRecord& call, Milliseconds timeout) {
  throw_if_forked();
  if (call.root >= size_ || call.root < -1)
    throw Error(ErrorKind::usage, std::string(name_of(call.collective)) + ": root " +
                                      std::to_string(call.root) + " is not in a group of " +
                                      std::to_string(size_) + " ranks");
  exchange_->begin(call, timeout);
}

PointToPoint& Communicator::point_to_point() {
  throw_if_forked();
  return *point_to_point_;
}

void Communicator::abort(const std::string& reason) {
  if (forked()) return;
  exchange_->abort(reason);
  point_to_point_->stop("aborted: " + reason);
}

void Communicator::close() {
  if (forked()) return;
  point_to_point_->stop("it was closed");
  exchange_->close();
}

std::string Communicator::failure() const { return exchange_->failure(); }

}  // namespace rocenante
