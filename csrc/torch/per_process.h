// Process-wide state that survives fork().
#pragma once

#include <atomic>

#include "core/fork.h"

namespace rocenante {

// The T of this process. A forked child gets one of its own, since a lock in its parent's may have
// been held in the moment of the fork. Never destroyed: threads may use it until the process ends.
template <class T>
T& per_process() {
  struct Owned {
    uint64_t generation;
    T value;
  };
  static std::atomic<Owned*> current{nullptr};
  Owned* owned = current.load(std::memory_order_acquire);
  while (!owned || owned->generation != fork_generation()) {
    auto* fresh = new Owned{fork_generation(), {}};
    if (current.compare_exchange_strong(owned, fresh, std::memory_order_acq_rel))
      return fresh->value;
    delete fresh;
  }
  return owned->value;
}

}  // namespace rocenante
