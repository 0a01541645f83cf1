#include "kv_cache/pool.h"

#include <gmock/gmock.h>

#include <cstring>
#include <limits>
#include <set>
#include <vector>

namespace tenon {
namespace {

constexpr KvLayout kLayouts[] = {KvLayout::kLBHNC, KvLayout::kLBNHC, KvLayout::kBLHNC};

KvCacheSpec small_spec() {
  KvCacheSpec spec;
  spec.num_layers = 3;
  spec.num_kv_heads = 2;
  spec.head_dim_k = 5;
  spec.head_dim_v = 3;
  spec.block_size = 4;
  spec.dtype = DType::kF32;
  return spec;
}

// Cells that can be swizzled.
KvCacheSpec swizzled_spec() {
  KvCacheSpec spec = small_spec();
  spec.head_dim_k = 64;
  spec.head_dim_v = 128;
  spec.block_size = 16;
  spec.dtype = DType::kF16;
  return spec;
}

// Gives every K and V element of every layer its own value.
void number_cells(KvPool& pool) {
  float next = 1;
  for (int32_t layer = 0; layer < pool.spec().num_layers; ++layer) {
    const KvView view = pool.view(layer);
    for (int64_t block = 0; block < view.num_blocks; ++block) {
      for (int32_t head = 0; head < view.num_kv_heads; ++head) {
        for (int32_t token = 0; token < view.block_size; ++token) {
          float* k = static_cast<float*>(view.base) + view.k_offset(block, head, token);
          for (int32_t i = 0; i < view.head_dim_k; ++i) k[i] = next++;
          for (int32_t i = 0; i < view.head_dim_v; ++i) k[view.v_offset + i] = next++;
        }
      }
    }
  }
}

std::vector<float> read_block(const KvPool& pool, int64_t block) {
  std::vector<float> values;
  for (int32_t layer = 0; layer < pool.spec().num_layers; ++layer) {
    const KvView view = pool.view(layer);
    for (int32_t head = 0; head < view.num_kv_heads; ++head) {
      for (int32_t token = 0; token < view.block_size; ++token) {
        const float* k = static_cast<const float*>(view.base) + view.k_offset(block, head, token);
        values.insert(values.end(), k, k + view.head_dim_k);
        values.insert(values.end(), k + view.v_offset, k + view.v_offset + view.head_dim_v);
      }
    }
  }
  return values;
}

TEST(KvPool, EveryLayoutGivesEveryCellItsOwnMemory) {
  for (const KvLayout layout : kLayouts) {
    auto pool = KvPool::create(small_spec(), layout, 6);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    EXPECT_EQ(pool->bytes(), 6 * small_spec().bytes_per_block());
    number_cells(*pool);
    std::set<float> seen;
    for (int64_t block = 0; block < 6; ++block) {
      for (const float value : read_block(*pool, block)) seen.insert(value);
    }
    const size_t cells = 6UL * 3 * 2 * 4 * (5 + 3);
    EXPECT_EQ(seen.size(), cells) << kv_layout_name(layout);
    EXPECT_EQ(*seen.begin(), 1.0F);
    // The cells fill the buffer: no gap, nothing outside.
    const auto* bytes = static_cast<const float*>(pool->view(0).base);
    EXPECT_EQ(std::set<float>(bytes, bytes + cells), seen) << kv_layout_name(layout);
  }
}

// Pieces of 8-bit cells are 16 elements, of 128 to a line; K and V may share one.
TEST(KvPool, SwizzledCellsOf8Bits) {
  KvCacheSpec spec = swizzled_spec();
  spec.head_dim_k = spec.head_dim_v = 64;
  for (const DType dtype : {DType::kF8E4M3, DType::kI8}) {
    spec.dtype = dtype;
    auto pool = KvPool::create(spec, KvLayout::kLBHNCSwizzled, 3);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    const KvView kv = pool->view(1);
    std::set<int64_t> places;
    for (int64_t token = 0; token < 16; ++token) {
      for (int64_t i = 0; i < 128; ++i) {
        const int64_t at = kv.element(1, 1, token, i);
        EXPECT_EQ(at / 128, (kv.k_offset(1, 1, token) + i) / 128) << "of the same 128 bytes";
        EXPECT_EQ(at % 16, i % 16) << "pieces stay whole";
        EXPECT_EQ(at % 128 / 16, (i / 16) ^ (token % 8));
        EXPECT_TRUE(places.insert(at).second) << "an element a place";
      }
    }
  }
  spec.head_dim_k = 128;  // 192 bytes
  EXPECT_FALSE(spec.allows(KvLayout::kLBHNCSwizzled));
  spec.head_dim_v = 128;
  EXPECT_TRUE(spec.allows(KvLayout::kLBHNCSwizzled));
  spec.head_dim_k = spec.head_dim_v = 32;
  EXPECT_FALSE(spec.allows(KvLayout::kLBHNCSwizzled));
}

// What shared memory needs: the same piece of eight tokens that follow each other lies in eight
// different columns of 16 bytes.
TEST(KvPool, SwizzledCellsSpreadAPieceOverTheBanks) {
  const KvCacheSpec spec = swizzled_spec();
  auto pool = KvPool::create(spec, KvLayout::kLBHNCSwizzled, 3);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  const KvView kv = pool->view(0);
  std::set<int64_t> seen;
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t first = 0; first < 16; first += 8) {
      for (int64_t i = 0; i < 64 + 128; ++i) {
        std::set<int64_t> columns;
        for (int64_t token = first; token < first + 8; ++token) {
          const int64_t at = kv.element(2, head, token, i);
          EXPECT_EQ(at / 64, (kv.k_offset(2, head, token) + i) / 64) << "of the same 128 bytes";
          EXPECT_EQ(at % 8, i % 8) << "pieces stay whole";
          columns.insert(at / 8 % 8);
          seen.insert(at);
        }
        EXPECT_EQ(columns.size(), 8U);
      }
    }
  }
  EXPECT_EQ(seen.size(), 2UL * 16 * (64 + 128));
}

