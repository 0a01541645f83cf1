#include <bit>
#include <cmath>
#include <utility>

#include "models/checkpoint.h"

namespace tenon {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): any seed is good, and tensors can be filled in any order.
uint64_t next_random(uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

uint64_t seed_of(std::string_view name, uint64_t seed) {
  uint64_t hash = 0xCBF29CE484222325U ^ seed;  // FNV-1a over the name
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash;
}

void store(DType dtype, std::byte* data, int64_t index, float value) {
  switch (dtype) {
    case DType::kF16: reinterpret_cast<uint16_t*>(data)[index] = f32_to_f16(value); break;
    case DType::kBF16: reinterpret_cast<uint16_t*>(data)[index] = f32_to_bf16(value); break;
    default: reinterpret_cast<float*>(data)[index] = value; break;
  }
}

// Uniform in +-1/sqrt(inputs): a product of normalised activations then stays below 1 in size.
float limit_of(const TensorSpec& spec) {
  return 1.0F / std::sqrt(static_cast<float>(spec.shape.back()));
}

void fill(const TensorSpec& spec, const DummyWeights& dummy, std::byte* data, int64_t elements) {
  const DType dtype = dummy.dtype;
  if (spec.is_norm) {
    for (int64_t i = 0; i < elements; ++i) store(dtype, data, i, 1.0F);
    return;
  }
  const float limit = limit_of(spec);
  uint64_t state = seed_of(spec.name, dummy.seed);
  for (int64_t i = 0; i < elements; ++i) {
    const auto signed_bits = static_cast<int32_t>(next_random(state) >> 32);
    store(dtype, data, i, static_cast<float>(signed_bits) * 0x1p-31F * limit);
  }
}

}  // namespace

Status fill_dummy_checkpoint(Checkpoint& checkpoint,
                             const std::vector<TensorSpec>& specs,
                             const DummyWeights& dummy) {
  const DType dtype = dummy.dtype;
  for (const TensorSpec& spec : specs) {
    int64_t elements = 1;
    for (const int64_t size : spec.shape) elements *= size;  // check_config bounds the sizes
    StoredTensor tensor;
    tensor.name = spec.name;
    tensor.type_name = dtype_traits(dtype).name;
    tensor.dtype = dtype;
    tensor.shape = spec.shape;
    if (dummy.deferred && !spec.is_norm) {
      tensor.random = {seed_of(spec.name, dummy.seed), limit_of(spec)};
      TENON_RETURN_IF_ERROR(checkpoint.add(std::move(tensor)));
      continue;
    }
    const int64_t bytes = dtype_bytes(dtype, elements);
    Buffer memory = Buffer::try_allocate(static_cast<size_t>(bytes));
    if (memory.data() == nullptr) {
      return resource_exhausted("{}: dummy weights: no memory for {} bytes of '{}'",
                                checkpoint.path, bytes, spec.name);
    }
    fill(spec, dummy, memory.data(), elements);
    TENON_RETURN_IF_ERROR(checkpoint.add_owned(std::move(tensor), std::move(memory)));
  }
  return ok_status();
}

}  // namespace tenon
