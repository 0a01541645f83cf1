// The prefix pass for head sizes up to 256.
#include "attention/backends/flash/prefix_launch.cuh"

namespace tenon::flash {
TENON_FLASH_PREFIX_DIM(256)
}  // namespace tenon::flash
