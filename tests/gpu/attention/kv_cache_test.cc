// What the CUDA attention backends share: KV writes with and without RoPE, block copies and swaps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "attention/backends/reference/reference_backend.h"
#include "attention/cuda/kv_block_mover.h"
#include "attention/cuda/kv_write.h"
#include "kernels/ops.h"
#include "kv_cache/pool.h"
#include "tests/gpu.h"
#include "tests/gpu/kernels/gpu_matrix.h"

namespace tenon {
namespace {

using testing::expect_within;
using testing::GpuArray;
using testing::GpuMatrix;
using testing::normal_values;
using testing::rounded;
using testing::unit_roundoff;

// A pool on the device whose cells are NaN until written.
Result<KvPool> make_pool(CudaDevice* device, const KvCacheSpec& spec, KvLayout layout, int blocks) {
  TENON_ASSIGN_OR_RETURN(KvPool pool, KvPool::create(spec, layout, blocks, [&](size_t bytes) {
                           return device->allocate(bytes);
                         }));
  const std::vector<std::byte> poison(static_cast<size_t>(pool.bytes()), std::byte{0xFF});
  device->write(pool.view(0).base, poison.data(), poison.size());
  return pool;
}

// All cells, in the order they have in memory. The base of a pool's first layer is that of its
// memory.
std::vector<float> cells_of(CudaDevice* device, const KvPool& pool) {
  std::vector<std::byte> bytes(static_cast<size_t>(pool.bytes()));
  device->read(bytes.data(), pool.view(0).base, bytes.size());
  return testing::decoded(pool.spec().dtype, bytes);
}

struct WriteCase {
  int32_t head_dim_k, head_dim_v, rotary_dim;
  int32_t q_heads, kv_heads;
  bool interleaved;
  KvLayout layout;
  DType dtype, cache_dtype;
};

void PrintTo(const WriteCase& c, std::ostream* out) {
  *out << "head_dim " << c.head_dim_k << "/" << c.head_dim_v << " rotary_dim " << c.rotary_dim
       << (c.interleaved ? " interleaved" : "") << " heads " << c.q_heads << "/" << c.kv_heads
       << " " << kv_layout_name(c.layout) << " " << dtype_traits(c.dtype).name << " in "
       << dtype_traits(c.cache_dtype).name;
}

class KvWrite : public ::testing::TestWithParam<WriteCase> {};

// T tokens at scattered slots, some nowhere, in layer 1 of 2: cells hold what the host computes,
// and every other cell of the pool stays as it was.
TEST_P(KvWrite, CellsHoldWhatTheHostComputes) {
  TENON_GPU_OR_SKIP(device);
  const WriteCase& c = GetParam();
  KvCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = c.kv_heads;
  spec.head_dim_k = c.head_dim_k;
  spec.head_dim_v = c.head_dim_v;
  spec.dtype = c.cache_dtype;
  const int blocks = 20;
  const int64_t q_cols = int64_t{c.q_heads} * c.head_dim_k;
  const int64_t k_cols = int64_t{c.kv_heads} * c.head_dim_k;
  const int64_t v_cols = int64_t{c.kv_heads} * c.head_dim_v;
  const int64_t width = q_cols + k_cols + v_cols;
  const auto reference = make_reference_ops();
  for (const int64_t tokens : {1, 3, 17, 257}) {
    for (const bool with_rope : {true, false}) {
      auto pool = make_pool(device, spec, c.layout, blocks);
      ASSERT_TRUE(pool.ok()) << pool.status().message();
      KvView kv = pool->view(1);
      kv.scales.k = 2.0F;  // exact in every type
      kv.scales.v = 0.5F;

      std::vector<int64_t> slots(static_cast<size_t>(tokens));
      std::vector<int32_t> positions(static_cast<size_t>(tokens));
      for (size_t i = 0; i < slots.size(); ++i) {
        slots[i] = i % 5 == 3 ? -1 : static_cast<int64_t>(i * 7 % (blocks * 16));
        positions[i] = static_cast<int32_t>(i * 11 % 300);
      }
      RopeTable table;
      table.rotary_dim = c.rotary_dim;
      table.interleaved = c.interleaved;
      for (int32_t i = 0; i < 300 * c.rotary_dim / 2; ++i) {
        table.cos.push_back(std::cos(0.37F * static_cast<float>(i)));
        table.sin.push_back(std::sin(0.37F * static_cast<float>(i)));
      }
      std::vector<float> qkv = normal_values(tokens * width, 3);
      for (float& value : qkv) value = rounded(c.dtype, value);
      GpuMatrix activations(device, c.dtype, tokens, width);
      activations.set(qkv);
      const GpuArray<int64_t> gpu_slots(device, slots);
      const GpuArray<int32_t> gpu_positions(device, positions);
      const GpuArray<float> cos(device, table.cos);
      const GpuArray<float> sin(device, table.sin);
      AttentionInput in;
      in.q = activations.view().columns(0, q_cols);
      in.k = activations.view().columns(q_cols, k_cols);
      in.v = activations.view().columns(q_cols + k_cols, v_cols);
      if (with_rope) {
        rope_and_write_kv_on_gpu(
            device, kv, in, gpu_slots.span(),
            {gpu_positions.span(), {c.rotary_dim, c.interleaved, cos.span(), sin.span()}});
        TensorView rows = TensorView::dense(qkv.data(), DType::kF32, {tokens, width});
        reference->rope(rows.columns(0, q_cols + k_cols), positions, c.head_dim_k, table);
      } else {
        write_kv_on_gpu(device, kv, in.k, in.v, gpu_slots.span());
      }
      const float unit = unit_roundoff(c.dtype);
      expect_within(activations.get(), qkv, "activations", [&](size_t i) {
        const bool rotated = with_rope && static_cast<int64_t>(i) % width < q_cols + k_cols;
        return rotated ? 1.01F * unit * std::abs(qkv[i]) + 1e-5F : 0.0F;
      });

      // What the cache should hold; NaN where nothing was written.
      std::vector<float> want(static_cast<size_t>(pool->bytes() / 2), NAN);
      const auto* first = static_cast<const std::byte*>(pool->view(0).base);
      const int64_t layer = (static_cast<const std::byte*>(kv.base) - first) / 2;
      for (size_t t = 0; t < slots.size(); ++t) {
        if (slots[t] < 0) continue;
        const float* row = &qkv[t * static_cast<size_t>(width)];
        for (int32_t head = 0; head < c.kv_heads; ++head) {
          const auto at = [&](int64_t i) {
            return static_cast<size_t>(layer + kv.element(slots[t] / 16, head, slots[t] % 16, i));
          };
          for (int32_t i = 0; i < c.head_dim_k; ++i) {
            want[at(i)] = row[q_cols + head * c.head_dim_k + i] / 2.0F;
          }
          for (int32_t i = 0; i < c.head_dim_v; ++i) {
            want[at(kv.v_offset + i)] = row[q_cols + k_cols + head * c.head_dim_v + i] * 2.0F;
          }
        }
      }
      const std::vector<float> got = cells_of(device, *pool);
      size_t bad = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(want[i])) {
          bad += std::isnan(got[i]) ? 0 : 1;
        } else {
          // One rounding of the activation, one of the cell.
          const float bound =
              1.01F * (unit + unit_roundoff(c.cache_dtype)) * std::abs(want[i]) + 2e-5F;
          bad += std::abs(got[i] - want[i]) <= bound ? 0 : 1;
        }
      }
      EXPECT_EQ(bad, 0U) << tokens << " tokens, " << (with_rope ? "with" : "without") << " RoPE";
    }
  }
}

