#include "kernels/host_embedding.h"

#include "kernels/weight_source.h"

namespace tenon {

Result<std::unique_ptr<EmbeddingTable>> HostEmbedding::make(const WeightSource& source,
                                                            const LinearWeight* tied) {
  TENON_RETURN_IF_ERROR(check_weight_parts({&source, 1}));
  return std::unique_ptr<EmbeddingTable>(std::make_unique<HostEmbedding>(source, tied != nullptr));
}

Device& host_device() {
  static const std::unique_ptr<Device> device = make_cpu_device();
  return *device;
}

}  // namespace tenon
