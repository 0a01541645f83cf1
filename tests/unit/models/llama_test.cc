// Llama through every loader, with the reference operators and the reference attention backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/thread_pool.h"
#include "models/model.h"
#include "tests/unit/models/model_runner.h"
#include "tests/unit/models/tiny_model.h"

namespace tenon {
namespace {

using ::testing::HasSubstr;
using tiny::max_difference;
using tiny::ModelRunner;
using tiny::TempFolder;
using tiny::TinyLlama;
using Logits = std::vector<std::vector<float>>;

const std::vector<int32_t> kIds = {1, 17, 42, 3, 49, 0, 8, 8, 25, 31, 2, 11, 30};

Logits run(const std::string& path, int32_t chunk, ModelLoadOptions options = {}) {
  const std::unique_ptr<Ops> ops = make_reference_ops();
  options.path = path;
  ModelRunner runner(options, ops.get());
  EXPECT_TRUE(runner.status.ok()) << runner.status.message();
  return runner.status.ok() ? runner.logits(kIds, chunk) : Logits();
}

float spread(const Logits& logits) {
  float low = 1e30F;
  float high = -1e30F;
  for (const auto& row : logits) {
    for (const float value : row) {
      EXPECT_TRUE(std::isfinite(value));
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  return high - low;
}

TEST(Llama, GgufAndHuggingFaceGiveTheSameLogits) {
  for (const bool tied : {true, false}) {
    const TempFolder folder;
    TinyLlama m;
    m.tied = tied;
    const std::string gguf = folder.write("tiny.gguf", tiny::gguf_bytes(m));
    const TempFolder one;
    tiny::write_hf(one, m, 1);
    const TempFolder two;
    tiny::write_hf(two, m, 2);
    const Logits expected = run(gguf, 64);
    ASSERT_EQ(expected.size(), kIds.size());
    EXPECT_GT(spread(expected), 1.0F);  // otherwise equality would mean little
    EXPECT_LT(max_difference(expected, run(one.path(), 64)), 2e-5F) << "tied " << tied;
    EXPECT_LT(max_difference(expected, run(two.path(), 64)), 2e-5F) << "tied " << tied;
  }
}

TEST(Llama, ChunksAndDecodeGiveTheSameLogits) {
  const TempFolder folder;
  const std::string gguf = folder.write("tiny.gguf", tiny::gguf_bytes({}));
  const Logits expected = run(gguf, 64);
  EXPECT_LT(max_difference(expected, run(gguf, 1)), 1e-5F);
  EXPECT_LT(max_difference(expected, run(gguf, 5)), 1e-5F);
}

TEST(Llama, RowsOfLogitsComeInAnyOrderAndAgain) {
  const TempFolder folder;
  const std::unique_ptr<Ops> ops = make_reference_ops();
  ModelLoadOptions options;
  options.path = folder.write("tiny.gguf", tiny::gguf_bytes({}));
  ModelRunner runner(options, ops.get());
  ASSERT_TRUE(runner.status.ok()) << runner.status.message();
  const Logits expected = runner.logits(kIds, 64);
  const std::vector<int32_t> rows = {12, 0, 12, 5};
  const int64_t vocab = runner.model->config().vocab_size;
  std::vector<float> out(rows.size() * static_cast<size_t>(vocab));
  runner.model->logits(rows, TensorView::dense(out.data(), DType::kF32, {4, vocab}));
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < static_cast<size_t>(vocab); ++j) {
      ASSERT_NEAR(out[i * static_cast<size_t>(vocab) + j],
                  expected[static_cast<size_t>(rows[i])][j], 1e-6);
    }
  }
}

TEST(Llama, CpuOpsAgreeWithTheReference) {
  const TempFolder folder;
  const std::string gguf = folder.write("tiny.gguf", tiny::gguf_bytes({}));
  const Logits expected = run(gguf, 64);
  ThreadPool pool(2);
  auto ops = make_cpu_ops(&pool, "auto");
  ASSERT_TRUE(ops.ok()) << ops.status().message();
  ModelLoadOptions options;
  options.path = gguf;
  options.exact = true;
  ModelRunner runner(options, ops->get());
  ASSERT_TRUE(runner.status.ok()) << runner.status.message();
  EXPECT_LT(max_difference(expected, runner.logits(kIds, 64)), 1e-4F);
}

// The converter stores llama3 scaling as divisors; both forms must rotate alike.
TEST(Llama, Llama3ScalingOfBothFormats) {
  TinyLlama m;
  m.rope_json =
      "\"rope_theta\": 10000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
      "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": "
      "32},";
  for (int i = 0; i < 4; ++i) {
    const double frequency = std::pow(10000.0, -i / 4.0);
    const double wavelength = 2.0 * M_PI / frequency;
    const double smooth = (32.0 / wavelength - 1.0) / 3.0;
    const double scaled = wavelength < 8.0 ? frequency
                          : wavelength > 32.0
                              ? frequency / 8.0
                              : (1.0 - smooth) * frequency / 8.0 + smooth * frequency;
    m.rope_freqs.push_back(static_cast<float>(frequency / scaled));
  }
  const TempFolder folder;
  const std::string gguf = folder.write("tiny.gguf", tiny::gguf_bytes(m));
  tiny::write_hf(folder, m);
  TinyLlama plain;
  const std::string unscaled = folder.write("plain.gguf", tiny::gguf_bytes(plain));
  const Logits expected = run(gguf, 64);
  EXPECT_LT(max_difference(expected, run(folder.path(), 64)), 2e-5F);
  EXPECT_GT(max_difference(expected, run(unscaled, 64)), 1e-3F);
}

TEST(Llama, LinearScalingOfBothFormats) {
  TinyLlama m;
  m.rope_json =
      "\"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 10000.0, \"factor\": 2.0},";
  m.gguf_strings = {{"llama.rope.scaling.type", "linear"}};
  m.gguf_floats = {{"llama.rope.scaling.factor", 2.0F}};
  const TempFolder folder;
  const std::string gguf = folder.write("tiny.gguf", tiny::gguf_bytes(m));
  tiny::write_hf(folder, m);
  const std::string unscaled = folder.write("plain.gguf", tiny::gguf_bytes({}));
  const Logits expected = run(gguf, 64);
  EXPECT_LT(max_difference(expected, run(folder.path(), 64)), 2e-5F);
  EXPECT_GT(max_difference(expected, run(unscaled, 64)), 1e-3F);
}

TEST(Llama, Bfloat16WeightsAreCloseToFloat32) {
  const TempFolder f32;
  tiny::write_hf(f32, {});
  const TempFolder bf16;
  tiny::write_hf(bf16, {}, 1, "BF16");
  const Logits expected = run(f32.path(), 64);
  const float difference = max_difference(expected, run(bf16.path(), 64));
  EXPECT_GT(difference, 1e-4F);  // it really read the rounded weights
  EXPECT_LT(difference, 0.05F * spread(expected));
}

TEST(Llama, SplitGgufGivesTheSameLogits) {
  const TinyLlama m;
  const TempFolder folder;
  const std::string whole = folder.write("tiny.gguf", tiny::gguf_bytes(m));
  const auto tensors = tiny::make_tensors(m);
  std::vector<tiny::GgufBuilder> files = {tiny::gguf_metadata(m), {}, {}};
  for (uint16_t i = 0; i < 3; ++i) {
    files[i].add_u16("split.no", i).add_u16("split.count", 3);
    files[i].add_i32("split.tensors.count", static_cast<int32_t>(tensors.size()));
  }
  // As the splitter may do: metadata alone in the first file.
  for (size_t i = 0; i < tensors.size(); ++i) {
    files[1 + i % 2].add_tensor(tensors[i].gguf_name, 0, tensors[i].shape,
                                tiny::bytes_of(tiny::permuted(tensors[i])));
  }
  std::vector<std::string> paths;
  for (size_t i = 0; i < 3; ++i) {
    paths.push_back(
        folder.write("m-0000" + std::to_string(i + 1) + "-of-00003.gguf", files[i].build()));
  }
  const Logits expected = run(whole, 64);
  EXPECT_EQ(max_difference(expected, run(paths[0], 64)), 0.0F);
  EXPECT_EQ(max_difference(expected, run(paths[1], 64)), 0.0F);  // started from a later file
}

TEST(Llama, DummyWeightsAreFiniteAndFollowTheSeed) {
  const TempFolder folder;
  TinyLlama m;
  m.layers = 8;
  folder.write("config.json", tiny::config_json(m, "bfloat16"));
  ModelLoadOptions options;
  options.format = ModelLoadOptions::Format::kDummy;
  const Logits first = run(folder.path(), 64, options);
  EXPECT_GT(spread(first), 0.0F);
  EXPECT_EQ(max_difference(first, run(folder.path("config.json"), 64, options)), 0.0F);
  options.dummy_seed = 7;
  EXPECT_GT(max_difference(first, run(folder.path(), 64, options)), 1e-3F);
}

TEST(Llama, DummyTakesTheMemoryOfTheRealModel) {
  const TempFolder folder;
  tiny::write_hf(folder, {});
  const std::unique_ptr<Ops> ops = make_reference_ops();
  ModelLoadOptions options;
  options.path = folder.path();
  auto real = load_model(options, ops.get());
  ASSERT_TRUE(real.ok()) << real.status().message();
  options.format = ModelLoadOptions::Format::kDummy;
  auto dummy = load_model(options, ops.get());
  ASSERT_TRUE(dummy.ok()) << dummy.status().message();
  EXPECT_EQ((*dummy)->weight_bytes(), (*real)->weight_bytes());
  EXPECT_EQ((*dummy)->weight_summary(), (*real)->weight_summary());
  EXPECT_EQ((*dummy)->weight_summary(), "F32 (20)");
}

TEST(Llama, ProgressRisesToOne) {
  const TempFolder folder;
  const std::unique_ptr<Ops> ops = make_reference_ops();
  ModelLoadOptions options;
  options.path = folder.write("tiny.gguf", tiny::gguf_bytes({}));
  std::vector<double> seen;
  options.progress = [&](double done, const std::string&) { seen.push_back(done); };
  ASSERT_TRUE(load_model(options, ops.get()).ok());
  ASSERT_GE(seen.size(), 3U);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.front(), 0.0);
  EXPECT_EQ(seen.back(), 1.0);
}

Status load_error(const std::string& path) {
  const std::unique_ptr<Ops> ops = make_reference_ops();
  ModelLoadOptions options;
  options.path = path;
  return load_model(options, ops.get()).status();
}

TEST(LlamaErrors, EveryMissingTensorIsNamed) {
  const TinyLlama m;
  tiny::GgufBuilder gguf = tiny::gguf_metadata(m);
  for (const auto& tensor : tiny::make_tensors(m)) {
    if (tensor.gguf_name == "blk.0.attn_k.weight" || tensor.gguf_name == "blk.1.ffn_up.weight")
      continue;
    gguf.add_tensor(tensor.gguf_name, 0, tensor.shape, tiny::bytes_of(tensor.values));
  }
  const TempFolder folder;
  const Status status = load_error(folder.write("tiny.gguf", gguf.build()));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("tiny.gguf"));
  EXPECT_THAT(status.message(), HasSubstr("blk.0.attn_k.weight"));
  EXPECT_THAT(status.message(), HasSubstr("blk.1.ffn_up.weight"));
}

