#include "models/registry.h"

#include <array>

#include "formats/quote.h"
#include "models/llama.h"

namespace tenon {
namespace {

constexpr std::array<Architecture, 1> kArchitectures = {{
    {"LlamaForCausalLM", "llama", &llama_tensors, &build_llama},
}};

Result<const Architecture*> find(std::string_view name, std::string_view Architecture::*field) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.*field == name) return &architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.*field);
  }
  return unsupported("architecture {} is not supported; supported: {}", quote_name(name), known);
}

}  // namespace

Result<const Architecture*> find_architecture(std::string_view name) {
  return find(name, &Architecture::name);
}

Result<const Architecture*> find_gguf_architecture(std::string_view gguf_name) {
  return find(gguf_name, &Architecture::gguf_name);
}

}  // namespace tenon
