#include "formats/gguf_split.h"

#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "formats/quote.h"

namespace tenon {
namespace {

constexpr int64_t kMaxFiles = 99999;  // five digits in the file name

struct SplitKeys {
  int64_t number = 0;  // from 0
  int64_t count = 1;
};

Result<SplitKeys> split_keys(const GgufFile& file) {
  SplitKeys keys;
  if (file.find("split.count") == nullptr) return keys;
  const auto count = file.get_int("split.count");
  if (!count.ok()) return count.status().with_context(file.file()->path());
  keys.count = *count;
  if (keys.count <= 1) {  // 0 and 1 both mean "not split" to the program that writes these keys
    keys.count = 1;
    return keys;
  }
  const auto number = file.get_int("split.no");
  if (!number.ok()) return number.status().with_context(file.file()->path());
  keys.number = *number;
  if (keys.count > kMaxFiles || keys.number < 0 || keys.number >= keys.count) {
    return data_loss("{}: metadata 'split.no' {} and 'split.count' {} do not fit together",
                     file.file()->path(), keys.number, keys.count);
  }
  return keys;
}

std::string suffix_of(const SplitKeys& keys) {
  return fmt::format("-{:05}-of-{:05}.gguf", keys.number + 1, keys.count);
}

// Paths of all files of the set, in order.
Result<std::vector<std::string>> split_paths(const std::string& path, const SplitKeys& keys) {
  const std::string suffix = suffix_of(keys);
  if (!std::string_view(path).ends_with(suffix)) {
    return invalid_argument(
        "{}: this is file {} of {} of a split model, but its name does not end in "
        "'{}', so the other files cannot be found",
        path, keys.number + 1, keys.count, suffix);
  }
  const std::string prefix = path.substr(0, path.size() - suffix.size());
  std::vector<std::string> paths;
  std::string missing;
  for (int64_t i = 0; i < keys.count; ++i) {
    paths.push_back(prefix + suffix_of({i, keys.count}));
    std::error_code error;
    if (std::filesystem::exists(paths.back(), error)) continue;
    if (missing.size() < 1000) missing += (missing.empty() ? "" : ", ") + paths.back();
  }
  if (!missing.empty())
    return not_found("{}: files of the split model are missing: {}", path, missing);
  return paths;
}

}  // namespace

Result<std::vector<std::shared_ptr<const GgufFile>>> open_gguf_files(const std::string& path) {
  TENON_ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> start, GgufFile::open(path));
  TENON_ASSIGN_OR_RETURN(const SplitKeys keys, split_keys(*start));
  if (keys.count == 1) return std::vector{std::move(start)};
  TENON_ASSIGN_OR_RETURN(const std::vector<std::string> paths, split_paths(path, keys));

  std::vector<std::shared_ptr<const GgufFile>> files;
  std::set<std::string_view> names;
  for (int64_t i = 0; i < keys.count; ++i) {
    const std::string& file_path = paths[static_cast<size_t>(i)];
    std::shared_ptr<const GgufFile> file = start;
    if (i != keys.number) {
      TENON_ASSIGN_OR_RETURN(file, GgufFile::open(file_path));
    }
    TENON_ASSIGN_OR_RETURN(const SplitKeys own, split_keys(*file));
    if (own.number != i || own.count != keys.count) {
      return data_loss("{}: its metadata says file {} of {}, its name says {} of {}", file_path,
                       own.number + 1, own.count, i + 1, keys.count);
    }
    for (const GgufTensor& tensor : file->tensors()) {
      if (!names.insert(tensor.name).second) {
        return data_loss("{}: tensor {} is also in another file of the split model", file_path,
                         quote_name(tensor.name));
      }
    }
    files.push_back(std::move(file));
  }
  if (const auto total = files.front()->get_int("split.tensors.count");
      total.ok() && *total != static_cast<int64_t>(names.size())) {
    return data_loss("{}: metadata 'split.tensors.count' is {}, but the {} files hold {} tensors",
                     paths.front(), *total, keys.count, names.size());
  }
  return files;
}

}  // namespace tenon
