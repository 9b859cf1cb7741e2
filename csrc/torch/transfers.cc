#include "torch/transfers.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "torch/errors.h"
#include "torch/work.h"

namespace rocenante {

Transfers::Transfers(PointToPoint& point_to_point) : point_to_point_(point_to_point) {}

Transfers::~Transfers() = default;

void Transfers::add(c10::intrusive_ptr<TransferWork> work) {
  Works complete;  // dropped without the lock: the last reference may need the GIL
  std::lock_guard lock(mutex_);
  for (auto& pending : pending_)
    if (pending->is_done()) complete.push_back(std::move(pending));
  std::erase(pending_, nullptr);
  pending_.push_back(std::move(work));
}

void Transfers::remove(const TransferWork* work) {
  c10::intrusive_ptr<TransferWork> removed;
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [&](const auto& pending) { return pending.get() == work; });
  if (found == pending_.end()) return;
  removed = std::move(*found);
  pending_.erase(found);
}

Transfers::Works Transfers::pending() {
  std::lock_guard lock(mutex_);
  return pending_;
}

bool Transfers::drain(Milliseconds budget) {
  const Deadline deadline(budget);
  for (const auto& work : pending())
    if (!work->finish_within(deadline.left())) return false;
  return true;
}

void Transfers::stop() {
  for (const auto& work : pending()) work->cancel(point_to_point_);
}

void TransferWork::start(const std::shared_ptr<Engine>& engine,
                         std::shared_ptr<Transfer> transfer) {
  engine_ = engine;
  transfer_ = std::move(transfer);
  if (!isCompleted())
    engine->transfers().add(c10::intrusive_ptr<TransferWork>::unsafe_reclaim_from_nonowning(this));
}

bool TransferWork::isCompleted() {
  if (!transfer_->done()) return false;
  settle();
  return true;
}

void TransferWork::settle() {
  {
    std::lock_guard lock(settle_mutex_);
    if (settled_) return;
    settled_ = true;
    std::exception_ptr error;
    try {
      transfer_->wait(Milliseconds(0));
      if (opType_ != c10d::OpType::SEND) packed_.unpack();
    } catch (...) {
      error = std::current_exception();
    }
    complete(torch_error(std::move(error)));
  }
  if (auto engine = engine_.lock()) {
    engine->transfers().remove(this);
    release(engine);
  }
}

bool TransferWork::finish_within(Milliseconds budget) {
  try {
    transfer_->wait(budget);
  } catch (const Error&) {
    // Its own error, which settle() reports, or only that the budget is spent.
  }
  return isCompleted();
}

bool TransferWork::wait(std::chrono::milliseconds timeout) {
  if (!isCompleted()) {
    auto engine = engine_.lock();  // the group must stay: the transfer is its
    if (engine) {
      with_torch_errors([&] { engine->check_process(); });
      const bool done = finish_within(timeout.count() > 0 ? timeout : kForever);
      release(engine);
      if (!done) throw_wait_timeout(c10d::opTypeToString(opType_).c_str(), sequence_, timeout);
    }
  }
  rethrow();
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> TransferWork::getFuture() {
  auto future = WorkBase::getFuture();
  if (!future->completed() && !watched_.exchange(true)) {
    // Nobody else may ever ask whether the transfer is done, and the Future must complete all the
    // same.
    auto self = c10::intrusive_ptr<TransferWork>::unsafe_reclaim_from_nonowning(this);
    run_on_callback_thread([self] {
      auto engine = self->engine_.lock();  // the group must stay: the transfer is its
      if (engine) self->finish_within(kForever);
      release(engine);
    });
  }
  return future;
}

void TransferWork::abort() {
  auto engine = engine_.lock();
  if (!engine) return;
  cancel(engine->communicator().point_to_point());
  release(engine);
}

void TransferWork::cancel(PointToPoint& point_to_point) {
  point_to_point.cancel(transfer_);
  isCompleted();
}

int TransferWork::sourceRank() const { return transfer_->source(); }

}  // namespace rocenante
