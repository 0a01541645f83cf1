#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace tenon {
namespace {

TEST(DType, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else {
      EXPECT_EQ(f32_to_f16(value), bits) << bits;
    }
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  EXPECT_EQ(f32_to_f16(1.0F + 0x1p-11F), 0x3C00);      // tie: down to even
  EXPECT_EQ(f32_to_f16(1.0F + 3 * 0x1p-11F), 0x3C02);  // tie: up to even
  EXPECT_EQ(f32_to_f16(65519.0F), 0x7BFF);             // largest that stays finite
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7C00);             // rounds to infinity
  EXPECT_EQ(f32_to_f16(0x1p-25F), 0x0000);             // tie at the bottom: to zero
  EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25F, 1.0F)), 0x0001);
  EXPECT_EQ(f32_to_f16(-0.0F), 0x8000);
}

TEST(DType, BFloat16RoundsToNearestEvenAndKeepsNaN) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      EXPECT_EQ(f32_to_bf16(value), bits);
    }
  }
  EXPECT_EQ(f32_to_bf16(1.0F + 0x1p-8F), 0x3F80);
  EXPECT_EQ(f32_to_bf16(1.0F + 3 * 0x1p-8F), 0x3F82);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::nanf("")))));
}

TEST(DType, BlockGeometry) {
  EXPECT_EQ(dtype_bytes(DType::kQ4_1, 64), 40);
  EXPECT_EQ(dtype_bytes(DType::kQ6_K, 512), 420);
  EXPECT_EQ(dtype_traits(DType::kQ4_K).name, "Q4_K");
}

}  // namespace
}  // namespace tenon
