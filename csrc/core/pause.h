// What a thread does between two looks at a word that another processor is about to write.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rocenante {

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // as long as a few tens of nanoseconds; `yield` is a no-op on most cores
#endif
}

}  // namespace rocenante
