#include "torch/engine.h"

#include <Python.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "torch/per_process.h"

namespace rocenante {

namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Engine>> engines;
};

// At exit peers may have gone without a word; a live one completes what is under way well within
// this.
constexpr Milliseconds kExitDrain(2000);
// What was queued on a stream runs without this process's help, unlike other operations.
constexpr Milliseconds kKernelDrain(5000);

}  // namespace

std::shared_ptr<Engine> Engine::create(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                       Milliseconds timeout, const std::string& name) {
  std::shared_ptr<Engine> engine(
      new Engine(StoreBootstrap(std::move(store), name, rank), rank, size, timeout, name));
  auto& registry = per_process<Registry>();
  std::lock_guard lock(registry.mutex);
  std::erase_if(registry.engines, [](const auto& e) { return e.expired(); });
  registry.engines.push_back(engine);
  return engine;
}

Engine::Engine(StoreBootstrap bootstrap, int rank, int size, Milliseconds timeout,
               const std::string& name)
    : generation_(fork_generation()),
      bootstrap_(std::move(bootstrap)),
      communicator_(bootstrap_, rank, size, Config::from_environment(), timeout, name),
      gpu_group_(communicator_, bootstrap_, timeout),
      transfers_(communicator_.point_to_point()) {}

Engine::~Engine() { shutdown(Milliseconds(0)); }

void Engine::check_process() const {
  if (is_foreign())
    throw Error(ErrorKind::usage,
                "group \"" + communicator_.name() +
                    "\" belongs to the process that made it, and this one was forked from it: "
                    "call init_process_group in each process that communicates");
}

void Engine::abort(const std::string& reason) {
  if (is_foreign()) return;
  communicator_.abort(reason);
  gpu_group_.abort(reason);
  executor_.stop(reason);
  transfers_.stop();
}

void Engine::shutdown(Milliseconds drain) {
  if (is_foreign()) return;
  if (drain.count() > 0 && communicator_.failure().empty()) {
    const Deadline deadline(drain);
    auto last = executor_.submit([] {});
    const bool drained = executor_.wait(last, drain) && transfers_.drain(deadline.left());
    if (!drained) communicator_.abort("shut down with operations under way");
  }
  gpu_group_.close(std::max(drain, kKernelDrain));
  const std::string reason = "group \"" + communicator_.name() + "\" was shut down";
  executor_.stop(reason);
  transfers_.stop();
  communicator_.close();
}

void Engine::shutdown_all() noexcept {
  std::vector<std::shared_ptr<Engine>> engines;
  {
    auto& registry = per_process<Registry>();
    std::lock_guard lock(registry.mutex);
    for (auto& weak : registry.engines)
      if (auto engine = weak.lock()) engines.push_back(std::move(engine));
  }
  for (auto& engine : engines) {
    try {
      engine->shutdown(kExitDrain);
    } catch (const std::exception& error) {
      log(LogLevel::warn, std::string("at exit: ") + error.what());
    }
  }
}

void release(std::shared_ptr<Engine>& engine) {
  if (!engine) return;
  if (engine->is_foreign()) {
    new std::shared_ptr<Engine>(std::move(engine));  // deliberately never destroyed
    return;
  }
  without_gil([&] { engine.reset(); });
}

void without_gil(const std::function<void()>& body) {
  if (!Py_IsInitialized() || !PyGILState_Check()) return body();
  PyThreadState* state = PyEval_SaveThread();
  try {
    body();
  } catch (...) {
    PyEval_RestoreThread(state);
    throw;
  }
  PyEval_RestoreThread(state);
}

}  // namespace rocenante
