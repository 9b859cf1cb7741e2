// What test_reduce.cc compares with: the reductions from their definition, one scalar after the
// other, and inputs that reach the special cases.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "collective/reduce_table.h"
#include "core/error.h"
#include "reference_formats.h"

namespace rocenante {

using Bytes = std::vector<unsigned char>;

// The reference.

template <class T>
T element(const void* at, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(at) + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put(void* at, size_t index, T value) {
  std::memcpy(static_cast<char*>(at) + index * sizeof(T), &value, sizeof(T));
}

template <class T>
T fold_integers(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::sum:
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    case ReduceOp::product:
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::band:
      return static_cast<T>(a & b);
    case ReduceOp::bor:
      return static_cast<T>(a | b);
    default:
      return static_cast<T>(a ^ b);
  }
}

inline bool fold_bools(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return a || b;
    case ReduceOp::bxor:
      return a != b;
    default:
      return a && b;
  }
}

template <class T>
T fold_reals(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::product:
      return a * b;
    case ReduceOp::min:
    case ReduceOp::max: {
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      const bool a_is_less = a < b || (a == b && std::signbit(a));
      return a_is_less == (op == ReduceOp::min) ? a : b;
    }
    default:
      return a + b;
  }
}

template <class T>
T with_one_nan(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <class T>
T reduce_reals(ReduceOp op, const std::vector<T>& values) {
  T sum = values[0];
  for (size_t r = 1; r < values.size(); ++r) sum = fold_reals(op, sum, values[r]);
  if (op == ReduceOp::avg) sum /= static_cast<T>(values.size());
  return with_one_nan(sum);
}

const reference::Format* small_format(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return &reference::kFloat16;
    case DType::bfloat16:
      return &reference::kBFloat16;
    case DType::float8_e4m3fn:
      return &reference::kFloat8E4M3FN;
    case DType::float8_e5m2:
      return &reference::kFloat8E5M2;
    default:
      return nullptr;
  }
}

inline uint32_t raw(const void* at, size_t index, size_t bytes) {
  return bytes == 1 ? element<uint8_t>(at, index) : element<uint16_t>(at, index);
}

inline void put_raw(void* at, size_t index, size_t bytes, uint32_t value) {
  if (bytes == 1) {
    put(at, index, static_cast<uint8_t>(value));
  } else {
    put(at, index, static_cast<uint16_t>(value));
  }
}

template <class T, class Combine>
void reduce_elements(void* out, const std::vector<const void*>& in, size_t index, Combine combine) {
  std::vector<T> values;
  for (const void* input : in) values.push_back(element<T>(input, index));
  put(out, index, combine(values));
}

template <class T>
void reduce_integers(ReduceOp op, void* out, const std::vector<const void*>& in, size_t index) {
  reduce_elements<T>(out, in, index, [op](const std::vector<T>& values) {
    return std::accumulate(values.begin() + 1, values.end(), values[0],
                           [op](T a, T b) { return fold_integers(op, a, b); });
  });
}

inline void reference_reduce(DType dtype, ReduceOp op, void* out,
                             const std::vector<const void*>& in, size_t count) {
  const auto reals = [op](const auto& values) { return reduce_reals(op, values); };
  for (size_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::boolean: {
        bool value = element<uint8_t>(in[0], i) != 0;
        for (size_t r = 1; r < in.size(); ++r) {
          value = fold_bools(op, value, element<uint8_t>(in[r], i) != 0);
        }
        put(out, i, static_cast<uint8_t>(value ? 1 : 0));
        break;
      }
      case DType::uint8:
        reduce_integers<uint8_t>(op, out, in, i);
        break;
      case DType::int8:
        reduce_integers<int8_t>(op, out, in, i);
        break;
      case DType::uint16:
        reduce_integers<uint16_t>(op, out, in, i);
        break;
      case DType::int16:
        reduce_integers<int16_t>(op, out, in, i);
        break;
      case DType::uint32:
        reduce_integers<uint32_t>(op, out, in, i);
        break;
      case DType::int32:
        reduce_integers<int32_t>(op, out, in, i);
        break;
      case DType::uint64:
        reduce_integers<uint64_t>(op, out, in, i);
        break;
      case DType::int64:
        reduce_integers<int64_t>(op, out, in, i);
        break;
      case DType::float32:
        reduce_elements<float>(out, in, i, reals);
        break;
      case DType::float64:
        reduce_elements<double>(out, in, i, reals);
        break;
      case DType::complex64:
        reduce_elements<float>(out, in, 2 * i, reals);
        reduce_elements<float>(out, in, 2 * i + 1, reals);
        break;
      case DType::complex128:
        reduce_elements<double>(out, in, 2 * i, reals);
        reduce_elements<double>(out, in, 2 * i + 1, reals);
        break;
      default: {
        const reference::Format& format = *small_format(dtype);
        const size_t bytes = size_of(dtype);
        std::vector<float> values;
        for (const void* input : in) {
          values.push_back(static_cast<float>(reference::decode(format, raw(input, i, bytes))));
        }
        put_raw(out, i, bytes, reference::encode(format, reduce_reals(op, values)));
      }
    }
  }
}

