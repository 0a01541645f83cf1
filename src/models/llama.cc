#include "models/llama.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "models/rope_table.h"

namespace tenon {
namespace {

// One tensor's name in the two worlds; "{}" is the layer.
struct Names {
  std::string_view embedding, final_norm, head;
  std::string_view attention_norm, q, k, v, o, mlp_norm, gate, up, down;
};

constexpr Names kGgufNames = {
    "token_embd.weight",       "output_norm.weight",        "output.weight",
    "blk.{}.attn_norm.weight", "blk.{}.attn_q.weight",      "blk.{}.attn_k.weight",
    "blk.{}.attn_v.weight",    "blk.{}.attn_output.weight", "blk.{}.ffn_norm.weight",
    "blk.{}.ffn_gate.weight",  "blk.{}.ffn_up.weight",      "blk.{}.ffn_down.weight"};

constexpr Names kHuggingFaceNames = {"model.embed_tokens.weight",
                                     "model.norm.weight",
                                     "lm_head.weight",
                                     "model.layers.{}.input_layernorm.weight",
                                     "model.layers.{}.self_attn.q_proj.weight",
                                     "model.layers.{}.self_attn.k_proj.weight",
                                     "model.layers.{}.self_attn.v_proj.weight",
                                     "model.layers.{}.self_attn.o_proj.weight",
                                     "model.layers.{}.post_attention_layernorm.weight",
                                     "model.layers.{}.mlp.gate_proj.weight",
                                     "model.layers.{}.mlp.up_proj.weight",
                                     "model.layers.{}.mlp.down_proj.weight"};

// A million tokens at the largest head sizes in use; a file may claim any context length.
constexpr int64_t kMaxRopeTableBytes = int64_t{1} << 30;

// The tensors of one layer, and those outside layers.
struct LayerSpecs {
  TensorSpec attention_norm, q, k, v, o, mlp_norm, gate, up, down;
};
struct GlobalSpecs {
  TensorSpec embedding, final_norm, head;
};

class Specs {
 public:
  Specs(const ModelConfig& config, WeightNaming naming)
      : config_(config), names_(naming == WeightNaming::kGguf ? kGgufNames : kHuggingFaceNames) {}

  [[nodiscard]] LayerSpecs layer(int32_t index) const {
    const int64_t hidden = config_.hidden_size;
    const int64_t inner = config_.intermediate_size;
    const int64_t q_rows = int64_t{config_.num_heads} * config_.head_dim;
    const int64_t kv_rows = int64_t{config_.num_kv_heads} * config_.head_dim;
    const auto name = [&](std::string_view format) {
      return fmt::format(fmt::runtime(format), index);
    };
    return {{name(names_.attention_norm), {hidden}, true},
            {name(names_.q), {q_rows, hidden}},
            {name(names_.k), {kv_rows, hidden}},
            {name(names_.v), {kv_rows, hidden}},
            {name(names_.o), {hidden, q_rows}},
            {name(names_.mlp_norm), {hidden}, true},
            {name(names_.gate), {inner, hidden}},
            {name(names_.up), {inner, hidden}},
            {name(names_.down), {hidden, inner}}};
  }
  [[nodiscard]] GlobalSpecs global() const {
    const int64_t hidden = config_.hidden_size;
    const int64_t vocab = config_.vocab_size;
    return {{std::string(names_.embedding), {vocab, hidden}},
            {std::string(names_.final_norm), {hidden}, true},
            {std::string(names_.head), {vocab, hidden}}};
  }

 private:
  const ModelConfig& config_;
  const Names& names_;
};

// f32 numbers in memory of the device.
struct DeviceVector {
  Buffer memory;
  [[nodiscard]] std::span<const float> span() const {
    return {memory.as<const float>(), memory.size() / sizeof(float)};
  }
};

struct LlamaLayer {
  DeviceVector attention_norm, mlp_norm;
  std::unique_ptr<LinearWeight> qkv, o, gate_up, down;
  std::unique_ptr<AttentionImpl> attention;
};

// Activation memory of one step: residual in f32, the rest as the operators want it. forward()
// leaves its results in `residual` and `attention`; logits() gathers the wanted rows of both into
// `last_*` and may use everything else.
struct Activations {
  Buffer residual, hidden, qkv, attention, projection, gate_up, inner;
  Buffer last_residual, last_attention;
  int32_t max_tokens = 0;
  int32_t max_logits_rows = 0;
};

class Llama : public Model {
 public:
  Llama(Checkpoint checkpoint, Ops* ops) : checkpoint_(std::move(checkpoint)), ops_(ops) {}

