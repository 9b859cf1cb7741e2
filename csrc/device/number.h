// Element types as kernels see them: what they are stored as, what they are computed in, and the
// way between. The bits are those of the CPU executor's reduce() (collective/reduce.h), NaN
// included: a NaN that is written is the positive quiet NaN without payload, whichever NaN came in
// and whatever the machine made of it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/float_formats.h"
#include "device/dialect.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace rocenante::device {

// Stored as bits; the Format says what they mean.
template <class Format, class Storage>
struct SmallFloat {
  Storage bits;
};
using Half = SmallFloat<Float16, uint16_t>;
using Bfloat = SmallFloat<BFloat16, uint16_t>;
using E4m3 = SmallFloat<Float8E4M3FN, uint8_t>;
using E5m2 = SmallFloat<Float8E5M2, uint8_t>;
struct Bool {
  uint8_t value;
};

// Integers are computed in 32 or 64 bits of their own signedness; the excess is cut off at the end,
// which is how they wrap.
template <class T>
struct Number {
  using Real = std::conditional_t<sizeof(T) == 8, T,
                                  std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>;
  static ROCENANTE_DEVICE Real widen(T v) { return v; }
  static ROCENANTE_DEVICE T narrow(Real v) { return static_cast<T>(v); }
};

template <>
struct Number<Bool> {
  using Real = uint32_t;
  static ROCENANTE_DEVICE Real widen(Bool v) { return v.value != 0; }
  static ROCENANTE_DEVICE Bool narrow(Real v) { return {static_cast<uint8_t>(v != 0)}; }
};

template <>
struct Number<float> {
  using Real = float;
  static ROCENANTE_DEVICE Real widen(float v) { return v; }
  static ROCENANTE_DEVICE float narrow(Real v) {
    return v != v ? __builtin_bit_cast(float, kFloatNan) : v;
  }
};

template <>
struct Number<double> {
  using Real = double;
  static ROCENANTE_DEVICE Real widen(double v) { return v; }
  static ROCENANTE_DEVICE double narrow(Real v) {
    return v != v ? __builtin_bit_cast(double, uint64_t{0x7ff8} << 48) : v;
  }
};

// On a GPU the float8 formats, too, go through these integer formulas: its own float8 instructions
// saturate where float8_e5m2 must overflow to infinity.
template <class Format, class Storage>
struct Number<SmallFloat<Format, Storage>> {
  using Real = float;
  static ROCENANTE_DEVICE Real widen(SmallFloat<Format, Storage> v) {
    return Format::template widen<float>(int32_t{v.bits});
  }
  static ROCENANTE_DEVICE SmallFloat<Format, Storage> narrow(Real v) {
    return {static_cast<Storage>(Format::template narrow<int32_t>(v))};
  }
};

#ifdef __CUDACC__
// The GPU's instructions round alike (to nearest, ties to even, denormals kept) but have a NaN of
// their own.
template <>
struct Number<Half> {
  using Real = float;
  static ROCENANTE_DEVICE Real widen(Half v) { return __half2float(__ushort_as_half(v.bits)); }
  static ROCENANTE_DEVICE Half narrow(Real v) {
    const uint16_t bits = __half_as_ushort(__float2half_rn(v));
    return {v != v ? static_cast<uint16_t>(Float16::kNan) : bits};
  }
};

template <>
struct Number<Bfloat> {
  using Real = float;
  static ROCENANTE_DEVICE Real widen(Bfloat v) { return __uint_as_float(uint32_t{v.bits} << 16); }
  static ROCENANTE_DEVICE Bfloat narrow(Real v) {
    const uint16_t bits = __bfloat16_as_ushort(__float2bfloat16_rn(v));
    return {v != v ? static_cast<uint16_t>(BFloat16::kNan) : bits};
  }
};
#endif

// A product that the compiler must not fuse with a later addition: it is rounded before it is sent,
// and the sender must add what its peers receive.
ROCENANTE_DEVICE float multiply(float a, float b) {
#ifdef __CUDACC__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
ROCENANTE_DEVICE double multiply(double a, double b) {
#ifdef __CUDACC__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

}  // namespace rocenante::device
