// reduce() against a scalar reference written from the definition, for every set of kernels that
// this processor can run.
#include "collective/reduce.h"

#include <gtest/gtest.h>

#include "reduce_reference.h"

namespace rocenante {
namespace {

// All types, operations, sizes.

class ReduceDType : public testing::TestWithParam<int> {
 protected:
  DType dtype() const { return static_cast<DType>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(All, ReduceDType, testing::Range(0, kDTypeCount), [](const auto& info) {
  return std::string(name_of(static_cast<DType>(info.param)));
});

TEST_P(ReduceDType, EqualsTheReferenceBitForBit) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  const size_t counts[] = {0,  1,  2,  3,  4,  5,   7,   8,   9,   15, 16,
                           17, 31, 33, 64, 65, 127, 129, 257, 300, 515};
  for (const ReduceOp op : operations_of(dtype())) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (const size_t count : counts) {
        const size_t bytes = count * size_of(dtype());
        std::vector<Guarded> buffers;
        std::vector<const void*> in;
        for (int r = 0; r < ranks; ++r) buffers.emplace_back(bytes, random() % 64);
        for (Guarded& buffer : buffers) {
          fill(dtype(), buffer.data(), count, random);
          in.push_back(buffer.data());
        }
        Bytes expected(bytes);
        reference_reduce(dtype(), op, expected.data(), in, count);
        for (const KernelTable* kernels : usable_kernels()) {
          SCOPED_TRACE(describe(*kernels, dtype(), op, ranks, count));
          Guarded out(bytes, random() % 64);
          reduce(*kernels, dtype(), op, out.data(), in.data(), ranks, count);
          ASSERT_EQ(Bytes(out.data(), out.data() + bytes), expected);
          ASSERT_TRUE(out.intact());

          // In place, on any of the ranks' inputs; the others stay as they are.
          const size_t mine = random() % static_cast<size_t>(ranks);
          std::vector<Guarded> copies = buffers;
          std::vector<const void*> copied;
          for (Guarded& copy : copies) copied.push_back(copy.data());
          reduce(*kernels, dtype(), op, copies[mine].data(), copied.data(), ranks, count);
          for (size_t r = 0; r < copies.size(); ++r) {
            const unsigned char* wanted = r == mine ? expected.data() : buffers[r].data();
            ASSERT_TRUE(std::equal(wanted, wanted + bytes, copies[r].data())) << "rank " << r;
            ASSERT_TRUE(copies[r].intact());
          }
        }
      }
    }
  }
}

TEST_P(ReduceDType, PremultiplyEqualsTheReferenceBitForBit) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  if (!is_defined(dtype(), ReduceOp::premul_sum)) {
    char unused[16] = {};
    EXPECT_THROW(premultiply(dtype(), 2.0, unused, unused, 1), Error);
    return;
  }
  const bool wide = dtype() == DType::float64 || dtype() == DType::complex128;
  const size_t lanes = is_complex(dtype()) ? 2 : 1;
  for (const double factor : {0.1, -3.0, 1.0 / 3, 0.0, 1e300}) {
    for (const size_t count : {0, 1, 3, 17, 130}) {
      const size_t bytes = count * size_of(dtype());
      Guarded in(bytes, random() % 64);
      fill(dtype(), in.data(), count, random);
      Bytes expected(bytes);
      for (size_t i = 0; i < count * lanes; ++i) {
        if (wide) {
          put(expected.data(), i, with_one_nan(element<double>(in.data(), i) * factor));
        } else if (const reference::Format* format = small_format(dtype())) {
          const auto value =
              static_cast<float>(reference::decode(*format, raw(in.data(), i, size_of(dtype()))));
          put_raw(expected.data(), i, size_of(dtype()),
                  reference::encode(*format, value * static_cast<float>(factor)));
        } else {
          put(expected.data(), i,
              with_one_nan(element<float>(in.data(), i) * static_cast<float>(factor)));
        }
      }
      for (const KernelTable* kernels : usable_kernels()) {
        SCOPED_TRACE(std::string(kernels->level) + " factor " + std::to_string(factor));
        Guarded out(bytes, random() % 64);
        premultiply(*kernels, dtype(), factor, out.data(), in.data(), count);
        ASSERT_EQ(Bytes(out.data(), out.data() + bytes), expected);
        ASSERT_TRUE(out.intact());
        Guarded both = in;
        premultiply(*kernels, dtype(), factor, both.data(), both.data(), count);
        ASSERT_EQ(Bytes(both.data(), both.data() + bytes), expected);
      }
    }
  }
}

TEST_P(ReduceDType, UndefinedOperationsAreRefusedAndDefinedOnesExist) {
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    for (const KernelTable* kernels : usable_kernels()) {
      char data[16] = {};
      const void* in = data;
      const bool exists = kernels->reduce[GetParam()][i].run != nullptr;
      EXPECT_EQ(exists, is_defined(dtype(), op)) << describe(*kernels, dtype(), op, 1, 1);
      if (!exists) {
        EXPECT_THROW(reduce(*kernels, dtype(), op, data, &in, 1, 1), Error);
      }
    }
  }
}

