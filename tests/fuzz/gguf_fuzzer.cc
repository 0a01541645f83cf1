// Any bytes: GgufFile::open refuses them or every span and value it hands out can be read.
#include <cstdlib>

#include "formats/gguf.h"
#include "input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tenon::fuzz::InputFile input(data, size);
  const auto file = tenon::GgufFile::open(input.path());
  if (!file.ok()) {
    if (file.status().message().empty()) std::abort();
    return 0;
  }
  volatile unsigned sum = 0;
  for (const tenon::GgufTensor& tensor : (*file)->tensors()) {
    sum = sum + tenon::fuzz::touch(tensor.data);
    if ((*file)->find_tensor(tensor.name) != &tensor) std::abort();
  }
  for (const auto& [key, value] : (*file)->metadata()) {
    if ((*file)->find(key) != &value) std::abort();
    if (const auto* text = std::get_if<std::string_view>(&value))
      sum = sum + tenon::fuzz::touch(*text);
    const auto* array = std::get_if<tenon::GgufArray>(&value);
    if (array == nullptr) continue;
    for (const std::string_view text : array->strings) sum = sum + tenon::fuzz::touch(text);
    for (uint64_t i = 0; i < array->count && array->strings.empty(); ++i) {
      sum = sum + (array->float_at(i) > 0.0 ? 1U : 0U);
    }
  }
  return 0;
}
