// What this build contains: the one list of devices, operators, samplers and attention backends,
// and the only file that asks at compile time whether CUDA is there. Listed by name because
// static-initialiser registration vanishes in static libraries.
#include "attention/backends/cpu/cpu_backend.h"
#include "attention/backends/reference/reference_backend.h"
#include "attention/registry.h"
#include "base/log.h"
#include "kernels/ceilings.h"
#include "kernels/cpu/probe.h"
#include "kernels/ops.h"
#include "sampling/batch_sampler.h"
#include "tensor/device.h"

#if TENON_HAS_CUDA
#include "attention/backends/flash/flash_backend.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/probe.h"
#include "sampling/cuda/cuda_batch_sampler.h"
#include "tensor/cuda/cuda_device.h"
#endif
#if TENON_HAS_FLASHINFER
#include "attention/backends/flashinfer/flashinfer_backend.h"
#endif

namespace tenon {
namespace {

#if TENON_HAS_CUDA
Result<std::unique_ptr<Device>> make_cuda_device() {
  TENON_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CudaDevice::create());
  return std::unique_ptr<Device>(std::move(device));
}
#else
Result<std::unique_ptr<Device>> make_cuda_device() {
  return unsupported("this build of Tenon has no CUDA support");
}
#endif

}  // namespace

Result<std::unique_ptr<Device>> make_device(std::string_view name) {
  if (name == "cpu") return make_cpu_device();
  if (name != "auto" && name != "cuda") {
    return invalid_argument("--device {}: expected auto, cpu or cuda", name);
  }
  auto device = make_cuda_device();
  if (device.ok()) return device;
  if (name == "cuda") return device.status().with_context("--device cuda");
  return make_cpu_device();
}

Result<std::unique_ptr<Ops>> make_ops(const OpsOptions& options) {
#if TENON_HAS_CUDA
  if (options.device->type() == DeviceType::kCuda) {
    return make_cuda_ops(static_cast<CudaDevice*>(options.device), options.pool,
                         options.activation_dtype);
  }
#endif
  return make_cpu_ops(options.pool, options.cpu_isa, options.device);
}

Result<Ceilings> measure_ceilings(Device& device, ThreadPool& pool) {
#if TENON_HAS_CUDA
  if (device.type() == DeviceType::kCuda) return probe_cuda(static_cast<CudaDevice&>(device));
#endif
  return Ceilings{cpu::read_bandwidth(pool), cpu::fma_rate(pool), "f32 FMA"};
}

Result<std::unique_ptr<BatchSampler>> make_batch_sampler(const BatchSamplerLimits& limits,
                                                         Ops* ops,
                                                         ThreadPool* pool) {
#if TENON_HAS_CUDA
  if (ops->device().type() == DeviceType::kCuda) {
    return make_cuda_batch_sampler(limits, static_cast<CudaDevice*>(&ops->device()));
  }
#endif
  return make_cpu_batch_sampler(limits, ops, pool);
}

void register_attention_backends(AttentionRegistry& registry) {
  registry.add("cpu", make_cpu_attention);
  registry.add("reference", make_reference_attention);
#if TENON_HAS_CUDA
  registry.add("flash", make_flash_attention);
#endif
#if TENON_HAS_FLASHINFER
  registry.add("flashinfer", make_flashinfer_attention);
#endif
}

}  // namespace tenon