  Status load(const ModelLoadOptions& options);

  [[nodiscard]] const ModelConfig& config() const override { return checkpoint_.config; }
  [[nodiscard]] std::vector<LayerParams> layers() const override;
  void attach_attention(std::vector<std::unique_ptr<AttentionImpl>> impls) override;
  Status reserve(int32_t max_tokens, int32_t max_logits_rows) override;
  // The last layer is computed up to its attention only: what follows works row by row, and
  // logits() does it for the rows that are wanted. A prefill thus spares one MLP of all tokens but
  // the last.
  void forward(const ModelInput& input) override;
  void logits(std::span<const int32_t> rows, const TensorView& out) override;
  [[nodiscard]] int64_t weight_bytes() const override { return weight_bytes_; }
  [[nodiscard]] std::string weight_summary() const override { return checkpoint_.summary(); }

 private:
  struct LayerSources {
    std::vector<float> attention_norm, mlp_norm;
    std::array<WeightSource, 3> qkv;
    std::array<WeightSource, 1> o;
    std::array<WeightSource, 2> gate_up;
    std::array<WeightSource, 1> down;
  };
  LayerSources take_layer(const LayerSpecs& specs);
  Status load_vector(const std::vector<float>& values, DeviceVector& vector);
  Status build_linear(std::span<const WeightSource> parts, std::unique_ptr<LinearWeight>& weight);

  [[nodiscard]] int64_t q_features() const {
    return int64_t{config().num_heads} * config().head_dim;
  }
  [[nodiscard]] int64_t kv_features() const {
    return int64_t{config().num_kv_heads} * config().head_dim;
  }
  // A view of the first `rows` rows of an activation.
  [[nodiscard]] TensorView rows_of(const Buffer& buffer, int64_t rows, int64_t cols) const {
    return TensorView::dense(buffer.data(), ops_->activation_dtype(), {rows, cols});
  }
  [[nodiscard]] TensorView residual_of(const Buffer& buffer, int64_t rows) const {
    return TensorView::dense(buffer.data(), DType::kF32, {rows, config().hidden_size});
  }
  void linear(const LinearWeight& weight, const TensorView& x, const TensorView& y);
  void attend(LlamaLayer& layer, const ModelInput& input, const TensorView& hidden);
  void feed_forward(const LlamaLayer& layer,
                    const TensorView& residual,
                    const TensorView& attention,
                    const TensorView& out);

