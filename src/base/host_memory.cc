#include "base/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/cgroup.h"

namespace tenon {

int64_t available_memory_bytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream info("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (info >> key >> kib) {
    std::getline(info, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  return std::min(available, cgroup_memory_left());
}

}  // namespace tenon
