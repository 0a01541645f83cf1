// Stores a step's keys and values in the pages of a CUDA KV cache; with RoPE in the same pass.
// Shared by the CUDA attention backends: AttentionImpl::write_kv and rope_and_write_kv are these
// calls.
//
// Enqueued on the device's stream, one launch. f16 and bf16 activations; caches of f16, bf16,
// f8e4m3 (saturating) and i8 (with the scales of each token and head); stored value = value / scale
// of the view, with the bits of the reference backend. Head sizes of any kind (16-byte accesses
// where head sizes, strides and rotary_dim / 2 are multiples of 8). Slot -1 is skipped.
#pragma once

#include <cstdint>
#include <span>

#include "attention/backend.h"
#include "kv_cache/layout.h"
#include "tensor/cuda/cuda_device.h"
#include "tensor/tensor.h"

namespace tenon {

// Scales that differ from head to head, in memory of the device.
struct HeadScales {
  const float* k = nullptr;  // [kv_heads], KvScales::k_of(); null: those of the view, all the same
  const float* v = nullptr;
};

// k[T, kv_heads * head_dim_k] and v[T, kv_heads * head_dim_v] go to slots[T].
void write_kv_on_gpu(CudaDevice* device,
                     const KvView& kv,
                     const TensorView& k,
                     const TensorView& v,
                     std::span<const int64_t> slots,
                     const HeadScales& scales = {});

// Rotates in.q and in.k in place and stores in.k and in.v.
void rope_and_write_kv_on_gpu(CudaDevice* device,
                              const KvView& kv,
                              const AttentionInput& in,
                              std::span<const int64_t> slots,
                              const RopeInput& rope,
                              const HeadScales& scales = {});

}  // namespace tenon