TEST(KvPool, CopiesWholeBlocksInOrderAndNothingElse) {
  for (const KvLayout layout : kLayouts) {
    auto pool = KvPool::create(small_spec(), layout, 6);
    ASSERT_TRUE(pool.ok());
    number_cells(*pool);
    std::vector<std::vector<float>> before;
    for (int64_t block = 0; block < 6; ++block) before.push_back(read_block(*pool, block));
    const std::vector<BlockCopy> copies = {{0, 3}, {3, 5}, {2, 2}};
    copy_kv_blocks(*pool, *pool, copies);
    const int64_t expected[] = {0, 1, 2, 0, 4, 0};
    for (int64_t block = 0; block < 6; ++block) {
      EXPECT_EQ(read_block(*pool, block), before[static_cast<size_t>(expected[block])])
          << kv_layout_name(layout) << " block " << block;
    }
  }
}

TEST(KvPool, SwapsOutAndInThroughAPoolOfAnotherSize) {
  for (const KvLayout layout : kLayouts) {
    auto device = KvPool::create(small_spec(), layout, 6);
    auto host = KvPool::create(small_spec(), layout, 2);
    ASSERT_TRUE(device.ok() && host.ok());
    number_cells(*device);
    const std::vector<float> block5 = read_block(*device, 5);
    const std::vector<float> block0 = read_block(*device, 0);
    copy_kv_blocks(*device, *host, std::vector<BlockCopy>{{5, 1}, {0, 0}});
    copy_kv_blocks(*host, *device, std::vector<BlockCopy>{{1, 2}, {0, 4}});
    EXPECT_EQ(read_block(*device, 2), block5) << kv_layout_name(layout);
    EXPECT_EQ(read_block(*device, 4), block0) << kv_layout_name(layout);
  }
}

TEST(KvPool, RefusesWhatCannotBe) {
  KvCacheSpec spec = small_spec();
  EXPECT_EQ(KvPool::create(spec, KvLayout::kLBHNC, 0).status().code(),
            StatusCode::kInvalidArgument);
  const int64_t huge = int64_t{1} << 45;
  const Status too_much = KvPool::create(spec, KvLayout::kLBHNC, huge).status();
  EXPECT_EQ(too_much.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(too_much.message(),
              testing::HasSubstr(std::to_string(huge * spec.bytes_per_block())));
  EXPECT_EQ(
      KvPool::create(spec, KvLayout::kLBHNC, std::numeric_limits<int64_t>::max()).status().code(),
      StatusCode::kResourceExhausted);
  spec.dtype = DType::kQ8_0;
  EXPECT_EQ(KvPool::create(spec, KvLayout::kLBHNC, 1).status().code(), StatusCode::kUnsupported);
  spec = small_spec();
  spec.head_dim_v = 0;
  EXPECT_EQ(KvPool::create(spec, KvLayout::kLBHNC, 1).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(KvPool, SwizzledCellsHaveWholeLinesOf16BitNumbers) {
  const KvCacheSpec spec = swizzled_spec();
  const auto code = [](const KvCacheSpec& of) {
    return KvPool::create(of, KvLayout::kLBHNCSwizzled, 1).status().code();
  };
  EXPECT_EQ(code(spec), StatusCode::kOk);
  KvCacheSpec odd = spec;
  odd.dtype = DType::kF32;
  EXPECT_EQ(code(odd), StatusCode::kUnsupported);
  odd = spec;
  odd.head_dim_k = 96;
  EXPECT_EQ(code(odd), StatusCode::kUnsupported);
  odd = spec;
  odd.head_dim_v = 32;
  EXPECT_EQ(code(odd), StatusCode::kUnsupported);
  odd = spec;
  odd.block_size = 12;
  EXPECT_EQ(code(odd), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace tenon
