// Runs the real `tenon` binary as a child process and collects what it prints.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/assets.h"

namespace tenon::testing {

struct CommandResult {
  int exit_code = -1;  // 128 + signal if a signal ended it
  std::string out, err;
};

struct CommandInput {
  std::vector<std::string> arguments;
  std::string stdin_text;
  std::vector<std::pair<std::string, std::string>> environment;
};

inline std::string tenon_binary() {
  return std::string(TENON_BINARY_DIR) + "/tenon";
}

inline CommandResult run_tenon(const CommandInput& input) {
  int in[2], out[2], err[2];
  EXPECT_EQ(::pipe2(in, O_CLOEXEC) | ::pipe2(out, O_CLOEXEC) | ::pipe2(err, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    for (const auto& [name, value] : input.environment) ::setenv(name.c_str(), value.c_str(), 1);
    const std::string binary = tenon_binary();
    std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
    for (const auto& argument : input.arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(binary.c_str(), argv.data());
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  // Inputs of these tests are far smaller than a pipe's buffer.
  EXPECT_EQ(::write(in[1], input.stdin_text.data(), input.stdin_text.size()),
            static_cast<ssize_t>(input.stdin_text.size()));
  ::close(in[1]);
  CommandResult result;
  struct pollfd polls[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  std::string* targets[2] = {&result.out, &result.err};
  int open = 2;
  while (open > 0 && ::poll(polls, 2, 120'000) > 0) {
    for (int i = 0; i < 2; ++i) {
      if (polls[i].fd < 0 || polls[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = ::read(polls[i].fd, buffer, sizeof(buffer));
      if (count > 0) {
        targets[i]->append(buffer, static_cast<size_t>(count));
      } else {
        ::close(polls[i].fd);
        polls[i].fd = -1;
        --open;
      }
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace tenon::testing
