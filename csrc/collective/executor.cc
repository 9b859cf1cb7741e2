#include "collective/executor.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/fork.h"

namespace rocenante {

// Everything behind one pointer: a forked child leaks it, since it inherits the mutex and the
// condition variable in whatever state the parent's threads had them.
struct Executor::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Task>> queue;  // not begun, in order of tickets
  uint64_t next_ticket = 0;
  uint64_t current = 0;  // I2: the ticket whose turn it is; grows when that one is done
  bool running = false;  // by whom does not matter
  bool stopped = false;
  std::string reason;
  std::thread worker;

  using Lock = std::unique_lock<std::mutex>;

  bool may_run_front() const {
    return !running && !queue.empty() && queue.front()->ticket_ == current;
  }

  void run_front(Lock& lock) {
    const std::shared_ptr<Task> task = std::move(queue.front());
    queue.pop_front();
    running = true;
    lock.unlock();
    try {
      task->body_();
    } catch (...) {
      task->error_ = std::current_exception();
    }
    // The next may begin before `then` runs, but whoever waits for this task sees both done.
    lock.lock();
    end_turn();
    lock.unlock();
    Executor::finish(*task);
    lock.lock();
    changed.notify_all();
  }

  void end_turn() {
    running = false;
    ++current;
    changed.notify_all();
  }

  void work() {
    Lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return may_run_front() || (stopped && queue.empty()); });
      if (!may_run_front()) return;
      run_front(lock);
    }
  }
};

void Executor::finish(Task& task) {
  task.body_ = nullptr;  // lets go of what the body keeps alive
  const std::function<void()> then = std::move(task.then_);
  task.done_.store(true, std::memory_order_release);
  if (then) then();
}

Executor::Executor() : state_(std::make_unique<State>()), fork_generation_(fork_generation()) {}

Executor::~Executor() {
  if (fork_generation() != fork_generation_) {
    static_cast<void>(state_.release());
    return;
  }
  stop("the group was destroyed");
  if (state_->worker.joinable()) state_->worker.join();
}

Executor::Turn::Turn(Executor& executor) : state_(*executor.state_) {
  State::Lock lock(state_.mutex);
  if (state_.stopped) throw Error(ErrorKind::aborted, state_.reason);
  const uint64_t ticket = state_.next_ticket++;
  while (state_.current != ticket || state_.running) {
    // The turns of dropped tasks never come.
    if (state_.stopped) throw Error(ErrorKind::aborted, state_.reason);
    if (state_.may_run_front())
      state_.run_front(lock);
    else
      state_.changed.wait(lock);
  }
  state_.running = true;
}

Executor::Turn::~Turn() {
  const State::Lock lock(state_.mutex);
  state_.end_turn();
}

std::shared_ptr<Task> Executor::submit(std::function<void()> body, std::function<void()> then) {
  auto task = std::make_shared<Task>();
  task->body_ = std::move(body);
  task->then_ = std::move(then);
  State::Lock lock(state_->mutex);
  if (state_->stopped) {
    task->error_ = std::make_exception_ptr(Error(ErrorKind::aborted, state_->reason));
    lock.unlock();
    finish(*task);
    return task;
  }
  task->ticket_ = state_->next_ticket++;
  state_->queue.push_back(task);
  if (!state_->worker.joinable())
    state_->worker = std::thread([state = state_.get()] { state->work(); });
  state_->changed.notify_all();
  return task;
}

bool Executor::wait(const std::shared_ptr<Task>& task, Milliseconds budget) {
  State::Lock lock(state_->mutex);
  if (budget != kUnlimited)
    return state_->changed.wait_for(lock, budget, [&] { return task->done(); });
  while (!task->done()) {
    if (state_->may_run_front() && state_->queue.front()->ticket_ <= task->ticket_)
      state_->run_front(lock);
    else
      state_->changed.wait(lock);
  }
  return true;
}

void Executor::stop(const std::string& reason) {
  std::deque<std::shared_ptr<Task>> dropped;
  {
    const State::Lock lock(state_->mutex);
    if (state_->stopped) return;
    state_->stopped = true;
    state_->reason = reason;
    dropped.swap(state_->queue);
  }
  for (const auto& task : dropped) {
    task->error_ = std::make_exception_ptr(Error(ErrorKind::aborted, reason));
    finish(*task);
  }
  const State::Lock lock(state_->mutex);
  state_->changed.notify_all();
}

}  // namespace rocenante
