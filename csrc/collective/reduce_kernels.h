// The reduction kernels, written once with GCC's vector types and compiled once per instruction
// set: each reduce_<set>.cc includes this. Everything is in an unnamed namespace, so that the
// linker can't share code between the sets.
#pragma once

#include "collective/reduce_elements.h"
#include "collective/reduce_loops.h"
//
#include "collective/reduce_prelude.h"

namespace rocenante {
namespace {

struct Add {
  template <class V>
  static ROCENANTE_INLINE V apply(V a, V b) {
    return a + b;
  }
};

struct Multiply {
  template <class V>
  static ROCENANTE_INLINE V apply(V a, V b) {
    // uint16_t would be promoted to int, whose overflow is undefined.
    if constexpr (std::is_integral_v<V>) {
      return static_cast<V>(uint64_t{a} * b);
    } else {
      return a * b;
    }
  }
};

struct Lesser {
  template <class V>
  static ROCENANTE_INLINE V apply(V a, V b) {
    return b < a ? b : a;
  }
};

struct Greater {
  template <class V>
  static ROCENANTE_INLINE V apply(V a, V b) {
    return a < b ? b : a;
  }
};

struct And {
  template <class V>
  static ROCENANTE_INLINE V apply(V a, V b) {
    return a & b;
  }
};

struct Or {
  template <class V>
  static ROCENANTE_INLINE V apply(V a, V b) {
    return a | b;
  }
};

struct Xor {
  template <class V>
  static ROCENANTE_INLINE V apply(V a, V b) {
    return a ^ b;
  }
};

// A kernel has: kBytes per element, kLanes in a full register, Acc<kN>, load, combine, store, and
// kPairs: whether two ranks get a loop of their own (see reduce_loops.h).

template <class T, class Op>
struct Integer {
  static constexpr bool kPairs = false;
  static constexpr size_t kBytes = sizeof(T);
  static constexpr int kLanes = kRegisterBytes / sizeof(T);
  template <int kN>
  using Acc = Vec<T, kN>;

  template <int kN>
  static ROCENANTE_INLINE Acc<kN> load(const char* from) {
    return load_bits<Acc<kN>>(from);
  }
  template <int kN>
  static ROCENANTE_INLINE Acc<kN> combine(Acc<kN> a, Acc<kN> b) {
    return static_cast<Acc<kN>>(Op::apply(a, b));
  }
  template <int kN>
  ROCENANTE_INLINE void store(char* to, Acc<kN> value) const {
    store_bits(to, value);
  }
};

template <class Op>
struct Boolean : Integer<uint8_t, Op> {
  template <int kN>
  static ROCENANTE_INLINE Vec<uint8_t, kN> load(const char* from) {
    return Lesser::apply(load_bits<Vec<uint8_t, kN>>(from),
                         Vec<uint8_t, kN>(Vec<uint8_t, kN>{} + uint8_t{1}));
  }
};

// The order of IEEE 754's minimum and maximum on the bit patterns themselves: as integers, once the
// negative numbers are turned round and all patterns are shifted, with wrap-around, so far that the
// NaNs of the other sign join the ones which win.
template <class Int, Int kLargest, Int kNan, class Op>
struct Ordered {
  static constexpr bool kPairs = false;
  static constexpr size_t kBytes = sizeof(Int);
  static constexpr int kLanes = kRegisterBytes / sizeof(Int);
  template <int kN>
  using Acc = Vec<Int, kN>;

  template <int kN>
  static ROCENANTE_INLINE Acc<kN> load(const char* from) {
    return shifted<kN>(turned<kN>(load_bits<Acc<kN>>(from)), kMax ? -kNans : kNans);
  }
  template <int kN>
  static ROCENANTE_INLINE Acc<kN> combine(Acc<kN> a, Acc<kN> b) {
    return Op::apply(a, b);
  }
  template <int kN>
  ROCENANTE_INLINE void store(char* to, Acc<kN> acc) const {
    const Acc<kN> nan = Acc<kN>{} + kNan;
    const Acc<kN> number = turned<kN>(shifted<kN>(acc, kMax ? kNans : -kNans));
    if constexpr (kMax) {
      store_bits(to, Acc<kN>(acc > Int{kLargest - kNans} ? nan : number));
    } else {
      store_bits(to, Acc<kN>(acc < Int{-kLargest - 1 + kNans} ? nan : number));
    }
  }

