// The command line as a user meets it: what the commands print, and what bad input gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run_tenon.h"

namespace tenon {
namespace {

using ::testing::AllOf;
using testing::CommandResult;
using ::testing::HasSubstr;
using testing::run_tenon;
using testing::test_model_path;

CommandResult tenon(std::vector<std::string> arguments, std::string stdin_text = "") {
  return run_tenon({std::move(arguments), std::move(stdin_text), {}});
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tenon-cli-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name, const std::string& content) const {
    const std::string path = (path_ / name).string();
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  std::filesystem::path path_;
};

// The one line that an error prints.
void expect_error(const CommandResult& result, int exit_code, const std::string& part) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_THAT(result.err, HasSubstr(part));
  EXPECT_EQ(result.out, "");
}

TEST(CommandLine, HelpNamesEveryCommandAndVersionIsPrinted) {
  const auto help = tenon({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"serve", "run", "chat", "bench", "backends", "inspect"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
  }
  EXPECT_THAT(tenon({"--version"}).out, HasSubstr("tenon 0.1.0"));
  EXPECT_THAT(tenon({"serve", "--help"}).out,
              AllOf(HasSubstr("--max-num-batched-tokens"), HasSubstr("--attention-backend"),
                    HasSubstr("--api-key")));
}

TEST(CommandLine, UnknownFlagsKeysAndVariablesAreErrors) {
  EXPECT_EQ(tenon({}).exit_code, 2);
  EXPECT_EQ(tenon({"frobnicate"}).exit_code, 2);
  EXPECT_THAT(tenon({"run", "--frobnicate"}).err, HasSubstr("--frobnicate"));
  EXPECT_EQ(tenon({"run", "--threads", "many"}).exit_code, 2);
  expect_error(run_tenon({{"backends"}, "", {{"TENON_FROBNICATE", "1"}}}), 2,
               "TENON_FROBNICATE: no command has a flag --frobnicate");
  const TemporaryFolder folder;
  expect_error(
      tenon({"backends", "--config", folder.file("a.yaml", "max-model-len: 100\nfrob: 1\n")}), 2,
      "a.yaml:2: no command has a flag --frob");
  expect_error(tenon({"backends", "--config", folder.file("b.yaml", "[1, 2]\n")}), 2,
               "expected `flag: value` lines");
  expect_error(tenon({"backends", "--config", folder.file("c.yaml", "a: [1\n")}), 2, "c.yaml:2");
  expect_error(tenon({"backends", "--config", "/nonexistent.yaml"}), 1, "/nonexistent.yaml");
}

TEST(CommandLine, CommandLineWinsOverEnvironmentWinsOverFile) {
  const TemporaryFolder folder;
  const std::string file = folder.file(
      "a.yaml", "block_size: 8\nkv-cache-dtype: float32\nmodel: " + test_model_path() + "\n");
  EXPECT_THAT(tenon({"backends", "--config", file}).out,
              AllOf(HasSubstr("blocks of 8 "), HasSubstr("F32 KV cache")));
  EXPECT_THAT(
      run_tenon({{"backends"}, "", {{"TENON_CONFIG", file}, {"TENON_BLOCK_SIZE", "32"}}}).out,
      HasSubstr("blocks of 32 "));
  EXPECT_THAT(run_tenon({{"backends", "--block-size", "64"},
                         "",
                         {{"TENON_CONFIG", file}, {"TENON_BLOCK_SIZE", "32"}}})
                  .out,
              HasSubstr("blocks of 64 "));
}

TEST(CommandLine, EmptySettingsAreNotSetAndOthersCommandsFlagsAreFine) {
  const std::vector<std::string> arguments = {"backends", "--model", test_model_path()};
  const auto result = run_tenon(
      {arguments, "", {{"TENON_API_KEY", ""}, {"TENON_CPU_ISA", ""}, {"TENON_PORT", "1"}}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const TemporaryFolder folder;
  auto with_file = arguments;
  with_file.insert(with_file.end(),
                   {"--config", folder.file("a.yaml", "# for serve\nport: 8000\nblock-size:\n")});
  EXPECT_EQ(tenon(with_file).exit_code, 0);
  with_file.back() = folder.file("b.yaml", "# nothing\n");
  EXPECT_EQ(tenon(with_file).exit_code, 0);
  // A bad value says where it came from.
  EXPECT_THAT(run_tenon({arguments, "", {{"TENON_SEED", "abc"}}}).err, HasSubstr("TENON_SEED"));
}

TEST(CommandLine, AChatTemplateThatIsNoFileIsRefused) {
  const TemporaryFolder folder;
  const std::vector<std::string> serve = {"serve",  "--model", test_model_path(),
                                          "--port", "0",       "--chat-template"};
  const auto with = [&](const std::string& path) {
    auto all = serve;
    all.push_back(path);
    return tenon(all);
  };
  expect_error(with("/tmp"), 1, "/tmp");
  expect_error(with(folder.file("empty.jinja", "")), 2, "empty.jinja");
}

TEST(CommandLine, BackendsExplainTheChoice) {
  const auto result = tenon({"backends", "--model", test_model_path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("9 query heads on 3 KV heads"), HasSubstr("* cpu"),
                                HasSubstr("reference"), HasSubstr("Chosen: cpu (")));
  expect_error(tenon({"backends", "--model", test_model_path(), "--attention-backend", "nope"}), 2,
               "nope");
}

TEST(CommandLine, InspectShowsArchitectureTensorsAndMemory) {
  const auto result = tenon({"inspect", test_model_path()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("LlamaForCausalLM: 30 layers"), HasSubstr("Q4_1"),
                                HasSubstr("token_embd.weight"), HasSubstr("Memory plan"),
                                HasSubstr("KV cache")));
  expect_error(tenon({"inspect", "/nonexistent.gguf"}), 1, "/nonexistent.gguf");
  const TemporaryFolder folder;
  EXPECT_THAT(tenon({"inspect", folder.file("x.gguf", "GGUX----------------")}).err,
              HasSubstr("x.gguf"));
}

TEST(CommandLine, RunAnswersFromFlagAndFromStdin) {
  const std::vector<std::string> common = {"run", "--model", test_model_path(), "-n", "8", "--raw"};
  auto flag = common;
  flag.insert(flag.end(), {"-p", "The capital of France is"});
  const auto a = tenon(flag);
  EXPECT_EQ(a.exit_code, 0) << a.err;
  EXPECT_THAT(a.out, HasSubstr("Paris"));
  EXPECT_EQ(tenon(common, "The capital of France is").out, a.out);
  expect_error(tenon(common), 2, "no prompt");
  // The chat template's answer is another one than raw text's.
  EXPECT_NE(
      tenon({"run", "--model", test_model_path(), "-n", "8", "-p", "The capital of France is"}).out,
      a.out);
}

TEST(CommandLine, ChatKeepsHistoryAndKnowsItsCommands) {
  const auto result =
      tenon({"chat", "--model", test_model_path(), "--temperature", "0", "-n", "12"},
            "My name is Zed.\n/stats\nWhat is my name?\n/nonsense\n/exit\nnever read\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("tokens in"), HasSubstr("/clear")));
}

TEST(CommandLine, BenchPrintsTheRatesAndJson) {
  const std::vector<std::string> base = {
      "bench", "throughput",  "--model", test_model_path(), "--num-prompts",
      "3",     "--input-len", "5",       "--output-len",    "4"};
  const auto text = tenon(base);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("Input token throughput (tok/s):"),
                              HasSubstr("Output token throughput (tok/s):"),
                              HasSubstr("Request throughput (req/s):")));
  auto with_json = base;
  with_json.push_back("--json");
  const auto json = nlohmann::json::parse(tenon(with_json).out, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["completed"], 3);
  EXPECT_GT(json["output_tokens_per_second"], 0.0);
}

TEST(CommandLine, BadModelsAreRefusedWithTheNameAndTheReason) {
  expect_error(tenon({"run", "-p", "x", "--model", "/nonexistent.gguf"}), 1, "/nonexistent.gguf");
  const TemporaryFolder folder;
  std::string head(1 << 20, '\0');
  std::ifstream(test_model_path(), std::ios::binary)
      .read(head.data(), static_cast<std::streamsize>(head.size()));
  const auto cut = tenon({"run", "-p", "x", "--model", folder.file("cut.gguf", head)});
  EXPECT_NE(cut.exit_code, 0);
  EXPECT_LT(cut.exit_code, 128) << "ended by a signal";
  EXPECT_THAT(cut.err, HasSubstr("cut.gguf"));
  EXPECT_EQ(std::count(cut.err.begin(), cut.err.end(), '\n'), 1) << cut.err;
}

TEST(CommandLine, ImpossibleSettingsSayWhatWouldFit) {
  const std::vector<std::string> base = {"run", "-p", "x", "--model", test_model_path()};
  const auto with = [&](std::vector<std::string> more) {
    auto all = base;
    all.insert(all.end(), more.begin(), more.end());
    return tenon(all);
  };
  expect_error(with({"--kv-cache-memory", "4TiB"}), 1, "would fit");
  expect_error(with({"--max-model-len", "100000"}), 2, "8192");
  expect_error(with({"--max-model-len", "4096", "--num-kv-blocks", "9"}), 2, "--max-model-len 128");
  expect_error(with({"--attention-backend", "flashinfinity"}), 2, "flashinfinity");
  // Without a GPU because there is none, with one because of the type.
  expect_error(with({"--device", "cuda", "--dtype", "float32"}), 1, "--device");
  expect_error(with({"--cpu-isa", "mmx"}), 2, "mmx");
  expect_error(with({"--temperature", "3"}), 2, "temperature");
}

TEST(CommandLine, APortInUseIsOneLine) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(socket, 1), 0);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  expect_error(tenon({"serve", "--model", test_model_path(), "--port", port}), 1, port);
  ::close(socket);
}

}  // namespace
}  // namespace tenon
