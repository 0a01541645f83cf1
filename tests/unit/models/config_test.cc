#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/gguf_split.h"
#include "models/config_reader.h"
#include "tests/unit/models/tiny_model.h"

namespace tenon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tiny::TempFolder;
using tiny::TinyLlama;

constexpr const char* kSizes =
    "\"num_hidden_layers\": 2, \"hidden_size\": 64, \"intermediate_size\": 96, "
    "\"num_attention_heads\": 4, "
    "\"vocab_size\": 100";

std::string llama_json(const std::string& more,
                       const std::string& architecture = "LlamaForCausalLM") {
  return "{\"architectures\": [\"" + architecture + "\"], " + kSizes +
         (more.empty() ? "" : ", " + more) + "}";
}

Result<HfConfig> read_json(const std::string& json, const std::string& generation = "") {
  const TempFolder folder;
  folder.write("config.json", json);
  if (!generation.empty()) folder.write("generation_config.json", generation);
  return config_from_hf(folder.path());
}

TEST(HfConfig, DefaultsAreTransformers) {
  const auto read = read_json(llama_json(""));
  ASSERT_TRUE(read.ok()) << read.status().message();
  const ModelConfig& config = read->model;
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rotary_dim, 16);
  EXPECT_EQ(config.max_position, 2048);
  EXPECT_EQ(config.rms_norm_eps, 1e-6F);
  EXPECT_EQ(config.rope_theta, 10000.0F);
  EXPECT_FALSE(config.rope_interleaved);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(read->dtype, DType::kF32);
  EXPECT_TRUE(config.eos_token_ids.empty());
  EXPECT_EQ(config.bos_token_id, -1);
}

TEST(HfConfig, EndTokensOfBothFiles) {
  const auto read = read_json(llama_json("\"eos_token_id\": 7, \"bos_token_id\": null"),
                              "{\"eos_token_id\": [9, 7, 8]}");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(read->model.eos_token_ids, ElementsAre(9, 7, 8));
}

TEST(HfConfig, RopeOfBothSpellings) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto read = read_json(
        llama_json("\"max_position_embeddings\": 131072, \"" + std::string(key) +
                   "\": {\"rope_type\": \"llama3\", \"rope_theta\": 500000.0, \"factor\": 32, "
                   "\"low_freq_factor\": 1.0, "
                   "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}"));
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->model.rope_theta, 500000.0F);
    EXPECT_EQ(read->model.rope_scaling.kind, RopeScaling::Kind::kLlama3);
    EXPECT_EQ(read->model.rope_scaling.factor, 32.0F);
    EXPECT_EQ(read->model.rope_scaling.original_max_position, 8192);
  }
  const auto linear =
      read_json(llama_json("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.5}"));
  ASSERT_TRUE(linear.ok());
  EXPECT_EQ(linear->model.rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(linear->model.rope_scaling.factor, 2.5F);
}

TEST(HfConfig, BadInputNamesFileAndKey) {
  struct Case {
    std::string json;
    StatusCode code;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"[]", StatusCode::kInvalidArgument, "not a JSON object"},
      {"{", StatusCode::kDataLoss, "not valid JSON"},
      {"{\"a\": 1, \"a\": 2}", StatusCode::kDataLoss, "'a' appears twice"},
      {std::string(100000, '['), StatusCode::kDataLoss, "nested deeper than 64"},
      {"{}", StatusCode::kInvalidArgument, "'architectures'"},
      {llama_json("", "GPT9"), StatusCode::kUnsupported,
       "'GPT9' is not supported; supported: LlamaForCausalLM"},
      {"{\"architectures\": [\"LlamaForCausalLM\"]}", StatusCode::kInvalidArgument,
       "'num_hidden_layers' is missing"},
      {llama_json("\"rms_norm_eps\": \"small\""), StatusCode::kInvalidArgument,
       "'rms_norm_eps' is not a number"},
      {llama_json("\"rms_norm_eps\": 0"), StatusCode::kInvalidArgument, "epsilon"},
      {llama_json("\"num_key_value_heads\": 3"), StatusCode::kInvalidArgument, "not a multiple"},
      {llama_json("\"num_key_value_heads\": 0"), StatusCode::kInvalidArgument, "KV heads"},
      {llama_json("\"head_dim\": 15"), StatusCode::kInvalidArgument, "even"},
      {llama_json("\"max_position_embeddings\": 1e30"), StatusCode::kInvalidArgument,
       "'max_position_embeddings'"},
      {llama_json("\"max_position_embeddings\": 99999999999999999999"),
       StatusCode::kInvalidArgument, "32 bits"},
      {llama_json("\"max_position_embeddings\": -5"), StatusCode::kInvalidArgument,
       "context length -5"},
      {llama_json("\"attention_bias\": true"), StatusCode::kUnsupported, "'attention_bias'"},
      {llama_json("\"mlp_bias\": true"), StatusCode::kUnsupported, "'mlp_bias'"},
      {llama_json("\"hidden_act\": \"gelu\""), StatusCode::kUnsupported, "'hidden_act': 'gelu'"},
      {llama_json("\"quantization_config\": {}"), StatusCode::kUnsupported,
       "'quantization_config'"},
      {llama_json("\"torch_dtype\": \"float8\""), StatusCode::kUnsupported, "'float8'"},
      {llama_json("\"eos_token_id\": 100"), StatusCode::kInvalidArgument, "end token id 100"},
      {llama_json("\"eos_token_id\": [1, \"x\"]"), StatusCode::kInvalidArgument, "'eos_token_id'"},
      {llama_json("\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}"),
       StatusCode::kUnsupported, "'yarn' is not supported; supported: default, linear, llama3"},
      {llama_json("\"rope_scaling\": {\"rope_type\": \"linear\"}"), StatusCode::kInvalidArgument,
       "'factor'"},
      {llama_json("\"rope_scaling\": 5"), StatusCode::kInvalidArgument,
       "'rope_scaling' is not an object"},
      {llama_json("\"rope_theta\": 0"), StatusCode::kInvalidArgument, "RoPE base 0"},
  };
  for (const Case& c : cases) {
    const auto read = read_json(c.json);
    ASSERT_FALSE(read.ok()) << c.json.substr(0, 200);
    EXPECT_EQ(read.status().code(), c.code) << read.status().message();
    EXPECT_THAT(read.status().message(), HasSubstr(c.message));
    EXPECT_THAT(read.status().message(), HasSubstr("config.json"));
  }
}

