// Where set-up puts the files that tests read.
#pragma once

#include <cstdlib>
#include <string>

namespace tenon::testing {

// name: below the cache folder, as in tools/assets.txt and tools/test_assets.txt.
inline std::string asset_path(const std::string& name) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr && *cache != '\0'
                               ? cache
                               : std::string(home != nullptr ? home : "") + "/.cache";
  return base + "/tenon/" + name;
}

// The model that `make test` fetches. A missing file is a failure of the set-up, not a reason to
// skip.
inline std::string test_model_path() {
  const char* model = std::getenv("TENON_TEST_MODEL");
  return model != nullptr && *model != '\0' ? model
                                            : asset_path("models/SmolLM2-135M-Instruct.Q4_1.gguf");
}

// A file of the source tree. TENON_TEST_SOURCE_DIR: for tests that run on another machine than the
// one that built them.
inline std::string source_path(const std::string& path) {
  const char* root = std::getenv("TENON_TEST_SOURCE_DIR");
  return (root != nullptr && *root != '\0' ? std::string(root) : std::string(TENON_SOURCE_DIR)) +
         "/" + path;
}

}  // namespace tenon::testing
