#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "formats/json_text.h"
#include "formats/quote.h"
#include "formats/safetensors.h"

namespace tenon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr size_t kMaxListed = 20;  // names in one message

std::string list_names(const std::vector<std::string>& names) {
  std::string list;
  for (size_t i = 0; i < names.size() && i < kMaxListed; ++i) {
    list += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMaxListed) list += fmt::format(" and {} more", names.size() - kMaxListed);
  return list;
}

// Names of the *.safetensors entries of a folder, sorted.
Result<std::vector<std::string>> list_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") names.push_back(it->path().filename().string());
  }
  if (error) return not_found("{}: cannot list the folder: {}", folder, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

Result<SafetensorsIndex> read_index(const std::string& path) {
  TENON_ASSIGN_OR_RETURN(const nlohmann::json json, read_json_file(path, kMaxIndexBytes));
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) {
    return data_loss("{}: 'weight_map' is not an object", path);
  }
  SafetensorsIndex index;
  for (const auto& [tensor, value] : map->items()) {
    const auto* file = value.get_ptr<const std::string*>();
    if (file == nullptr)
      return data_loss("{}: weight_map {} is not a string", path, quote_name(tensor));
    // A plain file name: nothing an index says may reach outside its folder.
    if (file->empty() || *file == "." || *file == ".." ||
        file->find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return data_loss(
          "{}: weight_map {} points to {}, which is not a plain file name in the folder", path,
          quote_name(tensor), quote_name(*file));
    }
    index.emplace(tensor, *file);
  }
  if (index.empty()) return data_loss("{}: 'weight_map' is empty", path);
  return index;
}

Result<SafetensorsFolder> open_with_index(const std::string& folder,
                                          const std::string& index_path) {
  SafetensorsFolder out;
  TENON_ASSIGN_OR_RETURN(out.index, read_index(index_path));
  std::set<std::string> wanted;
  for (const auto& [tensor, file] : out.index) wanted.insert(file);

  std::vector<std::string> missing;
  for (const std::string& name : wanted) {
    std::error_code error;
    if (!fs::exists(fs::path(folder) / name, error)) missing.push_back(name);
  }
  if (!missing.empty()) {
    return not_found("{}: the index lists files that are missing: {}", folder, list_names(missing));
  }
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
  for (const std::string& name : wanted) {
    TENON_ASSIGN_OR_RETURN(auto file, SafetensorsFile::open((fs::path(folder) / name).string()));
    for (const SafetensorsTensor& tensor : file->tensors()) {
      const auto listed = out.index.find(tensor.name);
      if (listed == out.index.end()) {
        out.notes.push_back(fmt::format("{}: tensor {} is not in the index, ignored", name,
                                        quote_name(tensor.name)));
      } else if (listed->second != name) {
        out.notes.push_back(fmt::format("{}: tensor {} is in {} by the index, this copy is ignored",
                                        name, quote_name(tensor.name), listed->second));
      }
    }
    files.emplace(name, file);
    out.files.push_back(std::move(file));
  }
  for (const auto& [tensor, file] : out.index) {
    if (files[file]->find_tensor(tensor) == nullptr) {
      missing.push_back(fmt::format("{} ({})", quote_name(tensor), file));
    }
  }
  if (!missing.empty()) {
    return data_loss("{}: tensors of the index are missing in their files: {}", folder,
                     list_names(missing));
  }
  TENON_ASSIGN_OR_RETURN(const std::vector<std::string> present, list_files(folder));
  for (const std::string& name : present) {
    if (wanted.count(name) == 0) out.notes.push_back(name + ": not in the index, ignored");
  }
  return out;
}

Result<SafetensorsFolder> open_without_index(const std::string& folder) {
  SafetensorsFolder out;
  TENON_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_files(folder));
  if (names.empty()) return not_found("{}: no *.safetensors file in the folder", folder);
  for (const std::string& name : names) {
    TENON_ASSIGN_OR_RETURN(auto file, SafetensorsFile::open((fs::path(folder) / name).string()));
    for (const SafetensorsTensor& tensor : file->tensors()) {
      const auto [it, added] = out.index.emplace(tensor.name, name);
      if (!added) {
        return data_loss("{}: tensor {} is in {} and in {}, and there is no {} to choose", folder,
                         quote_name(tensor.name), it->second, name, kIndexName);
      }
    }
    out.files.push_back(std::move(file));
  }
  return out;
}

}  // namespace

bool has_safetensors(const std::string& folder) {
  std::error_code error;
  if (fs::exists(fs::path(folder) / kIndexName, error)) return true;
  const auto names = list_files(folder);
  return names.ok() && !names->empty();
}

Result<SafetensorsFolder> open_safetensors_folder(const std::string& folder) {
  const std::string index_path = (fs::path(folder) / kIndexName).string();
  std::error_code error;
  return fs::exists(index_path, error) ? open_with_index(folder, index_path)
                                       : open_without_index(folder);
}

}  // namespace tenon
