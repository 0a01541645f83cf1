// The prefill kernel for head sizes up to 64.
#include "attention/backends/flash/prefill_launch.cuh"

namespace tenon::flash {
TENON_FLASH_PREFILL_DIM(64)
}  // namespace tenon::flash
