// Flags from places other than the command line.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace tenon::cli {

struct Setting {
  std::string name;  // flag without dashes: "max-model-len"
  std::string value;
  std::string source;  // where it came from, for messages
};
using Settings = std::vector<Setting>;

// TENON_MAX_MODEL_LEN=... -> max-model-len. Variables that begin with TENON_TEST_ belong to the
// tests.
Result<Settings> settings_from_environment();
// A YAML mapping of scalars, or lists of scalars for flags that may be repeated; '_' counts as '-'.
// Errors: kNotFound, kInvalidArgument with the line.
Result<Settings> settings_from_yaml(const std::string& path);

}  // namespace tenon::cli