 private:
  using Unsigned = std::make_unsigned_t<Int>;
  static constexpr bool kMax = std::is_same_v<Op, Greater>;
  static constexpr Int kMagnitude = std::numeric_limits<Int>::max();
  static constexpr Int kNans = kMagnitude - kLargest;  // of each sign

  template <int kN>
  static ROCENANTE_INLINE Acc<kN> turned(Acc<kN> bits) {
    const Acc<kN> flip = bits < 0 ? Acc<kN>{} + kMagnitude : Acc<kN>{};
    return bits ^ flip;
  }
  template <int kN>
  static ROCENANTE_INLINE Acc<kN> shifted(Acc<kN> bits, Int by) {
    using Wrapping = Vec<Unsigned, kN>;
    const auto sum =
        static_cast<Wrapping>(__builtin_bit_cast(Wrapping, bits) + static_cast<Unsigned>(by));
    return __builtin_bit_cast(Acc<kN>, sum);
  }
};

// What is done to a sum before it is rounded.
template <class Real>
struct Unchanged {
  template <class V>
  ROCENANTE_INLINE V operator()(V value) const {
    return value;
  }
};

template <class Real>
struct Times {
  Real factor;
  template <class V>
  ROCENANTE_INLINE V operator()(V value) const {
    return value * factor;
  }
};

template <class Real>
struct Over {
  Real divisor;
  template <class V>
  ROCENANTE_INLINE V operator()(V value) const {
    return value / divisor;
  }
};

template <class Element, class Op, template <class> class Finish = Unchanged>
struct Floating {
  using Real = typename Element::Real;
  static constexpr size_t kBytes = sizeof(typename Element::Storage);
  static constexpr bool kPairs =
      std::is_same_v<Op, Add> && std::is_same_v<Finish<Real>, Unchanged<Real>> && kBytes > 1;
  static constexpr int kLanes = Element::kLanes;
  template <int kN>
  using Acc = typename Element::template Acc<kN>;

  template <int kN>
  static ROCENANTE_INLINE Acc<kN> load(const char* from) {
    return Element::template load<kN>(from);
  }
  template <int kN>
  static ROCENANTE_INLINE Acc<kN> combine(Acc<kN> a, Acc<kN> b) {
    return Element::template combine<kN, Op>(a, b);
  }
  template <int kN>
  ROCENANTE_INLINE void store(char* to, Acc<kN> acc) const {
    Element::template store<kN>(to, acc, finish);
  }

