#include "cli/settings.h"

#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace tenon::cli {
namespace {

std::string flag_name(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return c == '_' ? '-' : static_cast<char>(std::tolower(c));
  });
  return text;
}

}  // namespace

Result<Settings> settings_from_environment() {
  constexpr std::string_view kPrefix = "TENON_";
  constexpr std::string_view kTests = "TENON_TEST_";
  Settings settings;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (text.rfind(kPrefix, 0) != 0 || text.rfind(kTests, 0) == 0 ||
        equals == std::string_view::npos)
      continue;
    const std::string name(text.substr(0, equals));
    settings.push_back(
        {flag_name(name.substr(kPrefix.size())), std::string(text.substr(equals + 1)), name});
  }
  return settings;
}

Result<Settings> settings_from_yaml(const std::string& path) {
  Settings settings;
  try {
    const YAML::Node root = YAML::LoadFile(path);
    if (root.IsNull()) return settings;  // nothing but comments
    if (!root.IsMap()) return invalid_argument("{}: expected `flag: value` lines", path);
    for (const auto& item : root) {
      const auto name = flag_name(item.first.as<std::string>());
      const std::string source = path + ":" + std::to_string(item.first.Mark().line + 1);
      if (item.second.IsNull()) continue;
      if (item.second.IsScalar()) {
        settings.push_back({name, item.second.as<std::string>(), source});
      } else if (item.second.IsSequence()) {
        for (const auto& element : item.second)
          settings.push_back({name, element.as<std::string>(), source});
      } else {
        return invalid_argument("{}: '{}' must be a value or a list of values", source, name);
      }
    }
  } catch (const YAML::BadFile&) {
    return not_found("{}: cannot read the configuration file", path);
  } catch (const YAML::Exception& error) {
    return invalid_argument("{}:{}: {}", path, error.mark.line + 1, error.msg);
  }
  return settings;
}

}  // namespace tenon::cli