constexpr DType kB = DType::kBF16;
constexpr DType kH = DType::kF16;
INSTANTIATE_TEST_SUITE_P(
    Cases,
    KvWrite,
    ::testing::Values(WriteCase{128, 128, 128, 32, 8, false, KvLayout::kLBNHC, kB, kB},
                      WriteCase{128, 128, 128, 8, 2, true, KvLayout::kLBHNC, kB, kB},
                      WriteCase{64, 64, 64, 9, 3, false, KvLayout::kLBHNC, kB, kB},
                      WriteCase{64, 64, 64, 9, 3, false, KvLayout::kBLHNC, kH, kH},
                      WriteCase{80, 80, 32, 4, 4, false, KvLayout::kLBNHC, kB, kH},
                      WriteCase{96, 96, 48, 4, 1, true, KvLayout::kLBNHC, kH, kB},
                      WriteCase{72, 72, 72, 3, 3, false, KvLayout::kLBHNC, kB, kB},
                      WriteCase{72, 40, 20, 3, 1, true, KvLayout::kLBNHC, kH, kH},
                      WriteCase{256, 128, 64, 2, 1, false, KvLayout::kLBNHC, kB, kB},
                      WriteCase{128, 128, 128, 32, 8, false, KvLayout::kLBHNCSwizzled, kB, kB},
                      WriteCase{64, 64, 32, 9, 3, true, KvLayout::kLBHNCSwizzled, kH, kH},
                      WriteCase{192, 192, 20, 4, 2, false, KvLayout::kLBHNCSwizzled, kB, kH}));

