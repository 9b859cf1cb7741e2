// The engine behind PointToPoint. Messages travel as fragments through a ring per ordered pair, in
// the receiver's window; credits say which ring slots are free again. Whoever waits drives the
// engine; a thread of its own does while nobody waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collective/point_to_point.h"
#include "core/error.h"
#include "transport/transport.h"

namespace rocenante {

class PointToPointEngine final : public PointToPoint {
 public:
  PointToPointEngine(Transport& transport, int rank, int size, std::string name);
  ~PointToPointEngine() override;

  std::shared_ptr<Transfer> send(const void* data, size_t bytes, DType dtype, int destination,
                                 int tag, Milliseconds timeout) override;
  std::shared_ptr<Transfer> recv(void* data, size_t bytes, DType dtype, int source, int tag,
                                 Milliseconds timeout) override;
  void cancel(const std::shared_ptr<Transfer>& transfer) override;
  // Fails all transfers under way with ErrorKind::aborted(reason), and all later ones.
  void stop(const std::string& reason);

 private:
  class Operation;
  using OperationPtr = std::shared_ptr<Operation>;
  // What a peer sent before this rank asked for it, in order of arrival.
  struct Unexpected {
    int tag;
    DType dtype;
    std::vector<char> data;
    size_t arrived = 0;
  };
  struct Peer {
    std::deque<OperationPtr> sends;
    uint64_t pushed = 0;     // fragments put into the peer's ring
    uint64_t taken = 0;      // fragments taken from its ring here
    OperationPtr receiving;  // the recv that the message now arriving belongs to
    std::list<Unexpected> unexpected;
    bool buffering = false;   // the message now arriving goes to unexpected.back()
    bool discarding = false;  // its recv failed or was cancelled: the rest is dropped
    size_t discard_left = 0;
  };

  std::shared_ptr<Transfer> post(OperationPtr operation);
  void drive(const OperationPtr& operation, Milliseconds budget);
  bool progress();
  bool push(int peer);
  bool take(int peer);
  void take_fragment(int peer, const Fragment& fragment);
  void abandon_message(int peer);
  bool wanted_from(int peer) const;
  OperationPtr match(int peer, int tag);
  bool serve_unexpected(const OperationPtr& recv);
  bool accept(const OperationPtr& recv, int peer, size_t bytes, DType dtype);
  void complete(const OperationPtr& operation, std::exception_ptr error);
  std::optional<std::string> loss_for(const Operation& operation);
  void check_health();
  void sleep(uint64_t waited);  // nanoseconds since something moved
  void work();
  std::string who(const Operation& operation) const;

  Transport& transport_;
  const int rank_, size_;
  const std::string name_;

  std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::list<OperationPtr> recvs_;  // posted and not matched yet, in order
  std::list<OperationPtr> active_;
  int drivers_ = 0;
  uint64_t looked_ = 0;
  bool stopped_ = false;
  std::string reason_;
  std::thread worker_;
};

}  // namespace rocenante
