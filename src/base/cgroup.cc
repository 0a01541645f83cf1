#include "base/cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tenon {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Folders of this process's group and all groups around it, innermost first. Inside a container the
// group's path may not exist below the mount point; then the mount point itself is the container's
// group.
std::vector<fs::path> group_folders(const std::string& controller) {
  std::vector<fs::path> folders;
  std::ifstream file(
      "/proc/self/cgroup");  // lines "0::/path" (version 2), "4:memory:/path" (version 1)
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version_2 = controllers == ",,";
    if (!version_2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    const fs::path root =
        version_2 ? fs::path("/sys/fs/cgroup") : fs::path("/sys/fs/cgroup") / controller;
    for (fs::path path = fs::path(line.substr(second + 1)).relative_path(); !path.empty();
         path = path.parent_path()) {
      folders.push_back(root / path);
    }
    folders.push_back(root);
  }
  return folders;
}

// The number in a file; nullopt for "max", for no such file.
std::optional<int64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Sum of the named lines of a memory.stat file.
int64_t read_stat(const fs::path& path, const std::vector<std::string>& names) {
  std::ifstream file(path);
  std::string name;
  int64_t sum = 0;
  for (int64_t value = 0; file >> name >> value;) {
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += value;
  }
  return sum;
}

}  // namespace

int64_t cgroup_memory_left() {
  int64_t left = kNoLimit;
  for (const fs::path& folder : group_folders("memory")) {
    auto limit = read_number(folder / "memory.max");
    auto used = read_number(folder / "memory.current");
    std::vector<std::string> cache = {"inactive_file", "active_file"};
    if (!limit) {
      limit = read_number(folder / "memory.limit_in_bytes");
      used = read_number(folder / "memory.usage_in_bytes");
      cache = {"total_inactive_file", "total_active_file"};
    }
    if (!limit || !used) continue;
    left = std::min(
        left, std::max<int64_t>(0, *limit - *used + read_stat(folder / "memory.stat", cache)));
  }
  return left;
}

int cgroup_cpus() {
  int cpus = 0;
  for (const fs::path& folder : group_folders("cpu")) {
    std::ifstream file(folder / "cpu.max");  // "quota period", or "max period"
    int64_t quota = 0;
    int64_t period = 0;
    if (!(file >> quota >> period)) {
      quota = read_number(folder / "cpu.cfs_quota_us").value_or(0);
      period = read_number(folder / "cpu.cfs_period_us").value_or(0);
    }
    if (quota <= 0 || period <= 0) continue;
    const int here = static_cast<int>((quota + period - 1) / period);
    cpus = cpus == 0 ? here : std::min(cpus, here);
  }
  return cpus;
}

}  // namespace tenon