// Inputs.

inline bool is_defined(DType dtype, ReduceOp op) {
  try {
    check_reduction(dtype, op);
    return true;
  } catch (const Error&) {
    return false;
  }
}

template <class T>
void put_special(void* at, size_t index, uint32_t which) {
  using Limits = std::numeric_limits<T>;
  const T values[] = {T{0},
                      -T{0},
                      T{1},
                      T{-1},
                      Limits::max(),
                      Limits::lowest(),
                      Limits::min(),
                      Limits::denorm_min(),
                      -Limits::denorm_min(),
                      Limits::infinity(),
                      -Limits::infinity(),
                      -Limits::quiet_NaN()};
  put(at, index, values[which % std::size(values)]);
}

// Random bits; in the wide float types, where these hardly ever meet a special value or each
// other's magnitude, also special values and moderate numbers.
inline void fill(DType dtype, void* data, size_t count, std::mt19937& random) {
  auto* bytes = static_cast<unsigned char*>(data);
  for (size_t i = 0; i < count * size_of(dtype); ++i)
    bytes[i] = static_cast<unsigned char>(random());
  const bool single = dtype == DType::float32 || dtype == DType::complex64;
  const bool twice = dtype == DType::float64 || dtype == DType::complex128;
  if (!single && !twice) return;
  std::uniform_real_distribution<double> moderate(-4, 4);
  const size_t reals = is_complex(dtype) ? 2 * count : count;
  for (size_t i = 0; i < reals; ++i) {
    const auto choice = static_cast<uint32_t>(random());
    if (choice % 8 == 0) {
      single ? put_special<float>(data, i, choice / 8) : put_special<double>(data, i, choice / 8);
    } else if (choice % 8 < 5) {
      const double value = moderate(random);
      single ? put(data, i, static_cast<float>(value)) : put(data, i, value);
    }
  }
}

// A buffer at a chosen distance from alignment, with bytes around it that nobody may touch.
class Guarded {
 public:
  Guarded(size_t size, size_t offset)
      : bytes_(size + 2 * kGuard, kFiller), size_(size), offset_(offset) {}
  unsigned char* data() { return bytes_.data() + kGuard / 2 + offset_; }
  bool intact() {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const bool inside = i >= kGuard / 2 + offset_ && i < kGuard / 2 + offset_ + size_;
      if (!inside && bytes_[i] != kFiller) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kFiller = 0xa5;
  Bytes bytes_;
  size_t size_;
  size_t offset_;
};

inline std::string describe(const KernelTable& kernels, DType dtype, ReduceOp op, int ranks,
                            size_t count) {
  return std::string(kernels.level) + " " + std::string(name_of(dtype)) + " " +
         std::string(name_of(op)) + " ranks " + std::to_string(ranks) + " count " +
         std::to_string(count);
}

inline std::vector<ReduceOp> operations_of(DType dtype) {
  std::vector<ReduceOp> ops;
  for (int i = 0; i < kReduceOpCount; ++i) {
    if (is_defined(dtype, static_cast<ReduceOp>(i))) ops.push_back(static_cast<ReduceOp>(i));
  }
  return ops;
}

}  // namespace rocenante
