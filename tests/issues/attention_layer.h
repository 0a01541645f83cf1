// One attention layer of one backend with its pool, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "attention/synthetic_batch.h"

namespace tenon {

inline const AttentionRegistry& test_registry() {
  static const AttentionRegistry made = [] {
    AttentionRegistry list;
    register_attention_backends(list);
    return list;
  }();
  return made;
}

inline std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const BackendEntry& entry : test_registry().entries()) {
    // Those of other devices have the conformance suite, where such a device is.
    const std::vector<DeviceType> devices = entry.make({})->info().devices;
    if (std::find(devices.begin(), devices.end(), DeviceType::kCpu) != devices.end()) {
      names.push_back(entry.name);
    }
  }
  return names;
}

struct LayerOptions {
  int32_t num_q_heads = 1;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 64;
  int32_t block_size = 16;
  DType dtype = DType::kF32;
  float scale = 1.0F;
  KvScales kv_scales = {};
  CascadeMode cascade = CascadeMode::kAuto;
};

class TestLayer {
 public:
  // Takes `view` instead of a pool of its own when given.
  TestLayer(const std::string& backend,
            const LayerOptions& options,
            int64_t num_blocks,
            std::optional<KvView> view = {})
      : options_(options) {
    BackendContext context;
    AttentionRequirements& r = context.requirements;
    r.kv_dtype = options.dtype;
    r.head_dim_qk = r.head_dim_v = options.head_dim;
    r.num_q_heads = options.num_q_heads;
    r.num_kv_heads = options.num_kv_heads;
    r.block_size = options.block_size;
    r.needs_lse = true;
    context.pool = &threads_;
    context.cascade = options.cascade;
    auto choice = get_attention_backend(test_registry(), backend, context);
    EXPECT_TRUE(choice.ok()) << choice.status().message();
    backend_ = std::move(choice->backend);
    EXPECT_TRUE(backend_->prepare({64, 256, 4096}).ok());
    if (!view) {
      auto pool = KvPool::create({1, options.num_kv_heads, options.head_dim, options.head_dim,
                                  options.block_size, options.dtype},
                                 resolve_kv_layout(*backend_), num_blocks);
      EXPECT_TRUE(pool.ok()) << pool.status().message();
      pool_ = std::move(*pool);
      view = pool_.view(0);
    }
    kv_ = *view;
    kv_.scales = options.kv_scales;
    LayerParams params;
    params.num_q_heads = options.num_q_heads;
    params.num_kv_heads = options.num_kv_heads;
    params.head_dim_qk = params.head_dim_v = options.head_dim;
    params.scale = options.scale;
    params.kv = kv_;
    impl_ = backend_->make_impl(params);
  }

  AttentionBackend& backend() { return *backend_; }
  const KvView& kv() const { return kv_; }
  size_t kv_width() const {
    return static_cast<size_t>(options_.num_kv_heads) * static_cast<size_t>(options_.head_dim);
  }
  size_t q_width() const {
    return static_cast<size_t>(options_.num_q_heads) * static_cast<size_t>(options_.head_dim);
  }

  // k, v: [slots, kv_width].
  void write(std::vector<float> k, std::vector<float> v, const std::vector<int64_t>& slots) {
    const auto rows = static_cast<int64_t>(slots.size());
    const auto width = static_cast<int64_t>(kv_width());
    impl_->write_kv(TensorView::dense(k.data(), DType::kF32, {rows, width}),
                    TensorView::dense(v.data(), DType::kF32, {rows, width}), slots);
  }

  struct Output {
    std::vector<float> out;  // [T, q_width]
    std::vector<float> lse;  // [T, q_heads]
  };
  Output forward(const BatchView& view, std::vector<float> q) {
    auto metadata = backend_->build_metadata(view);
    EXPECT_TRUE(metadata.ok()) << metadata.status().message();
    Output output;
    const int64_t tokens = view.num_tokens();
    output.out.assign(static_cast<size_t>(tokens) * q_width(), -1.0F);
    output.lse.assign(static_cast<size_t>(tokens * options_.num_q_heads), -1.0F);
    const auto width = static_cast<int64_t>(q_width());
    AttentionInput in;
    in.q = TensorView::dense(q.data(), DType::kF32, {tokens, width});
    in.out = TensorView::dense(output.out.data(), DType::kF32, {tokens, width});
    in.lse = output.lse;
    impl_->forward(in, **metadata);
    return output;
  }

 private:
  LayerOptions options_;
  ThreadPool threads_{2};
  std::unique_ptr<AttentionBackend> backend_;
  KvPool pool_;
  KvView kv_;
  std::unique_ptr<AttentionImpl> impl_;
};

// Slots of keys [0, seq_len) of a row of `batch`.
inline std::vector<int64_t> slots_of(const SyntheticBatch& batch, size_t row, int32_t block_size) {
  std::vector<int64_t> slots;
  for (int32_t key = 0; key < batch.seq_lens[row]; ++key) {
    const auto page = static_cast<size_t>(batch.page_indptr[row] + key / block_size);
    slots.push_back(int64_t{batch.page_indices[page]} * block_size + key % block_size);
  }
  return slots;
}

class EveryBackend : public testing::TestWithParam<std::string> {};

}  // namespace tenon

#define TENON_FOR_EVERY_BACKEND(suite)                                                     \
  INSTANTIATE_TEST_SUITE_P(Registered, suite, testing::ValuesIn(::tenon::backend_names()), \
                           [](const auto& test) { return test.param; })
