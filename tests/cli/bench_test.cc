// tenon bench and tenon backends --verify: what they measure is in the output, what cannot be is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run_tenon.h"

namespace tenon {
namespace {

using nlohmann::json;
using testing::CommandResult;
using ::testing::HasSubstr;
using testing::run_tenon;
using testing::test_model_path;

CommandResult tenon(std::vector<std::string> arguments) {
  return run_tenon({std::move(arguments), {}, {}});
}

json tenon_json(std::vector<std::string> arguments) {
  const CommandResult result = tenon(std::move(arguments));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out, nullptr, false);
}

TEST(BenchAttention, MeasuresEveryBackendOnEveryBatchAndBlockSize) {
  const std::string path = (std::filesystem::temp_directory_path() / "tenon-bench.json").string();
  const CommandResult result =
      tenon({"bench",      "attention",     "--device",     "cpu",      "--batch",
             "3q1s40",     "q8_2q1s30",     "--block-size", "1",        "16",
             "--backends", "cpu,reference", "--num-heads",  "4",        "--num-kv-heads",
             "2",          "--head-dim",    "32",           "--rounds", "2",
             "--seconds",  "0.001",         "--json",       path});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("| q8_2q1s30 "));
  const json report = json::parse(std::ifstream(path));
  std::filesystem::remove(path);
  EXPECT_GT(report["read_bytes_per_second"], 0);
  EXPECT_GT(report["flops_per_second"], 0);
  ASSERT_EQ(report["rows"].size(), 8);  // 2 batches, 2 block sizes, 2 backends
  for (const json& row : report["rows"]) {
    EXPECT_LE(row["run_us_min"], row["run_us"]);
    EXPECT_LE(row["run_us"], row["run_us_max"]);
    EXPECT_LE(row["plan_us"], row["plan_us_max"]);
    const bool decode = row["batch"] == "3q1s40";
    // Keys and values of 40 tokens, 2 heads, 2 x 32 features of 2 bytes; 3 requests.
    const double kv = decode ? 3 * 40 * 2 * 64 * 2 : (8 + 2 * 30) * 2 * 64 * 2;
    EXPECT_EQ(row["kv_bytes"], kv);
    EXPECT_EQ(row["bytes"], kv + (decode ? 3 : 10) * 4 * 64 * 4);
    // 4 operations a feature, head and visible key: 36 pairs in a prompt of 8.
    EXPECT_EQ(row["flops"], (decode ? 3 * 40 : 36 + 2 * 30) * 4.0 * 32 * 4);
  }
}

TEST(BenchAttention, SaysWhatABackendRefusesAndWhatItDoesNotKnow) {
  const json report = tenon_json({"bench", "attention", "--device", "cpu", "--batch", "q1s8",
                                  "--dtype", "bfloat16", "--backends", "cpu", "--json", "-"});
  EXPECT_THAT(report["rows"][0]["refused"].get<std::string>(), HasSubstr("query dtype BF16"));
  const auto expect_error = [](std::vector<std::string> arguments, const std::string& part) {
    arguments.insert(arguments.begin(), {"bench", "attention", "--device", "cpu"});
    const CommandResult result = tenon(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  expect_error({"--batch", "2q8s"}, "batch '2q8s'");
  expect_error({"--backends", "fast"}, "unknown attention backend 'fast'");
  expect_error({"--backends", "cpu:sometimes"},
               "expected auto, unified, split, plain, cascade, f32, f16, bf16, fp8 or int8");
  expect_error({"--num-heads", "6", "--num-kv-heads", "4"}, "--num-heads 6 is not a multiple");
}

// Contenders of one run may differ in what follows the backend's name; the plan says what they did.
TEST(BenchAttention, ComparesWaysOfWorkingAndTypesOfCells) {
  const json report =
      tenon_json({"bench",       "attention",  "--device",
                  "cpu",         "--batch",    "4q1s200p128",
                  "--num-heads", "2",          "--num-kv-heads",
                  "2",           "--head-dim", "64",
                  "--seconds",   "0",          "--rounds",
                  "1",           "--backends", "cpu:plain,cpu:cascade,cpu:cascade:int8",
                  "--json",      "-"});
  ASSERT_EQ(report["rows"].size(), 3);
  const auto plan = [&](size_t row) { return report["rows"][row]["plan"].get<std::string>(); };
  EXPECT_THAT(plan(0), ::testing::Not(HasSubstr("prefix levels")));
  EXPECT_THAT(plan(1), HasSubstr("1 prefix levels of 4 rows"));
  EXPECT_THAT(plan(2), HasSubstr("1 prefix levels of 4 rows"));
  EXPECT_LT(report["rows"][2]["kv_bytes"], report["rows"][1]["kv_bytes"]);
}

TEST(BenchLatency, MeasuresTheStepsOfABatch) {
  const json report =
      tenon_json({"bench", "latency", "--device", "cpu", "--model", test_model_path(),
                  "--batch-size", "1", "3", "--input-len", "20", "--output-len", "12", "--json"});
  EXPECT_GT(report["start_up"]["first_token_seconds"], report["start_up"]["load_seconds"]);
  ASSERT_EQ(report["rows"].size(), 2);
  for (const json& row : report["rows"]) {
    const double per_step = row["ms_per_step"].get<double>() * 1e-3;
    EXPECT_GT(per_step, 0);
    EXPECT_LE(row["ms_per_step"], row["ms_per_step_p99"]);
    // A token of every request each step; median against mean of a shared machine's steps.
    const double rate = row["output_tokens_per_second"];
    EXPECT_NEAR(rate * per_step, row["batch_size"].get<double>(),
                0.8 * row["batch_size"].get<double>());
    EXPECT_GE(row["profile"]["steps"], 8);
  }
  EXPECT_THAT(
      tenon({"bench", "latency", "--device", "cpu", "--model", test_model_path(), "--batch-size",
             "8", "--max-num-batched-tokens", "64", "--input-len", "64", "--output-len", "2"})
          .err,
      HasSubstr("--output-len 2 is too short"));
}

TEST(BenchThroughput, CountsTokensAndHostTime) {
  const json report =
      tenon_json({"bench", "throughput", "--device", "cpu", "--model", test_model_path(),
                  "--num-prompts", "4", "--input-len", "16", "--output-len", "5", "--json"});
  EXPECT_EQ(report["completed"], 4);
  const double seconds = report["seconds"];
  EXPECT_NEAR(report["output_tokens_per_second"].get<double>() * seconds, 20, 1e-6);
  EXPECT_NEAR(report["input_tokens_per_second"].get<double>() * seconds, 64, 1e-6);
  EXPECT_GE(report["profile"]["steps"], 5);
  EXPECT_GT(report["profile"]["host_us_per_step"]["schedule"], 0);
}

TEST(Backends, VerifiesWithoutAModel) {
  const CommandResult result = run_tenon(
      {{"backends", "--verify", "cpu", "--device", "cpu", "--verify-level", "smoke"}, "", {}});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("0 failed, 0 refused"));
  EXPECT_EQ(tenon({"backends", "--verify", "no-such"}).exit_code, 2);
}

}  // namespace
}  // namespace tenon
