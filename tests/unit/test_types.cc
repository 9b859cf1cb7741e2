#include "core/types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <set>
#include <string>

#include "core/error.h"
#include "core/float_formats.h"
#include "reference_formats.h"

namespace rocenante {
namespace {

// The conversions can be evaluated by the compiler.
static_assert(float_to_float16(65520.0f) == 0x7c00);
static_assert(float16_to_float(0x0001) == 0x1p-24f);
static_assert(float_to_bfloat16(-1.0f) == 0xbf80);
static_assert(float_to_float8_e4m3fn(1e30f) == 0x7e);
static_assert(float8_e5m2_to_float(0x7b) == 57344.0f);

struct Conversion {
  const char* name;
  reference::Format format;
  float (*widen)(uint32_t);
  uint32_t (*narrow)(float);
};

const Conversion kConversions[] = {
    {"float16", reference::kFloat16,
     [](uint32_t b) { return float16_to_float(static_cast<uint16_t>(b)); },
     [](float v) -> uint32_t { return float_to_float16(v); }},
    {"bfloat16", reference::kBFloat16,
     [](uint32_t b) { return bfloat16_to_float(static_cast<uint16_t>(b)); },
     [](float v) -> uint32_t { return float_to_bfloat16(v); }},
    {"float8_e4m3fn", reference::kFloat8E4M3FN,
     [](uint32_t b) { return float8_e4m3fn_to_float(static_cast<uint8_t>(b)); },
     [](float v) -> uint32_t { return float_to_float8_e4m3fn(v); }},
    {"float8_e5m2", reference::kFloat8E5M2,
     [](uint32_t b) { return float8_e5m2_to_float(static_cast<uint8_t>(b)); },
     [](float v) -> uint32_t { return float_to_float8_e5m2(v); }},
};

class FloatFormats : public testing::TestWithParam<Conversion> {};

INSTANTIATE_TEST_SUITE_P(All, FloatFormats, testing::ValuesIn(kConversions),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(FloatFormats, WidensEveryPatternExactly) {
  const Conversion& c = GetParam();
  for (uint32_t bits = 0; bits < c.format.patterns(); ++bits) {
    const double expected = reference::decode(c.format, bits);
    const float actual = c.widen(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << "pattern " << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual),
                std::bit_cast<uint32_t>(static_cast<float>(expected)))
          << "pattern " << bits;
    }
  }
}

TEST_P(FloatFormats, NarrowsAroundEveryRoundingBoundary) {
  const Conversion& c = GetParam();
  const auto check = [&](uint32_t bits) {
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(c.narrow(value), reference::encode(c.format, value)) << value << " = bits " << bits;
  };
  for (uint32_t pattern = 0; pattern < c.format.patterns(); ++pattern) {
    const auto value = static_cast<float>(reference::decode(c.format, pattern));
    if (std::isnan(value)) continue;
    // The value itself and the ties above it, which for denormals lie at different distances:
    // halves of all places.
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 24; ++shift) {
      for (uint32_t ulps : {0u, 1u, 2u, ~0u, ~1u}) check(bits + ((1u << shift) >> 1) + ulps);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) check(static_cast<uint32_t>(random()));
}

TEST_P(FloatFormats, NarrowsEveryNanToOnePattern) {
  const Conversion& c = GetParam();
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u}) {
    EXPECT_EQ(c.narrow(std::bit_cast<float>(bits)), c.format.nan) << bits;
  }
}

TEST_P(FloatFormats, RoundTripKeepsEveryNumber) {
  const Conversion& c = GetParam();
  for (uint32_t bits = 0; bits < c.format.patterns(); ++bits) {
    if (std::isnan(reference::decode(c.format, bits))) continue;
    ASSERT_EQ(c.narrow(c.widen(bits)), bits);
  }
}

TEST(Types, SizesAreThoseOfTheElements) {
  const size_t expected[kDTypeCount] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1, 1};
  for (int i = 0; i < kDTypeCount; ++i) {
    EXPECT_EQ(size_of(static_cast<DType>(i)), expected[i]) << name_of(static_cast<DType>(i));
  }
  EXPECT_THROW(size_of(static_cast<DType>(kDTypeCount)), Error);
}

TEST(Types, NamesAreDistinctAndKnown) {
  std::set<std::string_view> names;
  for (int i = 0; i < kDTypeCount; ++i) names.insert(name_of(static_cast<DType>(i)));
  for (int i = 0; i < kReduceOpCount; ++i) names.insert(name_of(static_cast<ReduceOp>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kDTypeCount + kReduceOpCount));
  for (const std::string_view name : names) {
    EXPECT_EQ(name.find("unknown"), std::string_view::npos) << name;
  }
  EXPECT_EQ(name_of(DType::float8_e4m3fn), "float8_e4m3fn");
  EXPECT_EQ(name_of(ReduceOp::premul_sum), "premul_sum");
  EXPECT_EQ(name_of(Collective::all_to_all_v), "all_to_all_v");
  EXPECT_EQ(name_of(Algorithm::two_shot), "two_shot");
}

TEST(Types, ReductionsWithoutMeaningAreRefusedWithTheReason) {
  const auto refusal = [](DType dtype, ReduceOp op) -> std::string {
    try {
      check_reduction(dtype, op);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      refusal(DType::int32, ReduceOp::avg),
      "avg is not defined for int32: the mean of integers need not be one; sum them and divide");
  EXPECT_NE(refusal(DType::boolean, ReduceOp::premul_sum), "");
  EXPECT_NE(refusal(DType::complex64, ReduceOp::max), "");
  EXPECT_NE(refusal(DType::complex128, ReduceOp::product), "");
  EXPECT_NE(refusal(DType::float32, ReduceOp::bxor), "");
  EXPECT_NE(refusal(DType::float32, static_cast<ReduceOp>(kReduceOpCount)), "");
  EXPECT_EQ(refusal(DType::boolean, ReduceOp::bxor), "");
  EXPECT_EQ(refusal(DType::complex64, ReduceOp::avg), "");
  EXPECT_EQ(refusal(DType::float8_e5m2, ReduceOp::premul_sum), "");
}

}  // namespace
}  // namespace rocenante
