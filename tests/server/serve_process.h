// `tenon serve` as a child process, for black-box tests.
// Not thread safe. The destructor ends the process.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/assets.h"
#include "tests/server/http_client.h"

namespace tenon::testing {

// The model that set-up fetches; its absence is a failure of the set-up, not a reason to skip.
inline std::string test_model() {
  std::string path = test_model_path();
  if (!std::filesystem::exists(path)) {
    throw std::runtime_error("the test model is missing: " + path +
                             " (`make test` fetches it; TENON_TEST_MODEL names another)");
  }
  return path;
}

class ServeProcess {
 public:
  explicit ServeProcess(const std::vector<std::string>& arguments) {
    char name[] = "/tmp/tenon-serve-XXXXXX";
    if (::mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = name;
    std::vector<std::string> command = {std::string(TENON_BINARY_DIR) + "/tenon", "serve"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::vector<char*> raw;
    for (std::string& argument : command) raw.push_back(argument.data());
    raw.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      const int out = ::open((folder_ + "/stdout").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
      const int err = ::open((folder_ + "/stderr").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
      ::dup2(out, 1);
      ::dup2(err, 2);
      ::execv(raw[0], raw.data());
      ::_exit(127);
    }
  }
  ~ServeProcess() {
    if (pid_ > 0 && !exit_code_) {
      ::kill(pid_, SIGTERM);
      if (!wait_for_exit(10)) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
      }
    }
    std::filesystem::remove_all(folder_);
  }
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

  // Waits for the line "Tenon is listening on http://127.0.0.1:PORT".
  uint16_t wait_until_ready(double seconds = 60) {
    const std::string line = "Tenon is listening on http://127.0.0.1:";
    size_t at = std::string::npos;
    const bool found = eventually(
        [&] { return (at = out().find(line)) != std::string::npos || exited(); }, seconds);
    if (!found || at == std::string::npos || out().find('\n', at) == std::string::npos) {
      throw std::runtime_error("the server does not start: " + err());
    }
    port_ = static_cast<uint16_t>(std::stoi(out().substr(at + line.size())));
    return port_;
  }
  void signal(int number) const { ::kill(pid_, number); }
  // The exit code, 128 + number for a signal.
  std::optional<int> wait_for_exit(double seconds) {
    eventually([this] { return exited(); }, seconds);
    return exit_code_;
  }
  [[nodiscard]] std::string out() const { return read(folder_ + "/stdout"); }
  [[nodiscard]] std::string err() const { return read(folder_ + "/stderr"); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] uint16_t port() const { return port_; }

  [[nodiscard]] size_t open_files() const {
    const std::filesystem::directory_iterator files("/proc/" + std::to_string(pid_) + "/fd");
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }
  // Memory of its own, in MiB. Pages of the mapped model do not count: the rows of the embedding
  // come and go with the tokens that are asked for, and the kernel may drop them.
  [[nodiscard]] double own_memory_mib() const { return status_mib("RssAnon:"); }
  [[nodiscard]] double resident_mib() const { return status_mib("VmRSS:"); }

 private:
  [[nodiscard]] double status_mib(const std::string& key) const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/status");
    for (std::string word; file >> word;) {
      long kib = 0;
      if (word == key && file >> kib) return static_cast<double>(kib) / 1024.0;
    }
    return 0;
  }
  bool exited() {
    int status = 0;
    if (exit_code_) return true;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) return false;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string folder_;
  pid_t pid_ = -1;
  uint16_t port_ = 0;
  std::optional<int> exit_code_;
};

// A server on the test model, with `extra` flags.
class ServeTest : public ::testing::Test {
 protected:
  using json = nlohmann::json;

  void start(const std::vector<std::string>& extra = {}) {
    std::vector<std::string> arguments = {"--model", test_model(),          "--port",
                                          "0",       "--served-model-name", "m"};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    process = std::make_unique<ServeProcess>(arguments);
    port = process->wait_until_ready();
    ASSERT_EQ(http_get(port, "/health").status, 200);
  }
  HttpAnswer completion(json body) {
    body.emplace("model", "m");
    return http_post(port, "/v1/completions", body);
  }
  HttpAnswer chat(json body) {
    body.emplace("model", "m");
    body.emplace("messages", json::array({{{"role", "user"}, {"content", "Say hello."}}}));
    return http_post(port, "/v1/chat/completions", body);
  }
  double metric(const std::string& name) {
    return metric_value(http_get(port, "/metrics").body, name).value_or(-1);
  }
  // Nothing runs or waits, and requests still work.
  void expect_idle_and_working() {
    EXPECT_EQ(http_get(port, "/health").status, 200);
    EXPECT_TRUE(eventually([this] {
      return metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting") +
                 metric("vllm:num_requests_swapped") ==
             0;
    }));
    EXPECT_EQ(completion({{"prompt", {1, 2, 3}}, {"max_tokens", 2}}).status, 200);
  }

  std::unique_ptr<ServeProcess> process;
  uint16_t port = 0;
};

}  // namespace tenon::testing
