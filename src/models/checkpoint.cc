#include "models/checkpoint.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "formats/quote.h"
#include "kernels/dequantise.h"

namespace tenon {
namespace {

constexpr size_t kMaxListed = 20;  // names in one message

std::string list_names(const std::vector<std::string>& names) {
  std::string list;
  for (size_t i = 0; i < names.size() && i < kMaxListed; ++i) {
    list += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMaxListed) list += fmt::format(" and {} more", names.size() - kMaxListed);
  return list;
}

}  // namespace

std::string readable_weight_types() {
  std::string list;
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
        DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", dtype_traits(dtype).name);
  }
  return list;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Status Checkpoint::add(StoredTensor tensor) {
  const std::string name = tensor.name;
  if (!tensors_.emplace(name, std::move(tensor)).second) {
    return data_loss("{}: tensor {} appears twice", path, quote_name(name));
  }
  return ok_status();
}

Status Checkpoint::add_owned(StoredTensor tensor, Buffer memory) {
  tensor.data = memory.data();
  tensor.file = nullptr;
  TENON_RETURN_IF_ERROR(add(std::move(tensor)));
  memory_.push_back(std::move(memory));
  return ok_status();
}

const StoredTensor* Checkpoint::take(const TensorSpec& spec) {
  const auto it = tensors_.find(spec.name);
  if (it == tensors_.end()) {
    missing_.push_back(spec.name);
    return nullptr;
  }
  used_[spec.name] = true;
  const StoredTensor& tensor = it->second;
  if (tensor.shape != spec.shape) {
    misshapen_.push_back(fmt::format("{} is {}, {} is needed", quote_name(tensor.name),
                                     shape_text(tensor.shape), shape_text(spec.shape)));
    return nullptr;
  }
  if (!tensor.readable) {
    unreadable_.push_back(fmt::format("{} is {}", quote_name(tensor.name), tensor.type_name));
    return nullptr;
  }
  return &tensor;
}

WeightSource Checkpoint::take_matrix(const TensorSpec& spec) {
  TENON_CHECK_EQ(spec.shape.size(), size_t{2});
  const StoredTensor* tensor = take(spec);
  if (tensor == nullptr) return {};
  return {tensor->name,  tensor->dtype, tensor->data,  spec.shape[0],
          spec.shape[1], tensor->file,  tensor->random};
}

std::vector<float> Checkpoint::take_vector(const TensorSpec& spec) {
  TENON_CHECK_EQ(spec.shape.size(), size_t{1});
  const StoredTensor* tensor = take(spec);
  if (tensor == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(spec.shape[0]));
  dequantise(tensor->dtype, tensor->data, spec.shape[0], values.data());
  return values;
}

void Checkpoint::ignore(std::string_view name) {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) used_.emplace(it->first, false);
}

Status Checkpoint::finish() const {
  if (!missing_.empty()) {
    return data_loss("{}: {} tensors that {} needs are missing: {}", path, missing_.size(),
                     config.architecture, list_names(missing_));
  }
  if (!misshapen_.empty()) {
    return data_loss("{}: tensors of the wrong shape: {}", path, list_names(misshapen_));
  }
  if (!unreadable_.empty()) {
    return unsupported("{}: tensors of an unsupported type: {}; supported: {}", path,
                       list_names(unreadable_), readable_weight_types());
  }
  std::vector<std::string> unused;
  std::set<std::shared_ptr<const MappedFile>> files;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.file != nullptr) files.insert(tensor.file);
    if (used_.count(name) != 0) continue;
    if (name.ends_with(".bias")) {
      return unsupported("{}: tensor {}: biases are not supported for {}", path, quote_name(name),
                         config.architecture);
    }
    unused.push_back(quote_name(name));
  }
  for (const auto& file : files) TENON_RETURN_IF_ERROR(file->check_unchanged());
  if (!unused.empty()) {
    log_warning("{}: {} tensors are not used by {}: {}", path, unused.size(), config.architecture,
                list_names(unused));
  }
  return ok_status();
}

std::string Checkpoint::summary() const {
  std::map<std::string_view, int> counts;
  for (const auto& [name, taken] : used_) {
    if (taken) ++counts[dtype_traits(tensors_.find(name)->second.dtype).name];
  }
  std::vector<std::pair<std::string_view, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, count] : sorted) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name, count);
  }
  return text;
}

}  // namespace tenon
