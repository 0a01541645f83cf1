// Any bytes: SafetensorsFile::open refuses them or every span it hands out can be read.
#include <cstdlib>

#include "formats/safetensors.h"
#include "input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tenon::fuzz::InputFile input(data, size);
  const auto file = tenon::SafetensorsFile::open(input.path());
  if (!file.ok()) {
    if (file.status().message().empty()) std::abort();
    return 0;
  }
  volatile unsigned sum = 0;
  for (const tenon::SafetensorsTensor& tensor : (*file)->tensors()) {
    sum = sum + tenon::fuzz::touch(tensor.data);
    if ((*file)->find_tensor(tensor.name) != &tensor) std::abort();
  }
  return 0;
}
