// Conversions between float and the narrow formats, by integer arithmetic and one float addition,
// so that the bits do not depend on the machine. They are branch-free and templates over scalars or
// GCC vector types: the reduction kernels run them on whole registers, everything else uses the
// scalar functions at the end.
//
// Narrowing rounds to nearest, ties to even, as torch's casts do: float16, bfloat16 and float8_e5m2
// overflow to infinity; float8_e4m3fn, which has none, saturates at 448. Every NaN narrows to the
// format's kNan, whatever its sign and payload: torch keeps some of those bits, and which ones
// depends on the instructions it was built with. Widening is exact.
//
// No denormal float is computed with (except that one may be added to a much larger number, which
// loses nothing when it is flushed), so neither flush-to-zero modes nor slow denormal arithmetic
// matter.
#pragma once

#include <cstdint>

// Always inlined: files compiled for newer instruction sets must not emit a copy that the linker
// could then choose for everyone.
#define ROCENANTE_INLINE __attribute__((always_inline)) inline

namespace rocenante {

inline constexpr int32_t kFloatInfinity = 0x7f800000;
inline constexpr int32_t kFloatNan = 0x7fc00000;
inline constexpr int64_t kDoubleInfinity = 0x7ff0000000000000;
inline constexpr int64_t kDoubleNan = 0x7ff8000000000000;

// uint32_t or a vector of them, like Int.
template <class Int>
struct UnsignedLanes {
  typedef uint32_t type __attribute__((vector_size(sizeof(Int))));
};
template <>
struct UnsignedLanes<int32_t> {
  using type = uint32_t;
};

template <int kExponentBits, int kFractionBits, bool kHasInfinity, int32_t kNanBits>
struct SmallFormat {
  static constexpr int kFraction = kFractionBits;
  static constexpr int kWidth = kExponentBits + kFractionBits;  // without the sign
  static constexpr int32_t kNan = kNanBits;
  static constexpr int32_t kInfinity = ((1 << kExponentBits) - 1) << kFraction;
  static constexpr int32_t kLargest = kHasInfinity ? kInfinity - 1 : kNan - 1;
  static constexpr int32_t kOverflow = kHasInfinity ? kInfinity : kLargest;

  static constexpr int kShift = 23 - kFraction;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int32_t kRebias = (127 - kBias) << 23;
  static constexpr int32_t kSmallestNormal = (128 - kBias) << 23;  // as float
  // A float whose last place is worth this format's smallest denormal: adding it rounds there.
  static constexpr int32_t kDenormalRounder = (128 - kBias + kShift) << 23;
  static constexpr int32_t kOverflowFrom =
      (kLargest << kShift) + kRebias + (1 << (kShift - 1));  // half a place above the largest

  // `bits` are zero-extended.
  template <class Float, class Int>
  static ROCENANTE_INLINE constexpr Float widen(Int bits) {
    const Int magnitude = bits & ((1 << kWidth) - 1);
    const Int shifted = magnitude << kShift;
    const Int normal = shifted + kRebias;
    const Float above = __builtin_bit_cast(Float, shifted + kSmallestNormal);
    const Float base = __builtin_bit_cast(Float, Int{} + kSmallestNormal);
    const Int denormal = __builtin_bit_cast(Int, above - base);
    Int result = magnitude < (1 << kFraction) ? denormal : normal;
    const Int special = kHasInfinity ? normal + kRebias : Int{} + kFloatNan;
    result = magnitude > kLargest ? special : result;
    return __builtin_bit_cast(Float, result | ((bits >> kWidth) << 31));
  }

  template <class Int, class Float>
  static ROCENANTE_INLINE constexpr Int narrow(Float value) {
    const Int bits = __builtin_bit_cast(Int, value);
    const Int magnitude = bits & 0x7fffffff;
    const Int odd = (magnitude >> kShift) & 1;
    const Int normal = (magnitude - kRebias + ((1 << (kShift - 1)) - 1) + odd) >> kShift;
    const Float rounder = __builtin_bit_cast(Float, Int{} + kDenormalRounder);
    const Int denormal =
        __builtin_bit_cast(Int, __builtin_bit_cast(Float, magnitude) + rounder) - kDenormalRounder;
    Int result = magnitude < kSmallestNormal ? denormal : normal;
    result = magnitude >= kOverflowFrom ? Int{} + kOverflow : result;
    result = result | ((bits >> (31 - kWidth)) & (1 << kWidth));
    return magnitude > kFloatInfinity ? Int{} + kNan : result;
  }
};

using Float16 = SmallFormat<5, 10, true, 0x7e00>;
using Float8E4M3FN = SmallFormat<4, 3, false, 0x7f>;
using Float8E5M2 = SmallFormat<5, 2, true, 0x7f>;

struct BFloat16 {
  static constexpr int32_t kNan = 0x7fc0;
  static constexpr int32_t kLargest = 0x7f7f;
  static constexpr int32_t kInfinity = 0x7f80;

  template <class Float, class Int>
  static ROCENANTE_INLINE constexpr Float widen(Int bits) {
    return __builtin_bit_cast(Float, bits << 16);
  }

  template <class Int, class Float>
  static ROCENANTE_INLINE constexpr Int narrow(Float value) {
    using Unsigned = typename UnsignedLanes<Int>::type;
    const Int magnitude = __builtin_bit_cast(Int, value) & 0x7fffffff;
    const Unsigned bits = __builtin_bit_cast(Unsigned, value);
    const Int rounded = __builtin_bit_cast(Int, (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    return magnitude > kFloatInfinity ? Int{} + kNan : rounded;
  }
};

constexpr float float16_to_float(uint16_t bits) { return Float16::widen<float>(int32_t{bits}); }
constexpr float bfloat16_to_float(uint16_t bits) { return BFloat16::widen<float>(int32_t{bits}); }
constexpr float float8_e4m3fn_to_float(uint8_t bits) {
  return Float8E4M3FN::widen<float>(int32_t{bits});
}
constexpr float float8_e5m2_to_float(uint8_t bits) {
  return Float8E5M2::widen<float>(int32_t{bits});
}

constexpr uint16_t float_to_float16(float value) {
  return static_cast<uint16_t>(Float16::narrow<int32_t>(value));
}
constexpr uint16_t float_to_bfloat16(float value) {
  return static_cast<uint16_t>(BFloat16::narrow<int32_t>(value));
}
constexpr uint8_t float_to_float8_e4m3fn(float value) {
  return static_cast<uint8_t>(Float8E4M3FN::narrow<int32_t>(value));
}
constexpr uint8_t float_to_float8_e5m2(float value) {
  return static_cast<uint8_t>(Float8E5M2::narrow<int32_t>(value));
}

}  // namespace rocenante
