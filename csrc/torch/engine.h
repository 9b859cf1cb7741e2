// What a Backend and the Works that it gave out share: a communicator and what runs it.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "collective/communicator.h"
#include "collective/executor.h"
#include "core/fork.h"
#include "torch/gpu_group.h"
#include "torch/store.h"
#include "torch/transfers.h"

namespace rocenante {

class Engine {
 public:
  // Blocks until all ranks have arrived.
  static std::shared_ptr<Engine> create(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                        Milliseconds timeout, const std::string& name);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Communicator& communicator() { return communicator_; }
  Executor& executor() { return executor_; }
  Transfers& transfers() { return transfers_; }
  StoreBootstrap& bootstrap() { return bootstrap_; }
  GpuGroup& gpu_group() { return gpu_group_; }

  // True in a child forked after the engine was made: it has neither the threads nor the right.
  bool is_foreign() const { return fork_generation() != generation_; }
  // Throws usage in such a child.
  void check_process() const;

  // Fails what is under way before it returns.
  void abort(const std::string& reason);
  // Gives what is under way at most `drain` to complete, fails the rest and leaves the group.
  // Idempotent.
  void shutdown(Milliseconds drain);

  // Shuts down every engine of this process: at exit, while threads still run and Python still
  // works.
  static void shutdown_all() noexcept;

 private:
  Engine(StoreBootstrap bootstrap, int rank, int size, Milliseconds timeout,
         const std::string& name);

  const uint64_t generation_;
  StoreBootstrap bootstrap_;
  Communicator communicator_;
  GpuGroup gpu_group_;
  Transfers transfers_;
  Executor executor_;
};

// Destroying an engine joins threads that may need the GIL: these drop a reference without holding
// it, and in a forked child, where the threads to join do not exist, not at all.
void release(std::shared_ptr<Engine>& engine);

// Runs `body` with the GIL released, if this thread holds it.
void without_gil(const std::function<void()>& body);

}  // namespace rocenante
