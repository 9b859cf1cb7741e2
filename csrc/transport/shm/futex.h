// Sleeping on a word of shared memory, and waking who sleeps there.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "core/clock.h"

namespace rocenante::shm {

// Returns when woken, when `word` no longer holds `expected`, or after `budget`: the caller looks
// again.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Milliseconds budget) {
  const timespec t{budget.count() / 1000, (budget.count() % 1000) * 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  word.fetch_add(1);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rocenante::shm
