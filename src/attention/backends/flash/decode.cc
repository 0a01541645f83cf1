#include "attention/backends/flash/decode.h"

namespace tenon::flash {

// Instantiated in decode_<size>.cu.
template <int kDim>
cudaError_t launch_decode_dim(const DecodeVariant& variant,
                              const DecodeParams& params,
                              cudaStream_t stream);
// With extras, in decode_extras_<size>.cu.
template <int kDim>
cudaError_t launch_decode_extras(const DecodeVariant& variant,
                                 const DecodeParams& params,
                                 cudaStream_t stream);
// 8-bit cells, in decode_<cells>_<size>.cu.
template <Cells kCells, int kDim>
cudaError_t launch_decode_quantised(const DecodeVariant& variant,
                                    const DecodeParams& params,
                                    cudaStream_t stream);

namespace {

template <Cells kCells>
cudaError_t launch_cells(const DecodeVariant& variant,
                         const DecodeParams& params,
                         cudaStream_t stream) {
  const int32_t dim = variant.head_dim;
  if (dim <= 64) return launch_decode_quantised<kCells, 64>(variant, params, stream);
  if (dim <= 128) return launch_decode_quantised<kCells, 128>(variant, params, stream);
  if (dim <= 192) return launch_decode_quantised<kCells, 192>(variant, params, stream);
  return launch_decode_quantised<kCells, 256>(variant, params, stream);
}

}  // namespace

bool decode_supports(const DecodeVariant& variant) {
  return variant.head_dim > 0 && variant.head_dim <= 256 &&
         variant.head_dim % (variant.cells == Cells::kHalf ? 8 : 16) == 0 &&
         (variant.tile_rows == 8 || variant.tile_rows == 16 || variant.tile_rows == 64);
}

bool decode_copies_in_bulk(const DecodeVariant& variant, const DecodeParams& params) {
  return variant.tile_rows <= 16 && params.swizzle != 0 &&
         params.page_size.divisor % kBulkKeys == 0 && params.token_stride == 2 * variant.head_dim;
}

cudaError_t launch_decode(const DecodeVariant& variant,
                          const DecodeParams& params,
                          cudaStream_t stream) {
  if (!decode_supports(variant)) return cudaErrorInvalidValue;
  if (params.swizzle != 0 && (variant.head_dim % 64 != 0 || params.page_size.divisor % 8 != 0)) {
    return cudaErrorInvalidValue;
  }
  if (params.bf16 != variant.bf16) return cudaErrorInvalidValue;
  const int32_t dim = variant.head_dim;
  switch (variant.cells) {
    case Cells::kF8: return launch_cells<Cells::kF8>(variant, params, stream);
    case Cells::kI8: return launch_cells<Cells::kI8>(variant, params, stream);
    case Cells::kHalf: break;
  }
  if (variant.extras) {
    if (dim <= 64) return launch_decode_extras<64>(variant, params, stream);
    if (dim <= 80) return launch_decode_extras<80>(variant, params, stream);
    if (dim <= 96) return launch_decode_extras<96>(variant, params, stream);
    if (dim <= 128) return launch_decode_extras<128>(variant, params, stream);
    if (dim <= 192) return launch_decode_extras<192>(variant, params, stream);
    return launch_decode_extras<256>(variant, params, stream);
  }
  if (dim <= 64) return launch_decode_dim<64>(variant, params, stream);
  if (dim <= 80) return launch_decode_dim<80>(variant, params, stream);
  if (dim <= 96) return launch_decode_dim<96>(variant, params, stream);
  if (dim <= 128) return launch_decode_dim<128>(variant, params, stream);
  if (dim <= 192) return launch_decode_dim<192>(variant, params, stream);
  return launch_decode_dim<256>(variant, params, stream);
}

}  // namespace tenon::flash
