// What `cmake --install` makes: a folder that runs wherever it lies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>

#include "tests/cli/run_tenon.h"

namespace tenon {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What a shell command prints; a failure of it fails the test.
std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), count);
  }
  EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << text;
  return text;
}

TEST(Bundle, RunsFromAnotherFolderWithItsOwnLibraries) {
  std::string folder = (std::filesystem::temp_directory_path() / "tenon-bundle-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  output_of("cmake --install " TENON_BINARY_DIR " --strip --prefix " + folder + "/made 2>&1");
  std::filesystem::rename(folder + "/made", folder + "/moved");
  const std::string binary = folder + "/moved/bin/tenon";
  EXPECT_THAT(output_of("env -i " + binary + " --version"), HasSubstr("tenon 0.1.0"));

  // name => path (address), one a line
  std::istringstream lines(output_of("env -i LD_TRACE_LOADED_OBJECTS=1 " + binary));
  int own = 0;
  for (std::string line; std::getline(lines, line);) {
    const size_t arrow = line.find("=> ");
    if (arrow == std::string::npos) continue;  // the loader, and what the kernel provides
    const std::string name = line.substr(line.find_first_not_of(" \t"));
    const std::string path = line.substr(arrow + 3);
    if (path.rfind(folder + "/moved/", 0) == 0) {
      ++own;
      continue;
    }
    EXPECT_THAT(
        name, AnyOf(StartsWith("libc.so"), StartsWith("libm.so"), StartsWith("libdl.so"),
                    StartsWith("librt.so"), StartsWith("libpthread.so"), StartsWith("libstdc++.so"),
                    StartsWith("libgcc_s.so"), StartsWith("libcublas")))
        << line;
  }
  EXPECT_GE(own, 5);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tenon
