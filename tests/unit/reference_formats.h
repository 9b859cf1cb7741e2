// The narrow float formats from their definition, slowly: what the conversions under test are
// compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace rocenante::reference {

struct Format {
  int exponent_bits;
  int fraction_bits;
  bool has_infinity;  // without: only the pattern of all ones is NaN, and overflow saturates
  uint32_t nan;       // what a NaN is expected to become

  int width() const { return exponent_bits + fraction_bits; }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t patterns() const { return 2u << width(); }
};

inline constexpr Format kFloat16{5, 10, true, 0x7e00};
inline constexpr Format kBFloat16{8, 7, true, 0x7fc0};
inline constexpr Format kFloat8E4M3FN{4, 3, false, 0x7f};
inline constexpr Format kFloat8E5M2{5, 2, true, 0x7f};

inline double decode(const Format& format, uint32_t bits) {
  const uint32_t fraction = bits & ((1u << format.fraction_bits) - 1);
  const int exponent =
      static_cast<int>(bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
  const double sign = (bits >> format.width() & 1) != 0 ? -1.0 : 1.0;
  const bool top = exponent == (1 << format.exponent_bits) - 1;
  if (top && format.has_infinity) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (top && fraction == (1u << format.fraction_bits) - 1) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) {
    return sign * std::ldexp(fraction, 1 - format.bias() - format.fraction_bits);
  }
  return sign * std::ldexp(fraction + (1u << format.fraction_bits),
                           exponent - format.bias() - format.fraction_bits);
}

// Rounds to nearest, ties to even. `value` must be exact: a float, or a double that was not
// rounded.
inline uint32_t encode(const Format& format, double value) {
  if (std::isnan(value)) return format.nan;
  const uint32_t sign = std::signbit(value) ? 1u << format.width() : 0;
  const int top = (1 << format.exponent_bits) - 1;
  const uint32_t largest = format.has_infinity
                               ? (static_cast<uint32_t>(top) << format.fraction_bits) - 1
                               : format.nan - 1;
  const uint32_t overflow = format.has_infinity ? largest + 1 : largest;
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return sign | overflow;
  if (magnitude == 0) return sign;
  const int smallest = 1 - format.bias();
  const int exponent = std::max(std::ilogb(magnitude), smallest);
  // In units of the last place: below 2^(fraction_bits + 1), so exact.
  const double places = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
  const double rounded = std::ldexp(places, exponent - format.fraction_bits);
  if (rounded > decode(format, largest)) return sign | overflow;
  if (rounded < std::ldexp(1.0, smallest)) return sign | static_cast<uint32_t>(places);
  const int final_exponent = std::ilogb(rounded);
  const auto fraction =
      static_cast<uint32_t>(std::ldexp(rounded, format.fraction_bits - final_exponent));
  return sign | (static_cast<uint32_t>(final_exponent + format.bias()) << format.fraction_bits |
                 (fraction & ((1u << format.fraction_bits) - 1)));
}

}  // namespace rocenante::reference