// Narrow floats exhaustively.

TEST(Reduce, EveryPairOfFloat8) {
  for (const DType dtype : {DType::float8_e4m3fn, DType::float8_e5m2}) {
    Bytes a(65536);
    Bytes b(65536);
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<unsigned char>(i & 0xff);
      b[i] = static_cast<unsigned char>(i >> 8);
    }
    const std::vector<const void*> in = {a.data(), b.data()};
    for (const ReduceOp op : operations_of(dtype)) {
      Bytes expected(a.size());
      reference_reduce(dtype, op, expected.data(), in, a.size());
      for (const KernelTable* kernels : usable_kernels()) {
        Bytes out(a.size());
        reduce(*kernels, dtype, op, out.data(), in.data(), 2, out.size());
        EXPECT_EQ(out, expected) << describe(*kernels, dtype, op, 2, out.size());
      }
    }
  }
}

// Every pattern with partners that make exact ties, overflows and denormals.
TEST(Reduce, EveryPatternOf16BitFloats) {
  constexpr size_t kPatterns = 65536;
  std::mt19937 random(3);
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    std::vector<uint16_t> a(kPatterns);
    std::iota(a.begin(), a.end(), uint16_t{0});
    for (int round = 0; round < 6; ++round) {
      std::vector<uint16_t> b(kPatterns);
      for (size_t i = 0; i < kPatterns; ++i) {
        const uint16_t exponent = dtype == DType::float16 ? 0x7c00 : 0x7f80;
        const auto near = static_cast<uint16_t>((a[i] & exponent) ^ (random() & 0x87ff));
        b[i] = round == 0 ? uint16_t{0x8000} : round < 4 ? near : static_cast<uint16_t>(random());
      }
      const std::vector<const void*> in = {a.data(), b.data()};
      for (const ReduceOp op : operations_of(dtype)) {
        std::vector<uint16_t> expected(kPatterns);
        reference_reduce(dtype, op, expected.data(), in, kPatterns);
        for (const KernelTable* kernels : usable_kernels()) {
          std::vector<uint16_t> out(kPatterns);
          reduce(*kernels, dtype, op, out.data(), in.data(), 2, kPatterns);
          ASSERT_EQ(out, expected) << describe(*kernels, dtype, op, 2, kPatterns);
        }
      }
    }
  }
}

// The contract, one property each.

template <class T>
std::vector<T> reduce_values(const KernelTable& kernels, DType dtype, ReduceOp op,
                             const std::vector<T>& one_per_rank, size_t count) {
  std::vector<std::vector<T>> buffers;
  std::vector<const void*> in;
  for (const T value : one_per_rank) buffers.emplace_back(count, value);
  for (const auto& buffer : buffers) in.push_back(buffer.data());
  std::vector<T> out(count);
  reduce(kernels, dtype, op, out.data(), in.data(), static_cast<int>(in.size()), count);
  return out;
}

template <class T>
void expect_reduction(DType dtype, ReduceOp op, const std::vector<T>& one_per_rank, T expected) {
  for (const KernelTable* kernels : usable_kernels()) {
    for (const size_t count : {1, 5, 100}) {
      EXPECT_EQ(reduce_values(*kernels, dtype, op, one_per_rank, count),
                std::vector<T>(count, expected))
          << describe(*kernels, dtype, op, static_cast<int>(one_per_rank.size()), count);
    }
  }
}

// Rounding after each addition would lose both ones.
TEST(Reduce, NarrowFloatsAccumulateInFloatAndRoundOnce) {
  expect_reduction<uint16_t>(DType::float16, ReduceOp::sum, {0x6800, 0x3c00, 0x3c00}, 0x6801);
  expect_reduction<uint16_t>(DType::bfloat16, ReduceOp::sum, {0x4380, 0x3f80, 0x3f80}, 0x4381);
  expect_reduction<uint8_t>(DType::float8_e4m3fn, ReduceOp::sum, {0x58, 0x38, 0x38}, 0x59);
  expect_reduction<uint8_t>(DType::float8_e5m2, ReduceOp::sum, {0x48, 0x3c, 0x3c}, 0x49);
}

// 60000 + 60000 is beyond float16, their mean is not.
TEST(Reduce, AverageDividesBeforeRounding) {
  expect_reduction<uint16_t>(DType::float16, ReduceOp::avg, {0x7b53, 0x7b53}, 0x7b53);
  expect_reduction<uint16_t>(DType::float16, ReduceOp::avg, {0x7b53, 0x7b53, 0x7b53}, 0x7b53);
}

TEST(Reduce, RanksAreTakenInOrder) {
  expect_reduction<float>(DType::float32, ReduceOp::sum, {1e8f, -1e8f, 1.0f}, 1.0f);
  expect_reduction<float>(DType::float32, ReduceOp::sum, {1e8f, 1.0f, -1e8f}, 0.0f);
  expect_reduction<float>(DType::float32, ReduceOp::sum, {1.0f, 1e8f, -1e8f}, 0.0f);
}

