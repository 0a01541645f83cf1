// A tiny Llama with random weights, written as GGUF and as a Hugging Face folder. The GGUF side
// permutes Q and K rows as the converter does, so both forms must give the same logits.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tensor/dtype.h"
#include "tests/unit/formats/file_helpers.h"

namespace tenon::tiny {

using testing_files::bytes_of;
using testing_files::GgufBuilder;
using testing_files::SafetensorsBuilder;
using testing_files::TempFolder;

struct TinyLlama {
  int32_t layers = 2, hidden = 32, inner = 64, heads = 4, kv_heads = 2, head_dim = 8, vocab = 50;
  int32_t context = 64;
  bool tied = true;
  uint32_t seed = 1;
  float weight_scale = 0.3F;  // large enough for logits to differ visibly
  std::string rope_json;      // more members of config.json: "\"rope_scaling\": {...},"
  // More GGUF metadata and the tensor rope_freqs.weight.
  std::vector<std::pair<std::string, float>> gguf_floats;
  std::vector<std::pair<std::string, std::string>> gguf_strings;
  std::vector<float> rope_freqs;
};

struct TinyTensor {
  std::string hf_name, gguf_name;
  std::vector<int64_t> shape;
  std::vector<float> values;
  int32_t permuted_heads = 0;  // heads of a Q or K matrix
};

inline std::vector<TinyTensor> make_tensors(const TinyLlama& m) {
  std::mt19937 random(m.seed);
  std::vector<TinyTensor> all;
  const auto add = [&](const std::string& hf, const std::string& gguf, std::vector<int64_t> shape,
                       int32_t permuted_heads = 0) {
    int64_t size = 1;
    for (const int64_t n : shape) size *= n;
    std::normal_distribution<float> noise(0.0F, m.weight_scale);
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = (shape.size() == 1 ? 1.0F : 0.0F) + noise(random);
    all.push_back({hf, gguf, std::move(shape), std::move(values), permuted_heads});
  };
  add("model.embed_tokens.weight", "token_embd.weight", {m.vocab, m.hidden});
  add("model.norm.weight", "output_norm.weight", {m.hidden});
  if (!m.tied) add("lm_head.weight", "output.weight", {m.vocab, m.hidden});
  for (int32_t i = 0; i < m.layers; ++i) {
    const std::string hf = "model.layers." + std::to_string(i) + ".";
    const std::string gguf = "blk." + std::to_string(i) + ".";
    const int64_t q = int64_t{m.heads} * m.head_dim;
    const int64_t kv = int64_t{m.kv_heads} * m.head_dim;
    add(hf + "input_layernorm.weight", gguf + "attn_norm.weight", {m.hidden});
    add(hf + "self_attn.q_proj.weight", gguf + "attn_q.weight", {q, m.hidden}, m.heads);
    add(hf + "self_attn.k_proj.weight", gguf + "attn_k.weight", {kv, m.hidden}, m.kv_heads);
    add(hf + "self_attn.v_proj.weight", gguf + "attn_v.weight", {kv, m.hidden});
    add(hf + "self_attn.o_proj.weight", gguf + "attn_output.weight", {m.hidden, q});
    add(hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", {m.hidden});
    add(hf + "mlp.gate_proj.weight", gguf + "ffn_gate.weight", {m.inner, m.hidden});
    add(hf + "mlp.up_proj.weight", gguf + "ffn_up.weight", {m.inner, m.hidden});
    add(hf + "mlp.down_proj.weight", gguf + "ffn_down.weight", {m.hidden, m.inner});
  }
  return all;
}

// Row (half, pair) of a head moves to (pair, half).
inline std::vector<float> permuted(const TinyTensor& tensor) {
  if (tensor.permuted_heads == 0) return tensor.values;
  const int64_t cols = tensor.shape[1];
  const int64_t head_dim = tensor.shape[0] / tensor.permuted_heads;
  std::vector<float> out(tensor.values.size());
  for (int64_t row = 0; row < tensor.shape[0]; ++row) {
    const int64_t head = row / head_dim;
    const int64_t half = row % head_dim / (head_dim / 2);
    const int64_t pair = row % (head_dim / 2);
    const int64_t target = head * head_dim + pair * 2 + half;
    std::copy_n(tensor.values.begin() + row * cols, cols, out.begin() + target * cols);
  }
  return out;
}

inline GgufBuilder gguf_metadata(const TinyLlama& m) {
  GgufBuilder gguf;
  gguf.add_string("general.architecture", "llama").add_string("general.name", "tiny");
  gguf.add_u32("llama.block_count", static_cast<uint32_t>(m.layers));
  gguf.add_u32("llama.context_length", static_cast<uint32_t>(m.context));
  gguf.add_u32("llama.embedding_length", static_cast<uint32_t>(m.hidden));
  gguf.add_u32("llama.feed_forward_length", static_cast<uint32_t>(m.inner));
  gguf.add_u32("llama.attention.head_count", static_cast<uint32_t>(m.heads));
  gguf.add_u32("llama.attention.head_count_kv", static_cast<uint32_t>(m.kv_heads));
  gguf.add_u32("llama.attention.key_length", static_cast<uint32_t>(m.head_dim));
  gguf.add_u32("llama.attention.value_length", static_cast<uint32_t>(m.head_dim));
  gguf.add_u32("llama.rope.dimension_count", static_cast<uint32_t>(m.head_dim));
  gguf.add_f32("llama.rope.freq_base", 10000.0F);
  gguf.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  gguf.add_u32("tokenizer.ggml.bos_token_id", 1).add_u32("tokenizer.ggml.eos_token_id", 2);
  for (const auto& [key, value] : m.gguf_floats) gguf.add_f32(key, value);
  for (const auto& [key, value] : m.gguf_strings) gguf.add_string(key, value);
  return gguf;
}

inline std::string gguf_bytes(const TinyLlama& m) {
  GgufBuilder gguf = gguf_metadata(m);
  for (const TinyTensor& tensor : make_tensors(m)) {
    gguf.add_tensor(tensor.gguf_name, 0, tensor.shape, bytes_of(permuted(tensor)));
  }
  if (!m.rope_freqs.empty()) {
    gguf.add_tensor("rope_freqs.weight", 0, {static_cast<int64_t>(m.rope_freqs.size())},
                    bytes_of(m.rope_freqs));
  }
  return gguf.build();
}

inline std::string config_json(const TinyLlama& m, const std::string& dtype = "float32") {
  const auto number = [](const char* key, int64_t value) {
    return "\"" + std::string(key) + "\": " + std::to_string(value) + ", ";
  };
  return "{" + m.rope_json +
         "\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", " +
         number("num_hidden_layers", m.layers) + number("hidden_size", m.hidden) +
         number("intermediate_size", m.inner) + number("num_attention_heads", m.heads) +
         number("num_key_value_heads", m.kv_heads) + number("head_dim", m.head_dim) +
         number("vocab_size", m.vocab) + number("max_position_embeddings", m.context) +
         number("bos_token_id", 1) + number("eos_token_id", 2) + "\"hidden_act\": \"silu\", " +
         "\"rms_norm_eps\": 1e-05, \"torch_dtype\": \"" + dtype +
         "\", \"tie_word_embeddings\": " + (m.tied ? "true" : "false") + "}";
}

inline std::string shard_name(int index, int count) {
  if (count == 1) return "model.safetensors";
  return "model-0000" + std::to_string(index + 1) + "-of-0000" + std::to_string(count) +
         ".safetensors";
}

// dtype: "F32" or "BF16".
inline void write_hf(const TempFolder& folder,
                     const TinyLlama& m,
                     int shards = 1,
                     const std::string& dtype = "F32") {
  folder.write("config.json", config_json(m, dtype == "F32" ? "float32" : "bfloat16"));
  std::vector<SafetensorsBuilder> files(static_cast<size_t>(shards));
  std::string map;
  size_t at = 0;
  for (const TinyTensor& tensor : make_tensors(m)) {
    const size_t shard = at++ % files.size();
    std::string data = bytes_of(tensor.values);
    if (dtype == "BF16") {
      std::vector<uint16_t> halves;
      for (const float value : tensor.values) halves.push_back(f32_to_bf16(value));
      data = bytes_of(halves);
    }
    files[shard].add(tensor.hf_name, dtype, tensor.shape, data);
    map += (map.empty() ? "" : ",") + ("\"" + tensor.hf_name + "\":\"") +
           shard_name(static_cast<int>(shard), shards) + "\"";
  }
  for (int i = 0; i < shards; ++i)
    folder.write(shard_name(i, shards), files[static_cast<size_t>(i)].build());
  if (shards > 1) folder.write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
}

}  // namespace tenon::tiny
