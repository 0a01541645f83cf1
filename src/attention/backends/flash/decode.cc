#include "attention/backends/flash/decode.h"

namespace tenon::flash {

// Instantiated in decode_<size>.cu.
template <int kDim>
cudaError_t launch_decode_dim(const DecodeVariant& variant,
                              const DecodeParams& params,
                              cudaStream_t stream);

namespace {

// The head size that the kernel is instantiated for.
int32_t padded_dim(int32_t dim) {
  for (const int32_t padded : {64, 80, 96, 128, 192}) {
    if (dim <= padded) return padded;
  }
  return 256;
}

}  // namespace

bool decode_supports(const DecodeVariant& variant) {
  return variant.head_dim > 0 && variant.head_dim <= 256 && variant.head_dim % 8 == 0 &&
         (variant.tile_rows == 8 || variant.tile_rows == 16 ||
          (variant.tile_rows == 64 && !variant.bulk)) &&
         (!variant.bulk || variant.head_dim % 64 == 0);
}

bool decode_can_copy_bulk(const DecodeVariant& variant, const DecodeParams& params) {
  return params.swizzle != 0 && params.page_size.divisor % kBulkKeys == 0 &&
         params.token_stride == 2 * variant.head_dim;
}

cudaError_t launch_decode(const DecodeVariant& variant,
                          const DecodeParams& params,
                          cudaStream_t stream) {
  if (!decode_supports(variant)) return cudaErrorInvalidValue;
  if (variant.bulk && !decode_can_copy_bulk(variant, params)) return cudaErrorInvalidValue;
  if (params.swizzle != 0 && (variant.head_dim % 64 != 0 || params.page_size.divisor % 8 != 0)) {
    return cudaErrorInvalidValue;
  }
  switch (padded_dim(variant.head_dim)) {
    case 64: return launch_decode_dim<64>(variant, params, stream);
    case 80: return launch_decode_dim<80>(variant, params, stream);
    case 96: return launch_decode_dim<96>(variant, params, stream);
    case 128: return launch_decode_dim<128>(variant, params, stream);
    case 192: return launch_decode_dim<192>(variant, params, stream);
    default: return launch_decode_dim<256>(variant, params, stream);
  }
}

}  // namespace tenon::flash
