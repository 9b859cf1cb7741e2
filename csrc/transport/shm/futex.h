// Sleeping on a word of shared memory, and waking who sleeps there.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace rocenante::shm {

// Returns when woken, when `word` no longer holds `expected`, or after `budget` nanoseconds: the
// caller looks again.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t budget) {
  const timespec t{static_cast<time_t>(budget / 1'000'000'000),
                   static_cast<long>(budget % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  word.fetch_add(1);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rocenante::shm
