// Case ATT-09: offsets beyond 32 bits in a large cache.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cstring>

#include "tests/issues/attention_layer.h"

namespace tenon {
namespace {

constexpr int64_t kNumBlocks = 131'200;  // 4.3 thousand million elements
constexpr LayerOptions kOptions = {8, 8, 128, 16, DType::kF16, 0.09F};

// A pool's address space without its memory: only touched pages exist.
class SparseCells {
 public:
  explicit SparseCells(size_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) data_ = nullptr;
  }
  ~SparseCells() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  SparseCells(const SparseCells&) = delete;
  SparseCells& operator=(const SparseCells&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

KvView large_view(void* base) {
  KvView view;
  view.base = base;
  view.dtype = DType::kF16;
  view.num_blocks = kNumBlocks;
  view.num_kv_heads = 8;
  view.head_dim_k = view.head_dim_v = 128;
  view.block_size = 16;
  view.block_stride = 32768;
  view.head_stride = 16 * 256;
  view.token_stride = 256;
  view.v_offset = 128;
  return view;
}

TEST(Att09, OffsetsAre64Bit) {
  const KvView view = large_view(nullptr);
  EXPECT_EQ(view.k_offset(65'536, 0, 0), 2'147'483'648LL);
  EXPECT_EQ(view.k_offset(131'072, 0, 0), 4'294'967'296LL);
  EXPECT_EQ(view.k_offset(131'072, 7, 15), 4'294'967'296LL + 7 * 4096 + 15 * 256);
}

using Att09Backend = EveryBackend;

TEST_P(Att09Backend, BlocksAtTheEndOfTheCacheGiveTheSameBits) {
  const SparseCells cells(static_cast<size_t>(kNumBlocks) * 32768 * 2);
  ASSERT_NE(cells.data(), nullptr);
  TestLayer layer(GetParam(), kOptions, kNumBlocks, large_view(cells.data()));
  const std::vector<float> k = random_floats(48 * layer.kv_width(), 1);
  const std::vector<float> v = random_floats(48 * layer.kv_width(), 2);
  for (const BatchSpecRow& row : {BatchSpecRow{1, 41}, BatchSpecRow{41, 41}}) {
    const std::vector<float> q =
        random_floats(static_cast<size_t>(row.query_len) * layer.q_width(), 3);
    std::vector<TestLayer::Output> outputs;
    for (const std::vector<int32_t>& blocks :
         {std::vector<int32_t>{0, 1, 2}, {65'535, 65'536, 65'599}, {131'071, 131'199, 131'072}}) {
      SyntheticBatch batch = make_batch({row}, 16, 4, 0);
      std::copy(blocks.begin(), blocks.end(), batch.page_indices.begin());
      const std::vector<int64_t> slots = slots_of(batch, 0, 16);
      std::copy(slots.end() - row.query_len, slots.end(), batch.slot_mapping.begin());
      ASSERT_TRUE(validate_batch_view(batch.view, 16, kNumBlocks).ok());
      layer.write({k.begin(), k.begin() + 41 * static_cast<int64_t>(layer.kv_width())},
                  {v.begin(), v.begin() + 41 * static_cast<int64_t>(layer.kv_width())}, slots);
      outputs.push_back(layer.forward(batch.view, q));
    }
    for (size_t i = 1; i < outputs.size(); ++i) {
      EXPECT_EQ(std::memcmp(outputs[0].out.data(), outputs[i].out.data(),
                            outputs[0].out.size() * sizeof(float)),
                0);
      EXPECT_EQ(outputs[0].lse, outputs[i].lse);
    }
  }
}

TENON_FOR_EVERY_BACKEND(Att09Backend);

TEST(Att09, CopiesReachTheEndOfALargePool) {
  // Untouched memory of the pool is never there, so this needs address space only.
  const KvCacheSpec spec = {1, 8, 128, 128, 16, DType::kF16};
  auto pool = KvPool::create(spec, KvLayout::kLBHNC, 65'600);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  const KvView view = pool->view(0);
  auto* base = static_cast<uint16_t*>(view.base);
  for (int64_t i = 0; i < 32768; ++i) base[view.k_offset(1, 0, 0) + i] = static_cast<uint16_t>(i);
  copy_kv_blocks(*pool, *pool, std::vector<BlockCopy>{{1, 65'599}, {65'599, 65'536}, {65'536, 3}});
  for (const int64_t block : {65'599, 65'536, 3}) {
    EXPECT_EQ(std::memcmp(base + view.k_offset(block, 0, 0), base + view.k_offset(1, 0, 0),
                          32768 * sizeof(uint16_t)),
              0)
        << block;
  }
  auto host = KvPool::create(spec, KvLayout::kLBHNC, 2);
  ASSERT_TRUE(host.ok());
  copy_kv_blocks(*pool, *host, std::vector<BlockCopy>{{65'599, 1}});
  EXPECT_EQ(std::memcmp(static_cast<uint16_t*>(host->view(0).base) + 32768,
                        base + view.k_offset(1, 0, 0), 32768 * sizeof(uint16_t)),
            0);
}

TEST(Att09, BlockIdsOutsideThePoolAreRefused) {
  for (const int32_t bad : {65'600, -2}) {
    SyntheticBatch batch = make_batch({{1, 41}}, 16, 4, 0);
    batch.page_indices[1] = bad;
    const Status status = validate_batch_view(batch.view, 16, 65'600);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr("block " + std::to_string(bad)));
  }
}

}  // namespace
}  // namespace tenon
