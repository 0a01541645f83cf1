#include "kernels/dequantise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tenon {
namespace {

std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

DType dtype_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DType::kQ6_K); ++i) {
    if (dtype_traits(static_cast<DType>(i)).name == name) return static_cast<DType>(i);
  }
  ADD_FAILURE() << "no dtype " << name;
  return DType::kF32;
}

// Bit for bit what the gguf Python package gives.
TEST(Dequantise, EqualsTheGgufPackage) {
  std::ifstream file(TENON_SOURCE_DIR "/tests/unit/kernels/dequantise_golden.json");
  ASSERT_TRUE(file);
  const auto golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden["cases"].size(), 10U);
  for (const auto& item : golden["cases"]) {
    const auto name = item["type"].get<std::string>();
    SCOPED_TRACE(name);
    const std::vector<uint8_t> stored = from_hex(item["stored"].get<std::string>());
    const std::vector<uint8_t> expected = from_hex(item["values"].get<std::string>());
    std::vector<float> values(expected.size() / sizeof(float));
    dequantise(dtype_named(name), stored.data(), static_cast<int64_t>(values.size()),
               values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      float want;
      std::memcpy(&want, expected.data() + i * sizeof(float), sizeof(want));
      ASSERT_EQ(values[i], want) << "element " << i;
    }
  }
}

TEST(Dequantise, CopiesFloats) {
  const std::vector<float> stored = {0.0F, -1.5F, 3.0e38F, 1.0e-40F};
  std::vector<float> values(4);
  dequantise(DType::kF32, stored.data(), 4, values.data());
  EXPECT_EQ(values, stored);
}

TEST(DequantiseDeathTest, RefusesPartialBlocksAndIntegers) {
  std::vector<uint8_t> stored(64);
  std::vector<float> values(64);
  EXPECT_DEATH(dequantise(DType::kQ4_0, stored.data(), 31, values.data()), "block_elements");
  EXPECT_DEATH(dequantise(DType::kI32, stored.data(), 4, values.data()), "is_quantised");
}

}  // namespace
}  // namespace tenon