TEST(LlamaErrors, WrongShapeSaysBoth) {
  TinyLlama m;
  const TempFolder folder;
  tiny::write_hf(folder, m);
  m.inner = 48;
  folder.write("config.json", tiny::config_json(m));
  const Status status = load_error(folder.path());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("mlp.down_proj.weight' is [32, 64], [32, 48] is needed"));
}

TEST(LlamaErrors, UnsupportedTensorTypeNamesTensorTypeAndList) {
  const TinyLlama m;
  const TempFolder folder;
  folder.write("config.json", tiny::config_json(m));
  tiny::SafetensorsBuilder file;
  for (const auto& tensor : tiny::make_tensors(m)) {
    const bool wrong = tensor.hf_name == "model.layers.1.mlp.up_proj.weight";
    file.add(tensor.hf_name, wrong ? "I32" : "F32", tensor.shape, tiny::bytes_of(tensor.values));
  }
  folder.write("model.safetensors", file.build());
  const Status status = load_error(folder.path());
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("'model.layers.1.mlp.up_proj.weight' is I32"));
  EXPECT_THAT(status.message(), HasSubstr("F32, F16, BF16, Q4_0"));
}

TEST(LlamaErrors, BiasesAreRefusedOtherExtrasAreNot) {
  const TinyLlama m;
  for (const bool bias : {true, false}) {
    tiny::GgufBuilder gguf = tiny::gguf_metadata(m);
    for (const auto& tensor : tiny::make_tensors(m)) {
      gguf.add_tensor(tensor.gguf_name, 0, tensor.shape, tiny::bytes_of(tensor.values));
    }
    gguf.add_tensor(bias ? "blk.0.attn_q.bias" : "blk.0.extra.weight", 0, {2},
                    std::string(8, '\0'));
    const TempFolder folder;
    const Status status = load_error(folder.write("tiny.gguf", gguf.build()));
    EXPECT_EQ(status.ok(), !bias) << status.message();
    if (bias) {
      EXPECT_THAT(status.message(), HasSubstr("'blk.0.attn_q.bias': biases are not supported"));
    }
  }
}