TEST(Reduce, IntegersWrap) {
  expect_reduction<int32_t>(DType::int32, ReduceOp::sum, {INT32_MAX, 1}, INT32_MIN);
  expect_reduction<int64_t>(DType::int64, ReduceOp::sum, {INT64_MIN, -1}, INT64_MAX);
  expect_reduction<int8_t>(DType::int8, ReduceOp::product, {-128, -1}, -128);
  expect_reduction<uint16_t>(DType::uint16, ReduceOp::product, {65535, 65535}, 1);
  expect_reduction<uint64_t>(DType::uint64, ReduceOp::product, {UINT64_MAX, UINT64_MAX}, 1);
}

TEST(Reduce, BoolsComeOutAsZeroOrOne) {
  expect_reduction<uint8_t>(DType::boolean, ReduceOp::sum, {2, 4, 255}, 1);
  expect_reduction<uint8_t>(DType::boolean, ReduceOp::band, {2, 4}, 1);
  expect_reduction<uint8_t>(DType::boolean, ReduceOp::bxor, {2, 4}, 0);
  expect_reduction<uint8_t>(DType::boolean, ReduceOp::max, {128}, 1);
}

TEST(Reduce, MinAndMaxGiveOneNanWhicheverRankHoldsOne) {
  for (const uint32_t nan : {0x7f800001u, 0xffc12345u, 0x7fffffffu, 0xffffffffu}) {
    for (size_t holder = 0; holder < 4; ++holder) {
      std::vector<uint32_t> values(4, 0x3f800000);
      values[holder] = nan;
      for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::sum, ReduceOp::product}) {
        expect_reduction<uint32_t>(DType::float32, op, values, 0x7fc00000);
      }
    }
  }
}

TEST(Reduce, InvalidOperationsGiveThePositiveNan) {
  expect_reduction<uint32_t>(DType::float32, ReduceOp::sum, {0x7f800000, 0xff800000}, 0x7fc00000);
  expect_reduction<uint32_t>(DType::float32, ReduceOp::product, {0x7f800000, 0}, 0x7fc00000);
  expect_reduction<uint16_t>(DType::float16, ReduceOp::sum, {0x7c00, 0xfc00}, 0x7e00);
  expect_reduction<uint64_t>(DType::float64, ReduceOp::sum,
                             {0x7ff0000000000000, 0xfff0000000000000}, 0x7ff8000000000000);
}

TEST(Reduce, MinusZeroIsLessThanZero) {
  constexpr uint32_t kMinusZero = 0x80000000;
  expect_reduction<uint32_t>(DType::float32, ReduceOp::min, {0, kMinusZero}, kMinusZero);
  expect_reduction<uint32_t>(DType::float32, ReduceOp::min, {kMinusZero, 0}, kMinusZero);
  expect_reduction<uint32_t>(DType::float32, ReduceOp::max, {0, kMinusZero}, 0);
  expect_reduction<uint32_t>(DType::float32, ReduceOp::max, {kMinusZero, 0}, 0);
  expect_reduction<uint32_t>(DType::float32, ReduceOp::sum, {kMinusZero, kMinusZero}, kMinusZero);
}

TEST(Reduce, DenormalsAreKept) {
  expect_reduction<uint32_t>(DType::float32, ReduceOp::sum, {1, 1, 1}, 3);
  expect_reduction<uint64_t>(DType::float64, ReduceOp::sum, {1, 1, 1}, 3);
  expect_reduction<uint16_t>(DType::float16, ReduceOp::sum, {1, 1, 1}, 3);
  expect_reduction<uint16_t>(DType::float16, ReduceOp::avg, {1, 2}, 2);
  expect_reduction<uint16_t>(DType::bfloat16, ReduceOp::sum, {1, 1, 1}, 3);
  expect_reduction<uint8_t>(DType::float8_e4m3fn, ReduceOp::sum, {1, 1, 1}, 3);
}

TEST(Reduce, UnknownTypesAndOperationsAreRefused) {
  float data = 1;
  const void* in = &data;
  EXPECT_THROW(reduce(static_cast<DType>(99), ReduceOp::sum, &data, &in, 1, 1), Error);
  EXPECT_THROW(reduce(DType::float32, static_cast<ReduceOp>(99), &data, &in, 1, 1), Error);
}

TEST(Reduce, ThePublicFunctionsUseTheBestKernels) {
  EXPECT_STREQ(simd_level(), usable_kernels().front()->level);
  const std::vector<float> a(100, 1.5f);
  const std::vector<float> b(100, 2.0f);
  std::vector<float> out(100);
  const void* in[] = {a.data(), b.data()};
  reduce(DType::float32, ReduceOp::sum, out.data(), in, 2, out.size());
  EXPECT_EQ(out, std::vector<float>(100, 3.5f));
  premultiply(DType::float32, 2.0, out.data(), a.data(), out.size());
  EXPECT_EQ(out, std::vector<float>(100, 3.0f));
}

}  // namespace
}  // namespace rocenante
