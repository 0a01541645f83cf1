// The prefix pass for head sizes up to 128.
#include "attention/backends/flash/prefix_launch.cuh"

namespace tenon::flash {
TENON_FLASH_PREFIX_DIM(128)
}  // namespace tenon::flash
