// Where set-up puts the files that tests read.
#pragma once

#include <cstdlib>
#include <string>

namespace tenon::testing_support {

// name: below the cache folder, as in tools/assets.txt and tools/test_assets.txt.
inline std::string asset_path(const std::string& name) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base =
      cache != nullptr && *cache != '\0' ? cache : std::string(home ? home : "") + "/.cache";
  return base + "/tenon/" + name;
}

inline std::string smollm2_path() {
  const char* model = std::getenv("TENON_TEST_MODEL");
  return model != nullptr && *model != '\0' ? model
                                            : asset_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
}

}  // namespace tenon::testing_support
