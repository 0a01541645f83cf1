// Runs a model over one sequence without the engine: prefill in chunks of any size, logits of any
// row. The KV cache is f32.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "attention/registry.h"
#include "kernels/ops.h"
#include "kv_cache/pool.h"
#include "models/model.h"

namespace tenon::tiny {

class ModelRunner {
 public:
  static constexpr int32_t kBlockSize = 4;

  // `ops` outlives the runner.
  ModelRunner(const ModelLoadOptions& options,
              Ops* ops,
              const char* backend = "reference",
              ThreadPool* threads = nullptr) {
    auto loaded = load_model(options, ops);
    status = loaded.status();
    if (!loaded.ok()) return;
    model = std::move(loaded).value();
    const LayerParams first = model->layers().front();
    BackendContext context;
    context.pool = threads;
    context.requirements.kv_dtype = DType::kF32;
    context.requirements.head_dim_qk = context.requirements.head_dim_v = first.head_dim_qk;
    context.requirements.num_q_heads = first.num_q_heads;
    context.requirements.num_kv_heads = first.num_kv_heads;
    context.requirements.block_size = kBlockSize;
    AttentionRegistry registry;
    register_attention_backends(registry);
    auto choice = get_attention_backend(registry, backend, context);
    status = choice.status();
    if (!choice.ok()) return;
    backend_ = std::move(choice->backend);
    const int32_t max_tokens =
        options.max_position > 0 ? options.max_position : model->config().max_position;
    status = backend_->prepare({1, max_tokens, max_tokens});
    if (!status.ok()) return;
    KvCacheSpec spec;
    spec.num_layers = model->config().num_layers;
    spec.num_kv_heads = first.num_kv_heads;
    spec.head_dim_k = spec.head_dim_v = first.head_dim_qk;
    spec.block_size = kBlockSize;
    spec.dtype = DType::kF32;
    num_blocks_ = (max_tokens + kBlockSize - 1) / kBlockSize;
    auto pool = KvPool::create(spec, resolve_kv_layout(*backend_), num_blocks_);
    status = pool.status();
    if (!pool.ok()) return;
    pool_ = std::make_unique<KvPool>(std::move(pool).value());
    std::vector<std::unique_ptr<AttentionImpl>> impls;
    for (LayerParams layer : model->layers()) {
      layer.kv = pool_->view(layer.layer);
      impls.push_back(backend_->make_impl(layer));
    }
    model->attach_attention(std::move(impls));
    status = model->reserve(max_tokens, max_tokens);
  }

  // Logits of every token of `ids`, or of the last of each step, fed in steps of `chunk` tokens.
  enum class Rows { kAll, kLast };
  std::vector<std::vector<float>> logits(const std::vector<int32_t>& ids,
                                         int32_t chunk,
                                         Rows wanted = Rows::kAll) {
    std::vector<std::vector<float>> all;
    const auto total = static_cast<int32_t>(ids.size());
    std::vector<int32_t> blocks(static_cast<size_t>(num_blocks_));
    std::iota(blocks.rbegin(), blocks.rend(), 0);  // not in order, so that the block table matters
    for (int32_t begin = 0; begin < total; begin += chunk) {
      const int32_t count = std::min(chunk, total - begin);
      std::vector<int32_t> positions(static_cast<size_t>(count));
      std::iota(positions.begin(), positions.end(), begin);
      std::vector<int64_t> slots;
      for (const int32_t position : positions) {
        slots.push_back(int64_t{blocks[static_cast<size_t>(position / kBlockSize)]} * kBlockSize +
                        position % kBlockSize);
      }
      const int32_t seq_len = begin + count;
      const std::vector<int32_t> query_start = {0, count};
      const std::vector<int32_t> seq_lens = {seq_len};
      const std::vector<int32_t> indptr = {0, (seq_len + kBlockSize - 1) / kBlockSize};
      BatchView batch;
      batch.query_start_loc = query_start;
      batch.seq_lens = seq_lens;
      batch.page_indptr = indptr;
      batch.page_indices = std::span(blocks).first(static_cast<size_t>(indptr[1]));
      batch.slot_mapping = slots;
      const bool decode = count == 1 && begin > 0;
      (decode      ? batch.num_decode_rows
       : begin > 0 ? batch.num_extend_rows
                   : batch.num_prefill_rows) = 1;
      (decode      ? batch.num_decode_tokens
       : begin > 0 ? batch.num_extend_tokens
                   : batch.num_prefill_tokens) = count;
      batch.max_query_len = count;
      batch.max_seq_len = seq_len;
      const auto metadata = backend_->build_metadata(batch);
      EXPECT_TRUE(metadata.ok()) << metadata.status().message();
      if (!metadata.ok()) return all;
      ModelInput input;
      input.token_ids =
          std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
      input.positions = positions;
      input.slot_mapping = slots;
      input.attention = *metadata;
      model->forward(input);
      std::vector<int32_t> rows = {count - 1};
      if (wanted == Rows::kAll) {
        rows.resize(static_cast<size_t>(count));
        std::iota(rows.begin(), rows.end(), 0);
      }
      const auto num_rows = static_cast<int64_t>(rows.size());
      const int64_t vocab = model->config().vocab_size;
      std::vector<float> out(static_cast<size_t>(num_rows * vocab));
      model->logits(rows, TensorView::dense(out.data(), DType::kF32, {num_rows, vocab}));
      for (int64_t i = 0; i < num_rows; ++i) {
        all.emplace_back(out.begin() + i * vocab, out.begin() + (i + 1) * vocab);
      }
    }
    return all;
  }

  Status status;
  std::unique_ptr<Model> model;

 private:
  std::unique_ptr<AttentionBackend> backend_;
  std::unique_ptr<KvPool> pool_;
  int64_t num_blocks_ = 0;
};

inline float max_difference(const std::vector<std::vector<float>>& a,
                            const std::vector<std::vector<float>>& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0.0F;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) worst = std::max(worst, std::abs(a[i][j] - b[i][j]));
  }
  return worst;
}

}  // namespace tenon::tiny