  Finish<Real> finish;
};

template <class Kernel>
void run(void* out, const void* const* in, int ranks, size_t count) {
  reduce_all(Kernel{}, static_cast<char*>(out), reinterpret_cast<const char* const*>(in), ranks,
             count);
}

template <class Element>
using Scaled = Floating<Element, Add, Times>;
template <class Element>
using Divided = Floating<Element, Add, Over>;

template <class Kernel>
__attribute__((noinline)) void run_with(typename Kernel::Real argument, char* out,
                                        const char* const* in, int ranks, size_t count) {
  reduce_all(Kernel{{argument}}, out, in, ranks, count);
}

template <class Element>
void average(void* out, const void* const* in, int ranks, size_t count) {
  using Real = typename Element::Real;
  const auto n = static_cast<Real>(ranks);
  const auto to = static_cast<char*>(out);
  const auto from = reinterpret_cast<const char* const*>(in);
  // For a power of two both are exact but for the one rounding, so they agree, and division is
  // slow.
  if ((ranks & (ranks - 1)) == 0) {
    run_with<Scaled<Element>>(Real{1} / n, to, from, ranks, count);
  } else {
    run_with<Divided<Element>>(n, to, from, ranks, count);
  }
}

template <class Element>
void scale(double factor, void* out, const void* in, size_t count) {
  const auto from = static_cast<const char*>(in);
  run_with<Scaled<Element>>(static_cast<typename Element::Real>(factor), static_cast<char*>(out),
                            &from, 1, count);
}

constexpr auto& entry(KernelTable& table, DType dtype, ReduceOp op) {
  return table.reduce[static_cast<int>(dtype)][static_cast<int>(op)];
}

template <class T>
constexpr void add_integer(KernelTable& table, DType dtype) {
  using Unsigned = std::make_unsigned_t<T>;
  entry(table, dtype, ReduceOp::sum) = {run<Integer<Unsigned, Add>>, 1};
  entry(table, dtype, ReduceOp::product) = {run<Integer<Unsigned, Multiply>>, 1};
  entry(table, dtype, ReduceOp::min) = {run<Integer<T, Lesser>>, 1};
  entry(table, dtype, ReduceOp::max) = {run<Integer<T, Greater>>, 1};
  entry(table, dtype, ReduceOp::band) = {run<Integer<uint8_t, And>>, sizeof(T)};
  entry(table, dtype, ReduceOp::bor) = {run<Integer<uint8_t, Or>>, sizeof(T)};
  entry(table, dtype, ReduceOp::bxor) = {run<Integer<uint8_t, Xor>>, sizeof(T)};
}

template <class Element>
constexpr void add_sums(KernelTable& table, DType dtype, size_t lanes) {
  entry(table, dtype, ReduceOp::sum) = {run<Floating<Element, Add>>, lanes};
  entry(table, dtype, ReduceOp::premul_sum) = {run<Floating<Element, Add>>, lanes};
  entry(table, dtype, ReduceOp::avg) = {average<Element>, lanes};
  table.premultiply[static_cast<int>(dtype)] = {scale<Element>, lanes};
}

template <class Element, class Int, Int kLargest, Int kNan>
constexpr void add_float(KernelTable& table, DType dtype) {
  add_sums<Element>(table, dtype, 1);
  entry(table, dtype, ReduceOp::product) = {run<Floating<Element, Multiply>>, 1};
  entry(table, dtype, ReduceOp::min) = {run<Ordered<Int, kLargest, kNan, Lesser>>, 1};
  entry(table, dtype, ReduceOp::max) = {run<Ordered<Int, kLargest, kNan, Greater>>, 1};
}

constexpr KernelTable make_kernels() {
  KernelTable table;
  table.level = kLevel;

  for (const ReduceOp any : {ReduceOp::sum, ReduceOp::max, ReduceOp::bor}) {
    entry(table, DType::boolean, any) = {run<Boolean<Or>>, 1};
  }
  for (const ReduceOp all : {ReduceOp::product, ReduceOp::min, ReduceOp::band}) {
    entry(table, DType::boolean, all) = {run<Boolean<And>>, 1};
  }
  entry(table, DType::boolean, ReduceOp::bxor) = {run<Boolean<Xor>>, 1};

  add_integer<uint8_t>(table, DType::uint8);
  add_integer<int8_t>(table, DType::int8);
  add_integer<uint16_t>(table, DType::uint16);
  add_integer<int16_t>(table, DType::int16);
  add_integer<uint32_t>(table, DType::uint32);
  add_integer<int32_t>(table, DType::int32);
  add_integer<uint64_t>(table, DType::uint64);
  add_integer<int64_t>(table, DType::int64);

  add_float<Half, int16_t, Float16::kInfinity, Float16::kNan>(table, DType::float16);
  add_float<Brain, int16_t, BFloat16::kInfinity, BFloat16::kNan>(table, DType::bfloat16);
  add_float<Plain<float>, int32_t, kFloatInfinity, kFloatNan>(table, DType::float32);
  add_float<Plain<double>, int64_t, kDoubleInfinity, kDoubleNan>(table, DType::float64);
  add_float<Packed<Float8E4M3FN, uint8_t>, int8_t, Float8E4M3FN::kLargest, Float8E4M3FN::kNan>(
      table, DType::float8_e4m3fn);
  add_float<Packed<Float8E5M2, uint8_t>, int8_t, Float8E5M2::kInfinity, Float8E5M2::kNan>(
      table, DType::float8_e5m2);

  add_sums<Plain<float>>(table, DType::complex64, 2);
  add_sums<Plain<double>>(table, DType::complex128, 2);
  return table;
}

constexpr KernelTable kKernels = make_kernels();

}  // namespace
}  // namespace rocenante
