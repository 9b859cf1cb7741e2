#include "device/emulator.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <vector>

// The sanitizers' fiber interfaces, weak: present if and only if the program is built with them, so
// one object file of this scheduler serves all builds.
extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                                  size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom_old,
                                                   size_t* size_old);
}

namespace rocenante::emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr uint64_t kNanosecondsPerSwitch = 50;
constexpr unsigned kTsanNoSync = 1;  // a switch orders nothing: emulated threads are concurrent

// Below a stack lies a page that nobody may touch: an overflow is a fault here, not corruption
// there.
class Stack {
 public:
  Stack() {
    const size_t guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = kStackBytes + guard;
    base_ = static_cast<char*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_, guard, PROT_NONE) != 0) throw std::bad_alloc();
    bottom_ = base_ + guard;
  }
  ~Stack() { munmap(base_, bytes_); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  char* bottom() const { return bottom_; }

 private:
  size_t bytes_;
  char* base_;
  char* bottom_;
};

struct Fiber : Thread {
  std::function<void()> body;
  ucontext_t context{};
  std::unique_ptr<Stack> stack;  // none: run()'s own
  void* tsan = nullptr;
};

// One OS thread runs it all, so plain variables do.
Fiber home;
Fiber* current = &home;
std::vector<std::unique_ptr<Fiber>> all;
std::vector<Fiber*> ready[2];  // threads of blocks; others
uint64_t random_state;
uint64_t switch_limit;
Clock run_clock;
uint64_t pauses, pauses_per_yield;
Run progress;
std::exception_ptr first_error;
const void* home_bottom;
size_t home_bytes;

// xorshift64 (Marsaglia 2003).
uint64_t random_number() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

Fiber* pick() {
  if (progress.switches >= switch_limit) return &home;
  const unsigned kind = ready[1].empty() ? 0 : ready[0].empty() ? 1 : random_number() >> 20 & 1;
  const auto& candidates = ready[kind];
  if (candidates.empty()) return &home;
  const uint64_t index = random_number() % candidates.size();
  progress.trace = (progress.trace ^ (index << 1 | kind)) * 0x100000001b3;
  return candidates[index];
}

void finish_switch(void* fake_stack) {
  if (!__sanitizer_finish_switch_fiber) return;
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
  if (!home_bottom) {  // the first switch of a run leaves run()'s own stack
    home_bottom = bottom;
    home_bytes = bytes;
  }
}

void switch_to(Fiber* next, bool last) {
  Fiber* const me = current;
  current = next;
  ++progress.switches;
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(next->tsan, kTsanNoSync);
  void* fake_stack = nullptr;
  if (__sanitizer_start_switch_fiber) {
    __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack,
                                   next->stack ? next->stack->bottom() : home_bottom,
                                   next->stack ? kStackBytes : home_bytes);
  }
  if (last) {
    setcontext(&next->context);
  } else {
    swapcontext(&me->context, &next->context);
  }
  finish_switch(fake_stack);
}

void entry() {
  finish_switch(nullptr);
  try {
    current->body();
  } catch (...) {
    if (!first_error) first_error = std::current_exception();
  }
  auto& mine = ready[current->block == nullptr];
  for (Fiber*& fiber : mine) {
    if (fiber != current) continue;
    fiber = mine.back();
    mine.pop_back();
    break;
  }
  if (__tsan_release)
    __tsan_release(&home);  // what follows run() comes after all that any fiber did
  switch_to(pick(), true);
}

void hop() {
  Fiber* const next = pick();
  if (next != current) {
    switch_to(next, false);
  } else {
    ++progress.switches;  // time passes for the last one, too
  }
}

}  // namespace

Thread* self() { return current; }

void pause() {
  // What a fiber waits for may come from another thread, and that may need this processor.
  if (run_clock == Clock::wall && ++pauses % pauses_per_yield == 0) sched_yield();
  hop();
}

void step() {
  if (random_number() % 4 == 0) hop();
}

uint64_t nanoseconds() {
  if (run_clock == Clock::switches) return progress.switches * kNanosecondsPerSwitch;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void spawn(Block* block, unsigned thread, std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->block = block;
  fiber->index = thread;
  fiber->body = std::move(body);
  all.push_back(std::move(fiber));
}

Run run(uint64_t seed, uint64_t limit, Clock clock) {
  run_clock = clock;
  cpu_set_t mine;
  const bool alone = sched_getaffinity(0, sizeof mine, &mine) == 0 && CPU_COUNT(&mine) == 1;
  pauses_per_yield = alone ? 16 : 256;
  random_state = seed * 0x9e3779b97f4a7c15 | 1;
  switch_limit = limit;
  progress = {};
  first_error = nullptr;
  home_bottom = nullptr;
  current = &home;
  if (__tsan_get_current_fiber) home.tsan = __tsan_get_current_fiber();
  for (const auto& fiber : all) {
    fiber->stack = std::make_unique<Stack>();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack->bottom();
    fiber->context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber->context, entry, 0);
    if (__tsan_create_fiber) fiber->tsan = __tsan_create_fiber(0);
    ready[fiber->block == nullptr].push_back(fiber.get());
  }
  Fiber* const first = pick();
  if (first != &home) switch_to(first, false);
  if (!ready[0].empty() || !ready[1].empty()) {
    std::fprintf(stderr, "emulator: %zu threads and %zu others still run after %llu switches\n",
                 ready[0].size(), ready[1].size(),
                 static_cast<unsigned long long>(progress.switches));
    std::_Exit(kStuckExit);
  }
  if (__tsan_acquire) __tsan_acquire(&home);
  for (const auto& fiber : all) {
    if (__tsan_destroy_fiber) __tsan_destroy_fiber(fiber->tsan);
  }
  all.clear();
  if (first_error) std::rethrow_exception(first_error);
  return progress;
}

}  // namespace rocenante::emulator