  Checkpoint checkpoint_;  // first: weights may point into its memory
  Ops* ops_;
  bool exact_ = false;
  DeviceVector final_norm_;
  std::unique_ptr<LinearWeight> head_;
  std::unique_ptr<EmbeddingTable> embedding_;
  std::vector<LlamaLayer> layers_;
  RopeView rope_;
  Buffer rope_cos_, rope_sin_;
  int64_t weight_bytes_ = 0;
  Activations act_;
  int64_t last_tokens_ = 0;  // of the last forward()
};

Llama::LayerSources Llama::take_layer(const LayerSpecs& specs) {
  return {checkpoint_.take_vector(specs.attention_norm),
          checkpoint_.take_vector(specs.mlp_norm),
          {checkpoint_.take_matrix(specs.q), checkpoint_.take_matrix(specs.k),
           checkpoint_.take_matrix(specs.v)},
          {checkpoint_.take_matrix(specs.o)},
          {checkpoint_.take_matrix(specs.gate), checkpoint_.take_matrix(specs.up)},
          {checkpoint_.take_matrix(specs.down)}};
}

Status Llama::load_vector(const std::vector<float>& values, DeviceVector& vector) {
  TENON_ASSIGN_OR_RETURN(vector.memory, to_device<float>(ops_->device(), values));
  weight_bytes_ += static_cast<int64_t>(vector.memory.size());
  return ok_status();
}

Status Llama::build_linear(std::span<const WeightSource> parts,
                           std::unique_ptr<LinearWeight>& weight) {
  auto made = ops_->make_linear(parts, exact_);
  if (!made.ok()) return made.status().with_context(checkpoint_.path);
  weight = std::move(made).value();
  weight_bytes_ += weight->bytes();
  return ok_status();
}

Status Llama::load(const ModelLoadOptions& options) {
  const ModelConfig& cfg = config();
  exact_ = options.exact;
  const Specs specs(cfg, checkpoint_.naming);

  // Everything is taken and checked before any weight is used.
  const GlobalSpecs global = specs.global();
  const WeightSource embedding_source = checkpoint_.take_matrix(global.embedding);
  const std::vector<float> final_norm = checkpoint_.take_vector(global.final_norm);
  WeightSource head_source = embedding_source;
  if (cfg.tie_word_embeddings) {
    checkpoint_.ignore(global.head.name);  // some writers store the tied matrix twice
  } else {
    head_source = checkpoint_.take_matrix(global.head);
  }
  std::vector<LayerSources> sources;
  layers_.resize(static_cast<size_t>(cfg.num_layers));
  for (int32_t i = 0; i < cfg.num_layers; ++i) {
    sources.push_back(take_layer(specs.layer(i)));
    // A constant of older exporters; the table is computed from the config.
    checkpoint_.ignore(fmt::format("model.layers.{}.self_attn.rotary_emb.inv_freq", i));
  }
  TENON_RETURN_IF_ERROR(checkpoint_.finish());

  const auto report = [&](double done, std::string_view what) {
    if (options.progress) options.progress(done, std::string(what));
  };
  const double steps = cfg.num_layers + 1.0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    report(static_cast<double>(i) / steps, fmt::format("layer {}/{}", i + 1, cfg.num_layers));
    LlamaLayer& layer = layers_[i];
    TENON_RETURN_IF_ERROR(build_linear(sources[i].qkv, layer.qkv));
    TENON_RETURN_IF_ERROR(build_linear(sources[i].o, layer.o));
    TENON_RETURN_IF_ERROR(build_linear(sources[i].gate_up, layer.gate_up));
    TENON_RETURN_IF_ERROR(build_linear(sources[i].down, layer.down));
    TENON_RETURN_IF_ERROR(load_vector(sources[i].attention_norm, layer.attention_norm));
    TENON_RETURN_IF_ERROR(load_vector(sources[i].mlp_norm, layer.mlp_norm));
  }
  report(static_cast<double>(cfg.num_layers) / steps, "output head");
  TENON_RETURN_IF_ERROR(build_linear({&head_source, 1}, head_));
  TENON_RETURN_IF_ERROR(load_vector(final_norm, final_norm_));
  auto embedding =
      ops_->make_embedding(embedding_source, cfg.tie_word_embeddings ? head_.get() : nullptr);
  if (!embedding.ok()) return embedding.status().with_context(checkpoint_.path);
  embedding_ = std::move(embedding).value();
  weight_bytes_ += embedding_->bytes();
  const int32_t positions = options.max_position > 0 ? options.max_position : cfg.max_position;
  const int64_t table_bytes = int64_t{positions} * cfg.rotary_dim * int64_t{sizeof(float)};
  if (table_bytes > kMaxRopeTableBytes) {
    return resource_exhausted(
        "{}: a context of {} tokens needs a RoPE table of {} bytes, above the "
        "limit of {}; choose a shorter context",
        checkpoint_.path, positions, table_bytes, kMaxRopeTableBytes);
  }
  const RopeTable table = make_rope_table(cfg, positions);
  TENON_ASSIGN_OR_RETURN(rope_cos_, to_device<float>(ops_->device(), table.cos));
  TENON_ASSIGN_OR_RETURN(rope_sin_, to_device<float>(ops_->device(), table.sin));
  rope_ = table;
  rope_.cos = {rope_cos_.as<const float>(), table.cos.size()};
  rope_.sin = {rope_sin_.as<const float>(), table.sin.size()};
  report(1.0, "ready");
  return ok_status();
}

std::vector<LayerParams> Llama::layers() const {
  std::vector<LayerParams> all(layers_.size());
  for (size_t i = 0; i < all.size(); ++i) {
    LayerParams& layer = all[i];
    layer.layer = static_cast<int32_t>(i);
    layer.num_q_heads = config().num_heads;
    layer.num_kv_heads = config().num_kv_heads;
    layer.head_dim_qk = config().head_dim;
    layer.head_dim_v = config().head_dim;
    layer.scale = 1.0F / std::sqrt(static_cast<float>(config().head_dim));
  }
  return all;
}

void Llama::attach_attention(std::vector<std::unique_ptr<AttentionImpl>> impls) {
  TENON_CHECK_EQ(impls.size(), layers_.size());
  for (size_t i = 0; i < impls.size(); ++i) layers_[i].attention = std::move(impls[i]);
}

Status Llama::reserve(int32_t max_tokens, int32_t max_logits_rows) {
  TENON_CHECK_GT(max_tokens, 0);
  TENON_CHECK_GT(max_logits_rows, 0);
  const int64_t hidden = config().hidden_size;
  const int64_t inner = config().intermediate_size;
  const auto take = [&](Buffer& buffer, int64_t rows, int64_t cols, DType dtype) {
    const auto bytes = static_cast<size_t>(dtype_bytes(dtype, rows * cols));
    buffer = Buffer();  // the old memory first
    auto made = ops_->device().allocate(bytes);
    if (!made.ok()) {
      return made.status().with_context(fmt::format("activations for {} tokens a step", rows));
    }
    buffer = std::move(made).value();
    return ok_status();
  };
  const DType dtype = ops_->activation_dtype();
  const int32_t scratch_rows = std::max(max_tokens, max_logits_rows);
  TENON_RETURN_IF_ERROR(take(act_.residual, max_tokens, hidden, DType::kF32));
  TENON_RETURN_IF_ERROR(take(act_.attention, max_tokens, q_features(), dtype));
  TENON_RETURN_IF_ERROR(take(act_.qkv, max_tokens, q_features() + 2 * kv_features(), dtype));
  TENON_RETURN_IF_ERROR(take(act_.hidden, scratch_rows, hidden, dtype));
  TENON_RETURN_IF_ERROR(take(act_.projection, scratch_rows, hidden, dtype));
  TENON_RETURN_IF_ERROR(take(act_.gate_up, scratch_rows, 2 * inner, dtype));
  TENON_RETURN_IF_ERROR(take(act_.inner, scratch_rows, inner, dtype));
  TENON_RETURN_IF_ERROR(take(act_.last_residual, max_logits_rows, hidden, DType::kF32));
  TENON_RETURN_IF_ERROR(take(act_.last_attention, max_logits_rows, q_features(), dtype));
  act_.max_tokens = max_tokens;
  act_.max_logits_rows = max_logits_rows;
  std::vector<LinearUse> uses = {{head_.get(), DType::kF32, max_logits_rows}};
  for (const LlamaLayer& layer : layers_) {
    for (const auto* weight : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      uses.push_back({weight->get(), dtype, scratch_rows});
    }
  }
  return ops_->prepare(uses);
}

void Llama::linear(const LinearWeight& weight, const TensorView& x, const TensorView& y) {
  ops_->device().enter(StepSection::kLinear);
  ops_->linear(weight, x, y);
  ops_->device().enter(StepSection::kOther);
}

// act_.attention = attention over the normalised `hidden`; K and V go to the cache.
void Llama::attend(LlamaLayer& layer, const ModelInput& input, const TensorView& hidden) {
  const int64_t rows = hidden.rows();
  const TensorView qkv = rows_of(act_.qkv, rows, q_features() + 2 * kv_features());
  linear(*layer.qkv, hidden, qkv);
  AttentionInput in;
  in.q = qkv.columns(0, q_features());
  in.k = qkv.columns(q_features(), kv_features());
  in.v = qkv.columns(q_features() + kv_features(), kv_features());
  in.out = rows_of(act_.attention, rows, q_features());
  if (!layer.attention->rope_and_write_kv(in, input.slot_mapping, {input.positions, rope_})) {
    // Q and K heads lie side by side and rotate alike, so one call does both.
    ops_->rope(qkv.columns(0, q_features() + kv_features()), input.positions, config().head_dim,
               rope_);
    layer.attention->write_kv(in.k, in.v, input.slot_mapping);
  }
  ops_->device().enter(StepSection::kAttention);
  layer.attention->forward(in, *input.attention);
  ops_->device().enter(StepSection::kOther);
}

// residual += the layer's output projection of `attention`; out = its MLP, not yet added to the
// residual.
void Llama::feed_forward(const LlamaLayer& layer,
                         const TensorView& residual,
                         const TensorView& attention,
                         const TensorView& out) {
  const int64_t inner = config().intermediate_size;
  const int64_t rows = residual.rows();
  const TensorView hidden = rows_of(act_.hidden, rows, config().hidden_size);
  const TensorView gate_up = rows_of(act_.gate_up, rows, 2 * inner);
  const TensorView activated = rows_of(act_.inner, rows, inner);
  linear(*layer.o, attention, out);
  ops_->add_rms_norm(residual, out, layer.mlp_norm.span(), config().rms_norm_eps, hidden);
  linear(*layer.gate_up, hidden, gate_up);
  ops_->silu_and_mul(gate_up, activated);
  linear(*layer.down, activated, out);
}

void Llama::forward(const ModelInput& input) {
  const auto tokens = static_cast<int64_t>(input.token_ids.size());
  TENON_CHECK_GT(tokens, 0);
  TENON_CHECK_LE(tokens, act_.max_tokens);
  TENON_CHECK_EQ(input.positions.size(), input.token_ids.size());
  TENON_CHECK_EQ(input.slot_mapping.size(), input.token_ids.size());
  TENON_CHECK(input.attention != nullptr);
  const int64_t width = config().hidden_size;
  const TensorView residual = residual_of(act_.residual, tokens);
  const TensorView hidden = rows_of(act_.hidden, tokens, width);
  const TensorView projection = rows_of(act_.projection, tokens, width);

  ops_->embedding(*embedding_, input.token_ids, residual);
  ops_->rms_norm(residual, layers_.front().attention_norm.span(), config().rms_norm_eps, hidden);
  for (size_t i = 0;; ++i) {
    attend(layers_[i], input, hidden);
    if (i + 1 == layers_.size()) break;  // logits() goes on from here, for the rows that are wanted
    const TensorView attention = rows_of(act_.attention, tokens, q_features());
    feed_forward(layers_[i], residual, attention, projection);
    ops_->add_rms_norm(residual, projection, layers_[i + 1].attention_norm.span(),
                       config().rms_norm_eps, hidden);
  }
  last_tokens_ = tokens;
}

void Llama::logits(std::span<const int32_t> rows, const TensorView& out) {
  const auto wanted = static_cast<int64_t>(rows.size());
  TENON_CHECK_GT(wanted, 0);
  TENON_CHECK_LE(wanted, act_.max_logits_rows);
  const int64_t width = config().hidden_size;
  const TensorView residual = residual_of(act_.last_residual, wanted);
  const TensorView attention = rows_of(act_.last_attention, wanted, q_features());
  const TensorView hidden = rows_of(act_.hidden, wanted, width);
  const TensorView projection = rows_of(act_.projection, wanted, width);
  ops_->gather_rows(residual_of(act_.residual, last_tokens_), rows, residual);
  ops_->gather_rows(rows_of(act_.attention, last_tokens_, q_features()), rows, attention);
  feed_forward(layers_.back(), residual, attention, projection);
  ops_->add_rms_norm(residual, projection, final_norm_.span(), config().rms_norm_eps, hidden);
  linear(*head_, hidden, out);
}

}  // namespace

std::vector<TensorSpec> llama_tensors(const ModelConfig& config, WeightNaming naming) {
  const Specs specs(config, naming);
  const GlobalSpecs global = specs.global();
  std::vector<TensorSpec> all = {global.embedding, global.final_norm};
  if (!config.tie_word_embeddings) all.push_back(global.head);
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const LayerSpecs layer = specs.layer(i);
    all.insert(all.end(), {layer.attention_norm, layer.q, layer.k, layer.v, layer.o, layer.mlp_norm,
                           layer.gate, layer.up, layer.down});
  }
  return all;
}

Result<std::unique_ptr<Model>> build_llama(Checkpoint checkpoint,
                                           const ModelLoadOptions& options,
                                           Ops* ops) {
  auto model = std::make_unique<Llama>(std::move(checkpoint), ops);
  TENON_RETURN_IF_ERROR(model->load(options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace tenon
