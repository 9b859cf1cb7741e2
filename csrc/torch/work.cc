#include "torch/work.h"

#include <c10/util/Exception.h>

#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

#include "torch/errors.h"
#include "torch/per_process.h"

namespace rocenante {

namespace {

c10::TypePtr tensor_list_type() {
  static const c10::TypePtr type = c10::ListType::ofTensors();
  return type;
}

void mark(c10::ivalue::Future& future, const Tensors& value, std::exception_ptr error) {
  if (error)
    future.setError(std::move(error));
  else
    future.markCompleted(c10::IValue(value));
}

// Threads for callbacks. As many as there are callbacks that block, so that none waits for another
// to return; they end after a while without work.
class CallbackThreads {
 public:
  void add(std::function<void()> callback) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(callback));
    if (idle_ >= queue_.size())
      arrived_.notify_one();
    else
      std::thread([this] { run(); }).detach();
  }

  void drain(Milliseconds budget) {
    std::unique_lock lock(mutex_);
    returned_.wait_for(lock, budget, [&] { return queue_.empty() && busy_ == 0; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      const bool more =
          arrived_.wait_for(lock, std::chrono::seconds(5), [&] { return !queue_.empty(); });
      --idle_;
      if (!more) return;
      auto callback = std::move(queue_.front());
      queue_.pop_front();
      ++busy_;
      lock.unlock();
      callback();
      callback = nullptr;  // may drop tensors, and with them Python objects: not under the lock
      lock.lock();
      --busy_;
      returned_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_, returned_;
  std::deque<std::function<void()>> queue_;
  size_t idle_ = 0, busy_ = 0;
};

std::exception_ptr aborted(const std::string& reason) {
  return torch_error(std::make_exception_ptr(Error(ErrorKind::aborted, reason)));
}

}  // namespace

void throw_torch_error(const Error& error) {
  if (error.kind() == ErrorKind::usage) C10_THROW_ERROR(ValueError, error.what());
  C10_THROW_ERROR(DistBackendError, error.what());
}

std::exception_ptr torch_error(std::exception_ptr error) {
  if (!error) return nullptr;
  try {
    with_torch_errors([&] { std::rethrow_exception(error); });
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;  // not reached
}

void run_on_callback_thread(std::function<void()> callback) {
  per_process<CallbackThreads>().add(std::move(callback));
}

void drain_callbacks(Milliseconds budget) { per_process<CallbackThreads>().drain(budget); }

void throw_wait_timeout(const char* what, uint64_t sequence, std::chrono::milliseconds timeout) {
  C10_THROW_ERROR(DistBackendError,
                  c10::str(what, " #", sequence, ": wait() Timed out after ", timeout.count(),
                           " ms; the operation itself is still under way"));
}

WorkBase::WorkBase(int rank, c10d::OpType type, const char* title, const Tensors& inputs,
                   Tensors outputs, uint64_t sequence, Milliseconds timeout)
    : Work(rank, type, title, inputs),
      outputs_(std::move(outputs)),
      sequence_(sequence),
      timeout_(timeout) {}

bool WorkBase::isSuccess() const {
  std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

std::exception_ptr WorkBase::exception() const {
  std::lock_guard lock(mutex_);
  return exception_;
}

void WorkBase::rethrow() const {
  if (auto error = exception()) std::rethrow_exception(error);
}

c10::intrusive_ptr<c10::ivalue::Future> WorkBase::getFuture() {
  std::lock_guard lock(future_mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(tensor_list_type());
    std::unique_lock state(mutex_);
    if (completed_) {
      auto error = exception_;
      state.unlock();
      mark(*future_, outputs_, std::move(error));  // nobody can have added a callback yet
    }
  }
  return future_;
}

void WorkBase::complete(std::exception_ptr error) {
  if (completing_.exchange(true)) {
    // Another thread is at it: whoever saw the operation done must also see the Work complete.
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] { return completed_; });
    return;
  }
  // Under the Future's lock, so that getFuture() either finds the Work complete or leaves a Future
  // here.
  std::lock_guard lock(future_mutex_);
  finish(error);
  if (future_)
    run_on_callback_thread([future = future_, value = outputs_, error = std::move(error)] {
      mark(*future, value, error);
    });
}

void CollectiveWork::start(const std::shared_ptr<Engine>& engine, std::function<void()> body) {
  engine_ = engine;
  auto self = c10::intrusive_ptr<CollectiveWork>::unsafe_reclaim_from_nonowning(this);
  auto task = engine->executor().submit(std::move(body), [self] { self->on_done(); });
  {
    std::lock_guard lock(task_mutex_);
    task_ = std::move(task);
    if (!done_before_known_) return;
  }
  settle();
}

void CollectiveWork::on_done() {
  {
    std::lock_guard lock(task_mutex_);
    if (!task_) {  // submit() has not returned: start() settles
      done_before_known_ = true;
      return;
    }
  }
  settle();
}

void CollectiveWork::settle() { complete(torch_error(task_->error())); }

bool CollectiveWork::isCompleted() {
  if (!task_->done()) return false;
  settle();
  return true;
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  if (!task_->done()) {
    // Without a group the executor has ended, and with it every task.
    if (auto engine = engine_.lock()) {
      with_torch_errors([&] { engine->check_process(); });
      const bool bounded = timeout.count() > 0;
      const bool done = engine->executor().wait(task_, bounded ? timeout : Executor::kUnlimited);
      release(engine);
      if (!done) throw_wait_timeout(c10d::opTypeToString(opType_).c_str(), sequence_, timeout);
    }
    if (!task_->done()) complete(aborted("the group ended before the operation did"));
  }
  if (task_->done()) settle();
  rethrow();
  return true;
}

void CollectiveWork::abort() {
  if (auto engine = engine_.lock()) {
    engine->abort("Work.abort() was called");
    release(engine);
  }
}

}  // namespace rocenante
