#include "attention/backends/flash/decode.h"

namespace tenon::flash {

// Instantiated in decode_<size>.cu.
template <int kDim>
cudaError_t launch_decode_dim(const DecodeVariant& variant,
                              const DecodeParams& params,
                              cudaStream_t stream);

bool decode_supports(const DecodeVariant& variant) {
  return variant.head_dim > 0 && variant.head_dim <= 256 && variant.head_dim % 8 == 0 &&
         (variant.tile_rows == 8 || variant.tile_rows == 16 || variant.tile_rows == 64);
}

int32_t decode_blocks(const DecodeVariant& variant, int32_t multiprocessors) {
  return multiprocessors;
}

cudaError_t launch_decode(const DecodeVariant& variant,
                          const DecodeParams& params,
                          cudaStream_t stream) {
  if (!decode_supports(variant)) return cudaErrorInvalidValue;
  const int32_t dim = variant.head_dim;
  if (dim <= 64) return launch_decode_dim<64>(variant, params, stream);
  if (dim <= 80) return launch_decode_dim<80>(variant, params, stream);
  if (dim <= 96) return launch_decode_dim<96>(variant, params, stream);
  if (dim <= 128) return launch_decode_dim<128>(variant, params, stream);
  if (dim <= 192) return launch_decode_dim<192>(variant, params, stream);
  return launch_decode_dim<256>(variant, params, stream);
}

}  // namespace tenon::flash