Result<ModelConfig> read_gguf(const tiny::GgufBuilder& gguf) {
  const TempFolder folder;
  TENON_ASSIGN_OR_RETURN(const auto files, open_gguf_files(folder.write("m.gguf", gguf.build())));
  return config_from_gguf(files);
}

TEST(GgufConfig, ReadsEveryKey) {
  TinyLlama m;
  m.tied = false;
  const TempFolder folder;
  const auto files = open_gguf_files(folder.write("m.gguf", tiny::gguf_bytes(m)));
  ASSERT_TRUE(files.ok()) << files.status().message();
  const auto config = config_from_gguf(*files);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->name, "tiny");
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->hidden_size, 32);
  EXPECT_EQ(config->intermediate_size, 64);
  EXPECT_EQ(config->num_heads, 4);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->vocab_size, 50);
  EXPECT_EQ(config->max_position, 64);
  EXPECT_TRUE(config->rope_interleaved);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2));
}

TEST(GgufConfig, BadInputNamesTheKey) {
  struct Case {
    tiny::GgufBuilder gguf;
    StatusCode code;
    std::string message;
  };
  const TinyLlama m;
  const auto with = [&](auto&& change) {
    tiny::GgufBuilder gguf = tiny::gguf_metadata(m);
    change(gguf);
    return gguf;
  };
  TinyLlama odd = m;
  odd.heads = 3;
  TinyLlama empty = m;
  empty.layers = 0;
  const std::vector<Case> cases = {
      {tiny::GgufBuilder(), StatusCode::kNotFound, "'general.architecture' is missing"},
      {tiny::GgufBuilder().add_u32("general.architecture", 4), StatusCode::kInvalidArgument,
       "is not a string"},
      {tiny::GgufBuilder().add_string("general.architecture", "mamba"), StatusCode::kUnsupported,
       "'mamba' is not supported; supported: llama"},
      {tiny::GgufBuilder().add_string("general.architecture", "llama"), StatusCode::kNotFound,
       "'llama.block_count'"},
      {tiny::gguf_metadata(odd), StatusCode::kInvalidArgument, "not a multiple"},
      {tiny::gguf_metadata(empty), StatusCode::kInvalidArgument, "number of layers 0"},
      {with([](auto& g) { g.add_u32("llama.expert_count", 8); }), StatusCode::kUnsupported,
       "llama.expert_count"},
      {with([](auto& g) { g.add_string("llama.rope.scaling.type", "yarn"); }),
       StatusCode::kUnsupported, "'yarn'"},
      {with([](auto& g) { g.add_string("llama.rope.scaling.type", "linear"); }),
       StatusCode::kNotFound, "llama.rope.scaling.factor"},
      {with([](auto& g) { g.add_tensor("rope_freqs.weight", 0, {3}, std::string(12, '\1')); }),
       StatusCode::kInvalidArgument, "3 RoPE frequency factors, 4 are needed"},
      {with([](auto& g) { g.add_tensor("rope_freqs.weight", 0, {4}, std::string(16, '\0')); }),
       StatusCode::kInvalidArgument, "frequency factor 0"},
      {with([](auto& g) { g.add_tensor("rope_freqs.weight", 1, {4}, std::string(8, '\0')); }),
       StatusCode::kInvalidArgument, "rope_freqs.weight"},
  };
  for (const Case& c : cases) {
    tiny::GgufBuilder gguf = c.gguf;
    gguf.add_tensor("token_embd.weight", 0, {m.vocab, m.hidden},
                    std::string(static_cast<size_t>(m.vocab * m.hidden) * 4, '\0'));
    const auto config = read_gguf(gguf);
    ASSERT_FALSE(config.ok()) << c.message;
    EXPECT_EQ(config.status().code(), c.code) << config.status().message();
    EXPECT_THAT(config.status().message(), HasSubstr(c.message));
    EXPECT_THAT(config.status().message(), HasSubstr("m.gguf"));
  }
}

TEST(GgufConfig, ListsPerLayerMustBeUniform) {
  for (const bool uniform : {true, false}) {
    tiny::GgufBuilder gguf;
    gguf.add_string("general.architecture", "llama").add_u32("llama.block_count", 2);
    gguf.add_u32("llama.context_length", 64).add_u32("llama.embedding_length", 32);
    gguf.add_u32("llama.feed_forward_length", 64).add_u32("llama.attention.head_count", 4);
    gguf.add_i32s("llama.attention.head_count_kv", {2, uniform ? 2 : 4});
    gguf.add_f32("llama.attention.layer_norm_rms_epsilon", 1e-5F).add_u32("llama.vocab_size", 10);
    const auto config = read_gguf(gguf);
    EXPECT_EQ(config.ok(), uniform) << config.status().message();
    if (config.ok()) {
      EXPECT_EQ(config->num_kv_heads, 2);
    } else {
      EXPECT_THAT(config.status().message(), HasSubstr("llama.attention.head_count_kv"));
    }
  }
}

}  // namespace
}  // namespace tenon
