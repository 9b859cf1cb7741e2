// Element types, reductions and collectives: the names and sizes that every layer shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rocenante {

// No communicator is larger; arrays indexed by rank in shared memory have this length.
inline constexpr int kMaxRanks = 64;
// Two ranks of different hosts are joined by at most this many ports of each.
inline constexpr size_t kMaxRails = 4;

enum class DType : uint8_t {
  boolean,
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
  float8_e4m3fn,
  float8_e5m2,
};
inline constexpr int kDTypeCount = 17;

enum class ReduceOp : uint8_t { sum, avg, product, min, max, band, bor, bxor, premul_sum };
inline constexpr int kReduceOpCount = 9;

enum class Collective : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  all_to_all_v,
  broadcast,
  reduce,
  gather,
  scatter,
  barrier,
};

enum class Algorithm : uint8_t { direct, one_shot, two_shot };

// A reduction: the operator and, for premul_sum alone, the factor that this rank's contribution is
// multiplied by (computed in float or double, rounded to the element type before it is sent).
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1.0;
};

size_t size_of(DType dtype);
std::string_view name_of(DType dtype);
std::string_view name_of(ReduceOp op);
std::string_view name_of(Collective collective);
std::string_view name_of(Algorithm algorithm);

inline bool is_floating(DType t) {
  return (t >= DType::float16 && t <= DType::float64) || t == DType::float8_e4m3fn ||
         t == DType::float8_e5m2;
}
inline bool is_complex(DType t) { return t == DType::complex64 || t == DType::complex128; }

// Throws Error(ErrorKind::usage) with the reason where `op` has no meaning for `dtype`.
void check_reduction(DType dtype, ReduceOp op);

}  // namespace rocenante