// Cells of 8 bits: the bits that the reference backend writes, token scales included, also of
// values that saturate and of heads of zeros; head sizes that are no multiple of 8 too.
class QuantisedKvWrite : public ::testing::TestWithParam<std::tuple<DType, DType, int32_t>> {};

TEST_P(QuantisedKvWrite, BitsAreTheReferences) {
  TENON_GPU_OR_SKIP(device);
  const auto [cell, dtype, head_dim] = GetParam();
  KvCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 3;
  spec.head_dim_k = head_dim;
  spec.head_dim_v = head_dim;
  spec.dtype = cell;
  constexpr int kBlocks = 8;
  constexpr int64_t kTokens = 70;
  const int64_t width = int64_t{spec.num_kv_heads} * head_dim;
  std::vector<float> k = normal_values(kTokens * width, 5);
  std::vector<float> v = normal_values(kTokens * width, 6);
  for (size_t i = 0; i < k.size(); ++i) {
    const auto token = static_cast<int64_t>(i) / width;
    if (token == 3) k[i] *= 3000.0F;
    if (token == 4) k[i] *= 1e-6F;
    if (token == 5) v[i] = 0.0F;
    k[i] = rounded(dtype, k[i]);
    v[i] = rounded(dtype, v[i]);
  }
  std::vector<int64_t> slots(kTokens);
  for (int64_t i = 0; i < kTokens; ++i) {
    slots[static_cast<size_t>(i)] = i % 9 == 8 ? -1 : i * 5 % (kBlocks * 16);
  }
  const std::vector<float> k_heads = {0.3F, 1.0F, 2.7F};
  const std::vector<float> v_heads = {1.1F, 0.01F, 1.0F};
  for (const KvLayout layout : {KvLayout::kLBHNC, KvLayout::kLBNHC, KvLayout::kLBHNCSwizzled}) {
    if (!spec.allows(layout)) continue;
    for (const bool by_head : {false, true}) {
      auto pool = make_pool(device, spec, layout, kBlocks);
      auto host = KvPool::create(spec, layout, kBlocks);
      ASSERT_TRUE(pool.ok() && host.ok());
      std::memset(host->view(0).base, 0xFF, static_cast<size_t>(host->bytes()));
      const auto with_scales = [&](KvView view) {
        view.scales = {0.07F, 0.9F,
                       by_head ? std::span<const float>(k_heads) : std::span<const float>(),
                       by_head ? std::span<const float>(v_heads) : std::span<const float>()};
        return view;
      };
      const KvView kv = with_scales(pool->view(1));
      std::vector<float> k_scales, v_scales;
      for (int32_t head = 0; head < spec.num_kv_heads; ++head) {
        k_scales.push_back(kv.scales.k_of(head));
        v_scales.push_back(kv.scales.v_of(head));
      }
      const GpuArray<float> gpu_k_scales(device, k_scales);
      const GpuArray<float> gpu_v_scales(device, v_scales);
      const GpuArray<int64_t> gpu_slots(device, slots);
      GpuMatrix gpu_k(device, dtype, kTokens, width);
      GpuMatrix gpu_v(device, dtype, kTokens, width);
      gpu_k.set(k);
      gpu_v.set(v);
      HeadScales scales;
      if (by_head) scales = {gpu_k_scales.span().data(), gpu_v_scales.span().data()};
      write_kv_on_gpu(device, kv, gpu_k.view(), gpu_v.view(), gpu_slots.span(), scales);

      BackendContext context;
      context.requirements.kv_dtype = cell;
      const auto reference = make_reference_attention(context);
      LayerParams params;
      params.kv = with_scales(host->view(1));
      reference->make_impl(params)->write_kv(
          TensorView::dense(k.data(), DType::kF32, {kTokens, width}),
          TensorView::dense(v.data(), DType::kF32, {kTokens, width}), slots);

      std::vector<std::byte> got(static_cast<size_t>(pool->bytes()));
      device->read(got.data(), pool->view(0).base, got.size());
      const auto* want = static_cast<const std::byte*>(host->view(0).base);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want))
          << kv_layout_name(layout) << (by_head ? ", scales by head" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         QuantisedKvWrite,
                         ::testing::Combine(::testing::Values(DType::kF8E4M3, DType::kI8),
                                            ::testing::Values(kB, kH),
                                            ::testing::Values(128, 64, 80, 20, 13, 320)));

class KvBlocks : public ::testing::TestWithParam<KvLayout> {
 protected:
  void SetUp() override {
    TENON_GPU_OR_SKIP(device);
    device_ = device;
    spec_.num_layers = 3;
    spec_.num_kv_heads = 2;
    spec_.head_dim_k = 64;
    spec_.head_dim_v = 64;
    spec_.dtype = DType::kBF16;
  }
  // A pool in host memory with distinct bytes everywhere.
  [[nodiscard]] KvPool numbered(int blocks, uint32_t seed) const {
    auto pool = KvPool::create(spec_, GetParam(), blocks,
                               [&](size_t bytes) { return device_->allocate_host(bytes); });
    TENON_CHECK(pool.ok());
    auto* words = static_cast<uint32_t*>(pool->view(0).base);
    for (int64_t i = 0; i < pool->bytes() / 4; ++i) {
      words[i] = seed * 0x1000000U + static_cast<uint32_t>(i);
    }
    return std::move(pool).value();
  }
  [[nodiscard]] KvPool on_device(int blocks) const {
    auto pool = KvPool::create(spec_, GetParam(), blocks,
                               [&](size_t bytes) { return device_->allocate(bytes); });
    TENON_CHECK(pool.ok());
    return std::move(pool).value();
  }
  static void* memory(const KvPool& pool) { return pool.view(0).base; }
  [[nodiscard]] static std::vector<std::byte> bytes_of(const KvPool& pool) {
    const auto* data = static_cast<const std::byte*>(memory(pool));
    return {data, data + pool.bytes()};
  }
  [[nodiscard]] std::vector<std::byte> device_bytes(const KvPool& pool) const {
    std::vector<std::byte> bytes(static_cast<size_t>(pool.bytes()));
    device_->read(bytes.data(), memory(pool), bytes.size());
    EXPECT_TRUE(device_->status().ok()) << device_->status().message();
    return bytes;
  }

  CudaDevice* device_ = nullptr;
  KvCacheSpec spec_;
};

// As on the host: chains, a block that is copied from after it was copied to, more copies than one
// launch takes.
TEST_P(KvBlocks, CopiesFollowTheirOrder) {
  KvPool host = numbered(400, 1);
  KvPool pool = on_device(400);
  device_->write(memory(pool), memory(host), static_cast<size_t>(pool.bytes()));
  std::vector<BlockCopy> copies = {{1, 2}, {2, 3}, {3, 3}, {0, 1}, {5, 2}, {2, 6}, {7, 8}, {9, 7}};
  for (int32_t i = 0; i < 150; ++i) copies.push_back({20 + i, 220 + i});
  for (int32_t i = 0; i < 30; ++i) copies.push_back({220 + i, 221 + i});  // each on the one before
  copy_kv_blocks(host, host, copies);
  KvBlockMover mover(device_);
  mover.copy(pool, copies);
  EXPECT_EQ(device_bytes(pool), bytes_of(host));
}

// Out and back in to other blocks, with the device writing to the blocks before and after: the
// copies carry what was there between.
TEST_P(KvBlocks, SwapsAreOrderedWithTheWorkOfTheDevice) {
  KvPool old_values = numbered(64, 1);
  KvPool values = numbered(64, 2);
  KvPool later = numbered(64, 3);
  KvPool pool = on_device(64);
  KvPool swapped = numbered(100, 4);
  KvPool expected = numbered(100, 4);
  const auto upload = [&](const KvPool& from) {
    device_->upload(memory(pool), memory(from), static_cast<size_t>(pool.bytes()));
  };
  std::vector<BlockCopy> out;
  std::vector<BlockCopy> in;
  for (int32_t i = 0; i < 20; ++i) out.push_back({5 + i, 70 + i});       // a run
  for (int32_t i = 0; i < 20; ++i) out.push_back({40 + i, 60 - 2 * i});  // scattered
  for (const BlockCopy& copy : out) in.push_back({copy.dst, 63 - copy.src % 64});
  KvBlockMover mover(device_);
  upload(old_values);
  upload(values);
  mover.swap(pool, swapped, out);
  upload(later);
  mover.swap(swapped, pool, in);
  const std::vector<std::byte> got = device_bytes(pool);

  copy_kv_blocks(values, expected, out);
  copy_kv_blocks(expected, later, in);
  EXPECT_EQ(got, bytes_of(later));
  EXPECT_EQ(bytes_of(swapped), bytes_of(expected));
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         KvBlocks,
                         ::testing::Values(KvLayout::kLBHNC,
                                           KvLayout::kLBNHC,
                                           KvLayout::kBLHNC,
                                           KvLayout::kLBHNCSwizzled));

}  // namespace
}  // namespace tenon
