// The words that kernels are written in. Under nvcc each is one or two PTX instructions; under any
// other compiler the same words drive the emulator, so that the one source of every kernel runs on
// a CPU, races and all, where ThreadSanitizer finds the order that is missing.
//
// Scope is always .sys: the other side of every ordered access is a NIC, a CPU or another GPU. The
// emulator cannot tell scopes apart; scripts/check_kernels.py does, from the PTX.
//
// Read-modify-write words act on device memory only: not every system carries atomics between GPU
// and CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define ROCENANTE_DEVICE __device__ __forceinline__
#define ROCENANTE_DEVICE_CALL __device__ __noinline__
#define ROCENANTE_UNROLL _Pragma("unroll")
#define ROCENANTE_ROLLED _Pragma("unroll 1")
#else
#include "device/emulator.h"
#define ROCENANTE_DEVICE inline
#define ROCENANTE_DEVICE_CALL inline
#define ROCENANTE_UNROLL
#define ROCENANTE_ROLLED
#endif

namespace rocenante::device {

// What one thread moves at a time.
struct alignas(16) Vector {
  uint32_t word[4];
};

// Two words of the LL protocol, each of them data << 0 | sequence << 32 and each written whole.
struct alignas(16) LinePair {
  uint64_t first, second;
};

#ifdef __CUDACC__

ROCENANTE_DEVICE unsigned thread() { return threadIdx.x; }
ROCENANTE_DEVICE unsigned threads() { return blockDim.x; }
ROCENANTE_DEVICE unsigned block() { return blockIdx.x; }
ROCENANTE_DEVICE unsigned blocks() { return gridDim.x; }

// Barrier of the block; true on all its threads if any of them voted true.
ROCENANTE_DEVICE bool sync_or(bool vote) { return __syncthreads_or(vote); }
ROCENANTE_DEVICE void sync() { __syncthreads(); }

ROCENANTE_DEVICE void pause() { __nanosleep(20); }
// How often a waiting thread asks before it looks at the clock and the abort word, which may be
// slower.
ROCENANTE_DEVICE constexpr unsigned polls_per_look() { return 64; }
ROCENANTE_DEVICE uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

ROCENANTE_DEVICE uint64_t load_acquire(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
ROCENANTE_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
ROCENANTE_DEVICE void store_release(uint64_t* p, uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
ROCENANTE_DEVICE void store_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
ROCENANTE_DEVICE uint64_t fetch_or(uint64_t* p, uint64_t bits) {
  uint64_t v;
  asm volatile("atom.acq_rel.sys.global.or.b64 %0, [%1], %2;"
               : "=l"(v)
               : "l"(p), "l"(bits)
               : "memory");
  return v;
}

// Reads both words, each whole, whoever writes them meanwhile; fence() orders what they showed.
ROCENANTE_DEVICE LinePair load_lines(const LinePair* p) {
  LinePair v;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.first), "=l"(v.second)
               : "l"(p)
               : "memory");
  return v;
}
ROCENANTE_DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Plain data.
template <class V>
ROCENANTE_DEVICE V load(const V* p) {
  return *p;
}
template <class V>
ROCENANTE_DEVICE void store(V* p, const V& v) {
  *p = v;
}

#else

inline unsigned thread() { return emulator::self()->index; }
inline unsigned threads() { return emulator::self()->block->threads; }
inline unsigned block() { return emulator::self()->block->index; }
inline unsigned blocks() { return emulator::self()->block->blocks; }

inline bool sync_or(bool vote) { return emulator::self()->block->barrier.wait(vote); }
inline void sync() { sync_or(false); }

inline void pause() { emulator::pause(); }
inline constexpr unsigned polls_per_look() { return 4; }
inline uint64_t nanoseconds() { return emulator::nanoseconds(); }

inline uint64_t load_acquire(const uint64_t* p) {
  emulator::step();
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
inline uint64_t load_relaxed(const uint64_t* p) {
  emulator::step();
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
inline void store_release(uint64_t* p, uint64_t v) {
  emulator::step();
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
inline void store_relaxed(uint64_t* p, uint64_t v) {
  emulator::step();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
inline uint64_t fetch_or(uint64_t* p, uint64_t bits) {
  emulator::step();
  return __atomic_fetch_or(p, bits, __ATOMIC_ACQ_REL);
}

// ThreadSanitizer does not model fences, so here each word is acquired by itself and fence() is
// nothing: a missing fence() is the one missing order that emulation does not find.
inline LinePair load_lines(const LinePair* p) {
  return {load_acquire(&p->first), load_acquire(&p->second)};
}
inline void fence() {}

template <class V>
inline V load(const V* p) {
  emulator::step();
  return *p;
}
template <class V>
inline void store(V* p, const V& v) {
  emulator::step();
  *p = v;
}

#endif

}  // namespace rocenante::device
