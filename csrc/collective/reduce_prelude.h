// Everything that reduce_kernels.h needs from elsewhere, to be included before an instruction set
// is chosen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "collective/reduce_table.h"
