// Reductions of whole vectors, one contribution per rank.
#pragma once

#include <type_traits>

#include "device/args.h"
#include "device/number.h"
#include "device/planted.h"
#include "device/vector.h"

namespace rocenante::device {

// Which reduction. Sums in the types of decoding and training (hot) are fixed at compile time and
// inline; everything else (cold) is chosen at run time, once per vector, in one kernel per type.
// All operations of all types as kernels of their own would be some 400 kernels per GPU
// architecture and minutes of nvcc.
struct SumOp {
  static constexpr bool kHot = true;
  ROCENANTE_DEVICE explicit SumOp(ReduceOp) {}
  static ROCENANTE_DEVICE constexpr ReduceOp get() { return ReduceOp::sum; }
};
class AnyOp {
 public:
  static constexpr bool kHot = false;
  ROCENANTE_DEVICE explicit AnyOp(ReduceOp op) : op_(op) {}
  ROCENANTE_DEVICE ReduceOp get() const { return op_; }

 private:
  ReduceOp op_;
};

// Signed integers wrap; in C++ only unsigned ones do.
template <class R>
ROCENANTE_DEVICE R add(R a, R b) {
  if constexpr (std::is_integral_v<R>) {
    using U = std::make_unsigned_t<R>;
    return static_cast<R>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}
template <class R>
ROCENANTE_DEVICE R times(R a, R b) {
  if constexpr (std::is_integral_v<R>) {
    using U = std::make_unsigned_t<R>;
    return static_cast<R>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    return a * b;
  }
}

// NaN if either is, whichever holds it; -0 below +0, so that the order of ranks does not matter
// either. The bits of equal numbers differ in the sign of zero only.
template <class R>
ROCENANTE_DEVICE R least(R a, R b) {
  if constexpr (std::is_floating_point_v<R>) {
    using Bits = std::conditional_t<sizeof(R) == 4, uint32_t, uint64_t>;
    if (a != a) return a;
    if (b != b) return b;
    if (a == b)
      return __builtin_bit_cast(R, __builtin_bit_cast(Bits, a) | __builtin_bit_cast(Bits, b));
  }
  return b < a ? b : a;
}
template <class R>
ROCENANTE_DEVICE R greatest(R a, R b) {
  if constexpr (std::is_floating_point_v<R>) {
    using Bits = std::conditional_t<sizeof(R) == 4, uint32_t, uint64_t>;
    if (a != a) return a;
    if (b != b) return b;
    if (a == b)
      return __builtin_bit_cast(R, __builtin_bit_cast(Bits, a) & __builtin_bit_cast(Bits, b));
  }
  return a < b ? b : a;
}

template <class T, class Op>
class Arithmetic {
  using Real = typename Number<T>::Real;
  static constexpr unsigned k = kPerVector<T>;

 public:
  ROCENANTE_DEVICE Arithmetic(Op op, unsigned ranks) : op_(op), ranks_(ranks) {}

  // A contribution as every rank, its own included, reduces it.
  ROCENANTE_DEVICE Vector scaled(const Vector& v, double factor) const {
    if constexpr (std::is_floating_point_v<Real>) {
      if (op_.get() == ReduceOp::premul_sum && !planted(Bug::factor_forgotten)) {
        VectorOf<T> u{v};
        ROCENANTE_UNROLL
        for (unsigned i = 0; i < k; ++i) {
          u.element[i] = Number<T>::narrow(
              multiply(Number<T>::widen(u.element[i]), static_cast<Real>(factor)));
        }
        return u.vector;
      }
    }
    return v;
  }

  // I4: contributions are reduced in rank order with one rounding at the end, so every rank gets
  // the same bits. ask(r) loads rank r's, take(r, what was loaded) is its vector; several are asked
  // for before any is taken, to have as many loads in flight.
  template <unsigned kInFlight, class Ask, class Take>
  ROCENANTE_DEVICE Vector reduce(const Ask& ask, const Take& take) const {
    Real sum[k];
    ROCENANTE_ROLLED
    for (unsigned r = 0; r < ranks_; r += kInFlight) {
      decltype(ask(0)) loaded[kInFlight];
      ROCENANTE_UNROLL
      for (unsigned j = 0; j < kInFlight; ++j) {
        if (r + j < ranks_) loaded[j] = ask(at(r + j));
      }
      ROCENANTE_UNROLL
      for (unsigned j = 0; j < kInFlight; ++j) {
        if (r + j >= ranks_) break;
        const Vector v = take(at(r + j), loaded[j]);
        if (r + j == 0) {
          widen(sum, v);
        } else {
          Real next[k];
          widen(next, v);
          combine(sum, next);
        }
        if (planted(Bug::rounded_at_every_step)) widen(sum, narrow(sum));
      }
    }
    if constexpr (std::is_floating_point_v<Real>) {
      if (op_.get() == ReduceOp::avg) {
        ROCENANTE_UNROLL
        for (unsigned i = 0; i < k; ++i) sum[i] /= static_cast<Real>(ranks_);
      }
    }
    return narrow(sum);
  }

 private:
  ROCENANTE_DEVICE unsigned at(unsigned r) const {
    return planted(Bug::not_in_rank_order) ? ranks_ - 1 - r : r;
  }
  static ROCENANTE_DEVICE void widen(Real (&to)[k], const Vector& from) {
    const VectorOf<T> u{from};
    ROCENANTE_UNROLL
    for (unsigned i = 0; i < k; ++i) to[i] = Number<T>::widen(u.element[i]);
  }
  static ROCENANTE_DEVICE Vector narrow(const Real (&from)[k]) {
    VectorOf<T> u{Vector{}};
    ROCENANTE_UNROLL
    for (unsigned i = 0; i < k; ++i) u.element[i] = Number<T>::narrow(from[i]);
    return u.vector;
  }
  template <class F>
  static ROCENANTE_DEVICE void each(Real (&a)[k], const Real (&b)[k], const F& f) {
    ROCENANTE_UNROLL
    for (unsigned i = 0; i < k; ++i) a[i] = f(a[i], b[i]);
  }

  ROCENANTE_DEVICE void combine(Real (&a)[k], const Real (&b)[k]) const {
    switch (op_.get()) {
      case ReduceOp::sum:
      case ReduceOp::avg:
      case ReduceOp::premul_sum:
        return each(a, b, [](Real x, Real y) { return add(x, y); });
      case ReduceOp::product:
        return each(a, b, [](Real x, Real y) { return times(x, y); });
      case ReduceOp::min:
        return each(a, b, [](Real x, Real y) { return least(x, y); });
      case ReduceOp::max:
        return each(a, b, [](Real x, Real y) { return greatest(x, y); });
      default:
        break;
    }
    if constexpr (std::is_integral_v<Real>) {
      switch (op_.get()) {
        case ReduceOp::band:
          return each(a, b, [](Real x, Real y) { return x & y; });
        case ReduceOp::bor:
          return each(a, b, [](Real x, Real y) { return x | y; });
        case ReduceOp::bxor:
          return each(a, b, [](Real x, Real y) { return x ^ y; });
        default:
          break;
      }
    }
  }

  const Op op_;
  const unsigned ranks_;
};

template <class T>
ROCENANTE_DEVICE_CALL Vector cold_own(const T* p, size_t left, ReduceOp op, double factor) {
  return Arithmetic<T, AnyOp>(AnyOp(op), 0).scaled(read(p, left), factor);
}
template <class T>
ROCENANTE_DEVICE_CALL void cold_write(T* p, size_t left, Vector v) {
  write(p, left, v);
}
template <class T>
ROCENANTE_DEVICE_CALL Vector cold_reduce(Vector own, const char* received, size_t stride,
                                         unsigned rank, unsigned ranks, ReduceOp op) {
  return Arithmetic<T, AnyOp>(AnyOp(op), ranks)
      .template reduce<1>(
          [&](unsigned r) {
            return r == rank ? own : load(reinterpret_cast<const Vector*>(received + r * stride));
          },
          [](unsigned, const Vector& v) { return v; });
}

// What the kernels use: vectors of the caller's tensors and their reduction.
template <class T, class Op>
class Reducer {
 public:
  ROCENANTE_DEVICE explicit Reducer(const KernelArgs& args) : args_(args), op_(args.op) {}

  // This rank's contribution from `p` on, of which `left` elements exist.
  ROCENANTE_DEVICE Vector own(const T* p, size_t left) const {
    if constexpr (Op::kHot) return read(p, left);
    return cold_own(p, left, op_.get(), args_.factor);
  }
  ROCENANTE_DEVICE void write_result(T* p, size_t left, const Vector& v) const {
    if constexpr (Op::kHot) {
      write(p, left, v);
    } else {
      cold_write(p, left, v);
    }
  }
  // `received`: rank 0's vector; those of the others lie as far apart as slots.
  ROCENANTE_DEVICE Vector reduce(const Vector& own, const Vector* received) const {
    const char* const first = reinterpret_cast<const char*>(received);
    const size_t stride = args_.layout.slot_bytes;
    if constexpr (Op::kHot) {
      return reduce<4>(
          [&](unsigned r) {
            return r == args_.rank ? own
                                   : load(reinterpret_cast<const Vector*>(first + r * stride));
          },
          [](unsigned, const Vector& v) { return v; });
    } else {
      return cold_reduce<T>(own, first, stride, args_.rank, args_.layout.ranks, op_.get());
    }
  }
  template <unsigned kInFlight, class Ask, class Take>
  ROCENANTE_DEVICE Vector reduce(const Ask& ask, const Take& take) const {
    return Arithmetic<T, Op>(op_, args_.layout.ranks).template reduce<kInFlight>(ask, take);
  }

 private:
  const KernelArgs& args_;
  const Op op_;
};

}  // namespace rocenante::device
