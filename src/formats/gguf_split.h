// Models split over several GGUF files: "<prefix>-00001-of-00003.gguf" and so on. File names count
// from 1, the metadata key split.no from 0; only the first file holds the model's metadata. Thread
// safety: a plain function, safe from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"

namespace tenon {

// All files of the model that `path` belongs to, the one with the metadata first; a file that is
// not split comes alone. `path` may be any of the files. Errors: kNotFound lists every missing
// file; kDataLoss when numbers, counts or tensor names of the files contradict each other.
Result<std::vector<std::shared_ptr<const GgufFile>>> open_gguf_files(const std::string& path);

}  // namespace tenon
