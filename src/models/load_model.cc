#include <filesystem>
#include <system_error>
#include <utility>

#include "models/checkpoint.h"
#include "models/config_reader.h"
#include "models/model.h"
#include "models/registry.h"

namespace tenon {
namespace {

using Format = ModelLoadOptions::Format;

Result<Format> detect_format(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return not_found("{}: no such file or folder", path);
  if (!fs::is_directory(status)) return Format::kGguf;
  if (fs::exists(fs::path(path) / "config.json", error)) return Format::kSafetensors;
  return invalid_argument(
      "{}: the folder has no config.json; give a GGUF file, or a folder with "
      "config.json and *.safetensors",
      path);
}

Result<Checkpoint> open_dummy_checkpoint(const ModelLoadOptions& options, bool deferred) {
  TENON_ASSIGN_OR_RETURN(HfConfig config, config_from_hf(options.path));
  Checkpoint checkpoint;
  checkpoint.path = options.path;
  checkpoint.config = std::move(config.model);
  TENON_ASSIGN_OR_RETURN(const Architecture* architecture,
                         find_architecture(checkpoint.config.architecture));
  TENON_RETURN_IF_ERROR(
      fill_dummy_checkpoint(checkpoint, architecture->tensors(checkpoint.config, checkpoint.naming),
                            {config.dtype, options.dummy_seed, deferred}));
  return checkpoint;
}

Result<Checkpoint> open_checkpoint(const ModelLoadOptions& options, const Ops& ops) {
  Format format = options.format;
  if (format == Format::kAuto) {
    TENON_ASSIGN_OR_RETURN(format, detect_format(options.path));
  }
  switch (format) {
    case Format::kGguf: return open_gguf_checkpoint(options.path);
    case Format::kSafetensors: return open_safetensors_checkpoint(options.path);
    default: return open_dummy_checkpoint(options, ops.makes_random_weights());
  }
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const ModelLoadOptions& options, Ops* ops) {
  TENON_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(options, *ops));
  TENON_ASSIGN_OR_RETURN(const Architecture* architecture,
                         find_architecture(checkpoint.config.architecture));
  return architecture->build(std::move(checkpoint), options, ops);
}

}  // namespace tenon
