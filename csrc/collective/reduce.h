// Reduction of one buffer per rank, in rank order (invariant I4: the same bits on every rank).
#pragma once

#include <cstddef>

#include "core/types.h"

namespace rocenante {

// out[i] = in[0][i] op in[1][i] op ... op in[ranks - 1][i], evaluated from left to right. float16,
// bfloat16 and the float8 types accumulate in float and are rounded once at the end; avg divides
// before that rounding. `ranks` >= 1, any count, any alignment. `out` may be one of the inputs but
// may not overlap them otherwise.
//
// The result does not depend on the instruction set in use, nor on the architecture:
// - integers wrap; bools come out as 0 or 1, whatever nonzero value went in;
// - a NaN result is the positive quiet NaN without payload, whichever NaN or invalid operation it
// came from;
// - min and max give NaN if any rank holds one, and order -0 below +0.
//
// Throws usage where the operation has no meaning for the type (see check_reduction).
void reduce(DType dtype, ReduceOp op, void* out, const void* const* in, int ranks, size_t count);

// out[i] = in[i] * factor, rounded to the type: what a rank does to its contribution in premul_sum.
// Float and complex types only; the factor and the product are double for float64 and complex128,
// float for all others. `in` may equal `out`.
void premultiply(DType dtype, double factor, void* out, const void* in, size_t count);

// The instruction set in use: "avx512", "avx2", "sse2", "neon" or "generic".
const char* simd_level();

}  // namespace rocenante
