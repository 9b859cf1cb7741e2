// A GPU's threads on a CPU, for tests: every thread of every emulated grid is a fiber of one OS
// thread, and a seeded random scheduler decides at each step who runs next, so that a failing run
// repeats exactly from its seed. Time is counted in switches for the same reason.
//
// emulator.cc is compiled without sanitizers and its callers with them: ThreadSanitizer and
// AddressSanitizer are told of every switch between fibers, and must not watch the scheduler
// itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace rocenante::emulator {

void pause();  // lets others run
void step();   // perhaps lets others run: called by every access to memory that others see
uint64_t nanoseconds();  // see Clock

// A block's barrier and vote in one. Made of plain atomics, so that ThreadSanitizer sees the order
// that it establishes, and no other.
class Barrier {
 public:
  explicit Barrier(unsigned threads) : threads_(threads) {}
  // Waits for all threads; true on all of them if any of them voted true.
  bool wait(bool vote) {
    const unsigned turn = turn_.load(std::memory_order_relaxed);
    if (vote) votes_[turn & 1].store(true, std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      // The other vote is over: whoever is here has read it.
      votes_[~turn & 1].store(false, std::memory_order_relaxed);
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
    } else {
      while (turn_.load(std::memory_order_acquire) == turn) pause();
    }
    return votes_[turn & 1].load(std::memory_order_relaxed);
  }

 private:
  const unsigned threads_;
  std::atomic<unsigned> arrived_{0};
  std::atomic<unsigned> turn_{0};
  std::atomic<bool> votes_[2]{};
};

struct Block {
  Block(unsigned index_, unsigned blocks_, unsigned threads_)
      : index(index_), blocks(blocks_), threads(threads_), barrier(threads_) {}
  const unsigned index;
  unsigned blocks;  // of the launch: may change between launches
  const unsigned threads;
  Barrier barrier;
};

struct Thread {
  Block* block = nullptr;
  unsigned index = 0;
};
Thread* self();

// Adds a fiber to the next run(). One without a block is a device of another kind (a NIC, a host
// thread); those get half of all turns, however few they are.
void spawn(Block* block, unsigned thread, std::function<void()> body);

// switches: time grows by a fixed amount with every switch between fibers, so that a seed repeats
// its run. wall: for grids that exchange with real threads or processes, which nothing repeats.
enum class Clock { switches, wall };

struct Run {
  uint64_t switches = 0;
  uint64_t trace = 0;  // hash of every decision of the scheduler
};

// How the process ends if there is no end after `limit` switches: somebody waits without a bound,
// and fibers cannot be ended from outside.
inline constexpr int kStuckExit = 3;

// Runs all spawned fibers until they have ended. Throws what a fiber threw first.
Run run(uint64_t seed, uint64_t limit, Clock clock = Clock::switches);

}  // namespace rocenante::emulator
