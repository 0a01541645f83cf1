#include "models/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/models/tiny_model.h"

namespace tenon {
namespace {

using ::testing::HasSubstr;
using tiny::TempFolder;
using tiny::TinyLlama;

int64_t parameters(const TinyLlama& m) {
  int64_t sum = 0;
  for (const auto& tensor : tiny::make_tensors(m))
    sum += static_cast<int64_t>(tensor.values.size());
  return sum;
}

std::string value_of(const ModelSummary& summary, const std::string& key) {
  for (const auto& [name, value] : summary.metadata) {
    if (name == key) return value;
  }
  return "(none)";
}

TEST(Inspect, Gguf) {
  const TinyLlama m;
  tiny::GgufBuilder gguf = tiny::gguf_metadata(m);
  gguf.add_string("test.text", "Grüße\n\x1b[31m" + std::string(500, 'x'));
  gguf.add_strings("test.list", {"a", "b\n", "c", "d", "e", "f", "g", "h"});
  gguf.add_bool("test.flag", true).add_i32s("test.numbers", {-1, 2});
  for (const auto& tensor : tiny::make_tensors(m)) {
    gguf.add_tensor(tensor.gguf_name, 0, tensor.shape, tiny::bytes_of(tensor.values));
  }
  const TempFolder folder;
  const std::string path = folder.write("tiny.gguf", gguf.build());
  const auto summary = inspect_model(path);
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->format, "GGUF 3");
  EXPECT_EQ(summary->architecture, "llama");
  EXPECT_EQ(summary->files, std::vector{path});
  EXPECT_EQ(summary->parameters, parameters(m));
  EXPECT_EQ(summary->weight_bytes, parameters(m) * 4);
  ASSERT_TRUE(summary->config.has_value()) << summary->why_not.message();
  EXPECT_EQ(summary->kv_bytes_per_token_f16, 2 * 2 * 2 * 8 * 2);
  EXPECT_EQ(summary->tensors.front().name, "token_embd.weight");
  EXPECT_EQ(summary->tensors.front().type, "F32");
  EXPECT_EQ(summary->tensors.front().shape, (std::vector<int64_t>{50, 32}));
  EXPECT_EQ(summary->tensors.front().bytes, 50 * 32 * 4);
  EXPECT_EQ(value_of(*summary, "llama.block_count"), "2");
  EXPECT_EQ(value_of(*summary, "llama.attention.layer_norm_rms_epsilon"), "1e-05");
  EXPECT_EQ(value_of(*summary, "test.flag"), "true");
  EXPECT_EQ(value_of(*summary, "test.numbers"), "[-1, 2]");
  EXPECT_EQ(value_of(*summary, "test.list"),
            "[\"a\", \"b\\n\", \"c\", \"d\", \"e\", \"f\", ...] (8 elements)");
  const std::string text = value_of(*summary, "test.text");
  EXPECT_THAT(text, ::testing::StartsWith("Grüße\\n\\x1b[31mxxx"));
  EXPECT_LT(text.size(), 140U);
}

TEST(Inspect, Folder) {
  const TinyLlama m;
  const TempFolder folder;
  tiny::write_hf(folder, m, 2, "BF16");
  const auto summary = inspect_model(folder.path());
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->format, "safetensors");
  EXPECT_EQ(summary->architecture, "LlamaForCausalLM");
  EXPECT_EQ(summary->files.size(), 2U);
  EXPECT_EQ(summary->tensors.size(), tiny::make_tensors(m).size());
  EXPECT_EQ(summary->parameters, parameters(m));
  EXPECT_EQ(summary->weight_bytes, parameters(m) * 2);
  EXPECT_EQ(summary->kv_bytes_per_token_f16, 128);
  EXPECT_EQ(value_of(*summary, "hidden_size"), "32");
}

TEST(Inspect, UnknownArchitectureIsShownWithTheReason) {
  const TempFolder folder;
  tiny::GgufBuilder gguf;
  gguf.add_string("general.architecture", "mamba").add_tensor("w", 0, {2}, std::string(8, '\0'));
  const auto summary = inspect_model(folder.write("m.gguf", gguf.build()));
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_EQ(summary->architecture, "mamba");
  EXPECT_EQ(summary->tensors.size(), 1U);
  EXPECT_FALSE(summary->config.has_value());
  EXPECT_THAT(summary->why_not.message(), HasSubstr("supported: llama"));
  EXPECT_EQ(summary->kv_bytes_per_token_f16, 0);
}

TEST(Inspect, Errors) {
  const TempFolder folder;
  EXPECT_EQ(inspect_model(folder.path("none.gguf")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(inspect_model(folder.path()).status().code(), StatusCode::kNotFound);  // no config.json
}

TEST(Inspect, ConfigAloneIsAShapeWithoutWeights) {
  const TempFolder folder;
  folder.write("config.json", tiny::config_json({}));
  const auto summary = inspect_model(folder.path());
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  EXPECT_TRUE(summary->config.has_value());
  EXPECT_TRUE(summary->tensors.empty());
  ASSERT_EQ(summary->notes.size(), 1U);
  EXPECT_THAT(summary->notes[0], HasSubstr("--load-format dummy"));
  // An index that names files is weights, and incomplete ones are an error.
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "m.safetensors"}})");
  EXPECT_THAT(inspect_model(folder.path()).status().message(), HasSubstr("m.safetensors"));
}

}  // namespace
}  // namespace tenon
