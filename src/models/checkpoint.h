// The weights of a model under the names its file uses, whatever the format: what loaders produce
// and an architecture consumes.
//
// Ownership:     a Checkpoint shares the mapped files and owns generated or realigned tensors; a
// model that
//                keeps pointers into it keeps the Checkpoint.
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "kernels/ops.h"
#include "models/config.h"
#include "tensor/tensor.h"

namespace tenon {

// Which names and which RoPE order the weights follow.
enum class WeightNaming { kGguf, kHuggingFace };

struct StoredTensor {
  std::string name;
  std::string type_name;  // as the file spells it, for messages
  bool readable = true;   // false: the type is none of DType's weight types
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // outermost first
  const void* data = nullptr;
  std::shared_ptr<const MappedFile> file;        // null for memory the Checkpoint owns
  std::optional<WeightSource::Random> random{};  // instead of data: the operators make it
};

// A tensor that an architecture asks for.
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  bool is_norm = false;  // dummy weights: ones instead of noise
};

// Hands out tensors and checks them off. Problems are collected, so that one message lists all of
// them.
class Checkpoint {
 public:
  ModelConfig config;
  WeightNaming naming = WeightNaming::kHuggingFace;
  std::string path;  // for messages

  // kDataLoss if the name is there already.
  Status add(StoredTensor tensor);
  // Adds a tensor in memory of this object.
  Status add_owned(StoredTensor tensor, Buffer memory);

  [[nodiscard]] bool has(std::string_view name) const { return tensors_.count(name) != 0; }
  [[nodiscard]] const std::map<std::string, StoredTensor, std::less<>>& tensors() const {
    return tensors_;
  }

  // The tensor, marked as used; nullptr if it is missing, misshapen or of an unreadable type, which
  // finish() then reports.
  const StoredTensor* take(const TensorSpec& spec);
  // A matrix as WeightSource, and a vector as f32 numbers; empty on a problem.
  WeightSource take_matrix(const TensorSpec& spec);
  std::vector<float> take_vector(const TensorSpec& spec);
  // A tensor that is known and not needed.
  void ignore(std::string_view name);

  // After everything was taken: kDataLoss listing every missing and misshapen tensor, kUnsupported
  // listing those of unreadable types and the readable ones; unused tensors are logged, and refused
  // if they are biases, which would change the result. Files that changed meanwhile are refused as
  // well.
  Status finish() const;

  // "Q4_1 (210), F32 (61), Q8_0 (1)" over the tensors taken.
  [[nodiscard]] std::string summary() const;

 private:
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, bool, std::less<>> used_;  // taken (true) or ignored (false)
  std::vector<Buffer> memory_;
  std::vector<std::string> missing_, misshapen_, unreadable_;
};

[[nodiscard]] std::string readable_weight_types();  // "F32, F16, ..." for messages
[[nodiscard]] std::string shape_text(const std::vector<int64_t>& shape);  // "[49152, 576]"

Result<Checkpoint> open_gguf_checkpoint(const std::string& path);
Result<Checkpoint> open_safetensors_checkpoint(const std::string& folder);
// Random weights for the tensors `specs` of a config.json: the same for the same seed, of a size
// that keeps activations finite. `checkpoint` brings config and path.
struct DummyWeights {
  DType dtype = DType::kF32;
  uint64_t seed = 0;
  bool deferred = false;  // matrices are described only; the operators make them where they live
};
Status fill_dummy_checkpoint(Checkpoint& checkpoint,
                             const std::vector<TensorSpec>& specs,
                             const DummyWeights& dummy);

}  // namespace tenon
