// Runs a communicator's collectives in issue order (invariant I2), on whichever thread is there: a
// blocking call on the caller's own thread (a hand-off to another costs more than a small
// exchange), an asynchronous one on a worker, unless somebody waits for it before the worker has
// begun: then on the waiting thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "core/clock.h"

namespace rocenante {

class Task {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }
  std::exception_ptr error() const { return error_; }  // valid once done

 private:
  friend class Executor;
  uint64_t ticket_ = 0;
  std::function<void()> body_;
  std::function<void()> then_;
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
};

class Executor {
 public:
  // As a budget: no limit.
  static constexpr Milliseconds kUnlimited = Milliseconds::max();

  Executor();
  ~Executor();  // stop(), then ends the worker; in a forked child it does nothing
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs `body` on this thread after everything submitted before; throws what it throws, or
  // ErrorKind::aborted after stop().
  template <class F>
  void run(F&& body) {
    const Turn turn(*this);
    body();
  }

  // Queues `body`; `then` (may be empty) is called once the task is done, on the thread that ran
  // it, outside all locks; it must neither block nor throw. After stop() the task is done at once,
  // in error.
  std::shared_ptr<Task> submit(std::function<void()> body, std::function<void()> then = {});

  // True once the task is done; false if `budget` ran out first, and the task goes on. With
  // kUnlimited this thread runs what is queued, up to the task, instead of waiting for the worker.
  // Does not throw the task's error.
  bool wait(const std::shared_ptr<Task>& task, Milliseconds budget);

  // Fails all tasks that have not begun with ErrorKind::aborted(reason), and all later ones. The
  // running one is the communicator's to abort.
  void stop(const std::string& reason);

 private:
  struct State;
  class Turn {
   public:
    explicit Turn(Executor& executor);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    State& state_;
  };
  static void finish(Task& task);

  std::unique_ptr<State> state_;
  const uint64_t fork_generation_;
};

}  // namespace rocenante
