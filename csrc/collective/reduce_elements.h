// How the kernels see the element types: registers, and loads and stores that convert to and from
// the type that is computed in. Part of reduce_kernels.h; compiled once per instruction set, hence
// the unnamed namespace.
#pragma once

#include "collective/reduce_prelude.h"
//
#include "core/float_formats.h"

namespace rocenante {
namespace {

// Set by the including file: g++ 12 defines __AVX2__ and the like for command-line options only,
// not for its target pragma.
#if defined(ROCENANTE_KERNELS_AVX512)
constexpr int kRegisterBytes = 64;
constexpr const char* kLevel = "avx512";
#elif defined(ROCENANTE_KERNELS_AVX2)
constexpr int kRegisterBytes = 32;
constexpr const char* kLevel = "avx2";
#elif defined(__SSE2__)
constexpr int kRegisterBytes = 16;
constexpr const char* kLevel = "sse2";
#elif defined(__aarch64__)
constexpr int kRegisterBytes = 16;
constexpr const char* kLevel = "neon";
#else
constexpr int kRegisterBytes = 16;
constexpr const char* kLevel = "generic";
#endif

template <class T, int kLanes>
struct VecType {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <class T>
struct VecType<T, 1> {
  using type = T;
};
// kLanes values of T; one is a scalar, so that every formula below also serves the last few
// elements.
template <class T, int kLanes>
using Vec = typename VecType<T, kLanes>::type;

template <class V>
ROCENANTE_INLINE V load_bits(const char* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}

template <class V>
ROCENANTE_INLINE void store_bits(char* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

// Which NaN an addition returns depends on the instruction, on the order of its operands and on the
// architecture.
template <class Real, int kN>
ROCENANTE_INLINE Vec<Real, kN> canonical(Vec<Real, kN> value) {
  using Bits = std::conditional_t<sizeof(Real) == 4, int32_t, int64_t>;
  constexpr Bits kNan = sizeof(Real) == 4 ? Bits{kFloatNan} : static_cast<Bits>(kDoubleNan);
  const Vec<Real, kN> nan = __builtin_bit_cast(Vec<Real, kN>, Vec<Bits, kN>{} + kNan);
  return value == value ? value : nan;
}

// An element type E has:
//   Storage, and Real, which is computed in;
//   kLanes, the elements of a full register, and Acc<kN>, the accumulator of kN elements;
//   load<kN>(from); combine<kN, Op>(a, b); store<kN>(to, acc, finish), where finish(Vec<Real, n>)
//   comes before rounding.

template <class T>
struct Plain {
  using Storage = T;
  using Real = T;
  static constexpr int kLanes = kRegisterBytes / sizeof(T);
  template <int kN>
  using Acc = Vec<T, kN>;

  template <int kN>
  static ROCENANTE_INLINE Acc<kN> load(const char* from) {
    return load_bits<Acc<kN>>(from);
  }
  template <int kN, class Op>
  static ROCENANTE_INLINE Acc<kN> combine(Acc<kN> a, Acc<kN> b) {
    return Op::apply(a, b);
  }
  template <int kN, class Finish>
  static ROCENANTE_INLINE void store(char* to, Acc<kN> acc, const Finish& finish) {
    store_bits(to, canonical<T, kN>(finish(acc)));
  }
};

// A narrow format, kParts elements to a 32-bit lane. First, second, ... elements of the lanes are
// accumulated apart, so none ever moves to another lane.
template <class Format, class Bits>
struct Packed {
  using Storage = Bits;
  using Real = float;
  static constexpr int kLanes = kRegisterBytes / sizeof(Bits);
  static constexpr int kParts = sizeof(int32_t) / sizeof(Bits);
  static constexpr int kBits = 8 * sizeof(Bits);

  template <int kN>
  struct Parts {
    static constexpr int kCount = kN == 1 ? 1 : kParts;  // a single element has no lane to share
    static constexpr int kWidth = kN / kCount;
    Vec<float, kWidth> part[kCount];
  };
  template <int kN>
  using Acc = Parts<kN>;

  template <int kN>
  static ROCENANTE_INLINE Acc<kN> load(const char* from) {
    using Lanes = Vec<int32_t, Acc<kN>::kWidth>;
    const Lanes lanes = load_lanes<kN>(from);
    Acc<kN> acc;
    for (int p = 0; p < acc.kCount; ++p) {
      const Lanes bits = (lanes >> (p * kBits)) & ((1 << kBits) - 1);
      acc.part[p] = Format::template widen<Vec<float, acc.kWidth>>(bits);
    }
    return acc;
  }
  template <int kN, class Op>
  static ROCENANTE_INLINE Acc<kN> combine(Acc<kN> a, Acc<kN> b) {
    for (int p = 0; p < a.kCount; ++p) a.part[p] = Op::apply(a.part[p], b.part[p]);
    return a;
  }
  template <int kN, class Finish>
  static ROCENANTE_INLINE void store(char* to, Acc<kN> acc, const Finish& finish) {
    using Lanes = Vec<int32_t, Acc<kN>::kWidth>;
    Lanes lanes{};
    for (int p = 0; p < acc.kCount; ++p) {
      lanes |= Format::template narrow<Lanes>(finish(acc.part[p])) << (p * kBits);
    }
    if constexpr (kN == 1) {
      store_bits(to, static_cast<Bits>(lanes));
    } else {
      store_bits(to, lanes);
    }
  }

 private:
  template <int kN>
  static ROCENANTE_INLINE auto load_lanes(const char* from) {
    if constexpr (kN == 1) {
      return int32_t{load_bits<Bits>(from)};
    } else {
      return load_bits<Vec<int32_t, kN / kParts>>(from);
    }
  }
};

// bfloat16 is the upper half of a float, which saves most of the shifting.
struct Brain : Packed<BFloat16, uint16_t> {
  using Base = Packed<BFloat16, uint16_t>;

  template <int kN>
  static ROCENANTE_INLINE Acc<kN> load(const char* from) {
    if constexpr (kN == 1) {
      return Base::load<kN>(from);
    } else {
      using Floats = Vec<float, kN / 2>;
      const auto lanes = load_bits<Vec<uint32_t, kN / 2>>(from);
      return {{__builtin_bit_cast(Floats, lanes << 16),
               __builtin_bit_cast(Floats, lanes & 0xffff0000)}};
    }
  }
  template <int kN, class Finish>
  static ROCENANTE_INLINE void store(char* to, Acc<kN> acc, const Finish& finish) {
    if constexpr (kN == 1) {
      Base::store<kN>(to, acc, finish);
    } else {
      const auto low = rounded<kN / 2>(finish(acc.part[0]));
      const auto high = rounded<kN / 2>(finish(acc.part[1]));
      store_bits(to, (low >> 16) | (high & 0xffff0000));
    }
  }

 private:
  // The result is in the upper half. kFloatNan becomes BFloat16::kNan without further care.
  template <int kN>
  static ROCENANTE_INLINE Vec<uint32_t, kN> rounded(Vec<float, kN> value) {
    const auto bits = __builtin_bit_cast(Vec<uint32_t, kN>, canonical<float, kN>(value));
    return bits + 0x7fff + ((bits >> 16) & 1);
  }
};

#if defined(ROCENANTE_KERNELS_AVX512) || defined(ROCENANTE_KERNELS_AVX2) || defined(__aarch64__)
// float16 by the processor's own conversions. They keep some bits of a NaN, but turn kFloatNan into
// Float16::kNan.
struct Half : Plain<float> {
  using Storage = uint16_t;

  template <int kN>
  static ROCENANTE_INLINE Acc<kN> load(const char* from) {
    if constexpr (kN == 1) {
      return Float16::widen<float>(int32_t{load_bits<uint16_t>(from)});
#if defined(__aarch64__)
    } else {
      static_assert(kN == 4);
      return vcvt_f32_f16(load_bits<float16x4_t>(from));
#else
    } else if constexpr (kN == 4) {
      return _mm_cvtph_ps(_mm_cvtsi64_si128(load_bits<int64_t>(from)));
    } else if constexpr (kN == 8) {
      return _mm256_cvtph_ps(load_bits<__m128i>(from));
    } else {
      static_assert(kN == 16);
      return _mm512_cvtph_ps(load_bits<__m256i>(from));
#endif
    }
  }
  template <int kN, class Finish>
  static ROCENANTE_INLINE void store(char* to, Acc<kN> acc, const Finish& finish) {
    const auto value = canonical<float, kN>(finish(acc));
    if constexpr (kN == 1) {
      store_bits(to, static_cast<uint16_t>(Float16::narrow<int32_t>(value)));
#if defined(__aarch64__)
    } else {
      store_bits(to, vcvt_f16_f32(value));
#else
    } else if constexpr (kN == 4) {
      store_bits(to, _mm_cvtsi128_si64(_mm_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)));
    } else if constexpr (kN == 8) {
      store_bits(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    } else {
      store_bits(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
#endif
    }
  }
};
#else
using Half = Packed<Float16, uint16_t>;
#endif

}  // namespace
}  // namespace rocenante
