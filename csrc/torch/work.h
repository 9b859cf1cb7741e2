// Collectives under way, as torch sees them.
#pragma once

#include <ATen/core/ivalue.h>

#include <torch/version.h>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "torch/engine.h"
#include "torch/tensors.h"

namespace rocenante {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Runs `callback`, which may block, on a thread that does nothing else meanwhile. A Future's
// callbacks may wait for another collective's Future, so none may run on a thread that makes
// progress.
void run_on_callback_thread(std::function<void()> callback);
// Waits until all such callbacks have returned, but no longer than `budget`.
void drain_callbacks(Milliseconds budget);

// What all Works share: the result, the Future made on demand, and completing exactly once.
class WorkBase : public c10d::Work {
 public:
  WorkBase(int rank, c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
           uint64_t sequence, Milliseconds timeout);

  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  std::chrono::milliseconds getTimeout() const override { return timeout_; }
#endif

 protected:
  // Of several calls the first takes effect; `error` is one of torch's.
  void complete(std::exception_ptr error);
  // Throws the error, if it failed.
  void rethrow() const;

  const Tensors outputs_;
  const uint64_t sequence_;
  const Milliseconds timeout_;

 private:
  std::atomic<bool> completing_{false};
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class CollectiveWork final : public WorkBase {
 public:
  using WorkBase::WorkBase;

  // Queues `body`; called once, right after construction.
  void start(const std::shared_ptr<Engine>& engine, std::function<void()> body);

  bool isCompleted() override;
  // Runs the operation on this thread if it has not begun. kNoTimeout: until the operation's own
  // time is over. Otherwise raises after `timeout` and leaves the operation under way.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;

 private:
  void on_done();
  void settle();

  // Weak: a Work may outlive its group, and must not be the one that destroys it, on a thread of
  // its own.
  std::weak_ptr<Engine> engine_;
  std::mutex task_mutex_;
  std::shared_ptr<Task> task_;
  bool done_before_known_ = false;
};

// One send or recv.
class TransferWork final : public WorkBase {
 public:
  TransferWork(int rank, c10d::OpType type, const char* title, const Tensors& tensors,
               uint64_t sequence, Milliseconds timeout, Packed packed)
      : WorkBase(rank, type, title, tensors, tensors, sequence, timeout),
        packed_(std::move(packed)) {}

  // Called once, right after construction.
  void start(const std::shared_ptr<Engine>& engine, std::shared_ptr<Transfer> transfer);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  int sourceRank() const override;

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  bool is_done() const { return transfer_->done(); }
  // Waits for at most `budget`; true once complete. Does not throw the transfer's error.
  bool finish_within(Milliseconds budget);
  // Gives up.
  void cancel(PointToPoint& point_to_point);

 private:
  void settle();

  const Packed packed_;
  std::shared_ptr<Transfer> transfer_;
  std::weak_ptr<Engine> engine_;
  std::atomic<bool> watched_{false};
  std::mutex settle_mutex_;
  bool settled_ = false;
};

// A transfer's wait without a time of its own: the transfer's time-out ends it.
inline constexpr Milliseconds kForever = std::chrono::hours(24 * 365);

[[noreturn]] void throw_wait_timeout(const char* what, uint64_t sequence,
                                     std::chrono::milliseconds timeout);

}  // namespace rocenante