TEST(LlamaErrors, AnAbsurdContextLengthIsRefusedUnlessLimited) {
  TinyLlama m;
  m.context = 1 << 28;
  const TempFolder folder;
  const std::string path = folder.write("tiny.gguf", tiny::gguf_bytes(m));
  const Status status = load_error(path);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("a context of 268435456 tokens"));
  const std::unique_ptr<Ops> ops = make_reference_ops();
  ModelLoadOptions options;
  options.path = path;
  options.max_position = 64;
  EXPECT_TRUE(load_model(options, ops.get()).ok());
}

TEST(Llama, UnalignedSafetensorsAreCopied) {
  const TinyLlama m;
  const TempFolder aligned;
  tiny::write_hf(aligned, m);
  const TempFolder folder;
  folder.write("config.json", tiny::config_json(m));
  std::string bytes;
  {
    tiny::SafetensorsBuilder file;
    for (const auto& tensor : tiny::make_tensors(m)) {
      file.add(tensor.hf_name, "F32", tensor.shape, tiny::bytes_of(tensor.values));
    }
    bytes = file.build();
  }
  // One more space in the header moves every tensor to an odd address.
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  bytes.insert(8 + length, " ");
  bytes.replace(0, 8, testing_files::little_endian(length + 1));
  folder.write("model.safetensors", bytes);
  EXPECT_EQ(max_difference(run(aligned.path(), 64), run(folder.path(), 64)), 0.0F);
}

}  // namespace
}  // namespace tenon
