#include "attention/cuda/kv_block_mover.h"

#include <algorithm>

#include "attention/cuda/kv_block_copy.h"
#include "base/check.h"

namespace tenon {
namespace {

// A pool as layers of equal blocks: layer l's part of block b is at base + l * layer_bytes +
// b * block_bytes. With all layers of a block together there is one layer of large blocks.
struct BlockGrid {
  std::byte* base = nullptr;
  int64_t layer_bytes = 0;
  int64_t block_bytes = 0;
  int32_t layers = 0;

  explicit BlockGrid(const KvPool& pool) {
    const KvView first = pool.view(0);
    base = static_cast<std::byte*>(first.base);
    layers = pool.layout() == KvLayout::kBLHNC ? 1 : pool.spec().num_layers;
    block_bytes = pool.spec().bytes_per_block() / layers;
    TENON_CHECK_EQ(block_bytes, dtype_bytes(first.dtype, first.block_stride));
    layer_bytes = block_bytes * pool.num_blocks();
  }
};

void check_range(const BlockCopy& copy, const KvPool& src, const KvPool& dst) {
  TENON_CHECK(copy.src >= 0 && copy.src < src.num_blocks());
  TENON_CHECK(copy.dst >= 0 && copy.dst < dst.num_blocks());
}

bool touches(const KvBlockCopyArgs& args, const BlockCopy& copy) {
  return std::any_of(args.copies, args.copies + args.count, [&](const BlockCopy& earlier) {
    return earlier.dst == copy.src || earlier.dst == copy.dst || earlier.src == copy.dst;
  });
}

}  // namespace

KvBlockMover::KvBlockMover(CudaDevice* device) : device_(device) {
  for (cudaEvent_t* event : {&ready_, &moved_}) {
    device_->note(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
  }
}

KvBlockMover::~KvBlockMover() {
  for (cudaEvent_t event : {ready_, moved_}) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
}

void KvBlockMover::copy(KvPool& pool, std::span<const BlockCopy> copies) {
  const BlockGrid grid(pool);
  TENON_CHECK_EQ(grid.block_bytes % 16, 0);
  KvBlockCopyArgs args;
  args.base = grid.base;
  args.layer_bytes = grid.layer_bytes;
  args.block_bytes = grid.block_bytes;
  args.block_stride = grid.block_bytes;
  args.layers = grid.layers;
  const auto flush = [&] {
    if (args.count == 0) return;
    launch_kv_block_copy(args, device_->stream());
    device_->note(cudaGetLastError(), "copy_blocks");
    args.count = 0;
  };
  for (const BlockCopy& copy : copies) {
    check_range(copy, pool, pool);
    if (copy.src == copy.dst) continue;
    if (args.count == kCopiesPerLaunch || touches(args, copy)) flush();
    args.copies[args.count++] = copy;
  }
  flush();
}

void KvBlockMover::swap(const KvPool& src, KvPool& dst, std::span<const BlockCopy> copies) {
  if (copies.empty()) return;
  const BlockGrid from(src);
  const BlockGrid to(dst);
  TENON_CHECK_EQ(from.block_bytes, to.block_bytes);
  TENON_CHECK_EQ(from.layers, to.layers);
  TENON_CHECK(src.layout() == dst.layout());
  const cudaStream_t stream = device_->copy_stream();
  device_->note(cudaEventRecord(ready_, device_->stream()), "swap_blocks");
  device_->note(cudaStreamWaitEvent(stream, ready_, 0), "swap_blocks");
  for (size_t i = 0; i < copies.size();) {
    // Neighbours that stay neighbours go together.
    size_t run = 1;
    while (i + run < copies.size() &&
           copies[i + run].src == copies[i].src + static_cast<int32_t>(run) &&
           copies[i + run].dst == copies[i].dst + static_cast<int32_t>(run)) {
      ++run;
    }
    for (size_t j = i; j < i + run; ++j) check_range(copies[j], src, dst);
    // Blocks are the rows of a volume and layers its slices: one call for all layers. (As rows of
    // a matrix, layers would be further apart than the largest pitch, 2 GiB.)
    const auto width = static_cast<size_t>(from.block_bytes);
    cudaMemcpy3DParms volume{};
    volume.srcPtr = {from.base, width, width, static_cast<size_t>(src.num_blocks())};
    volume.dstPtr = {to.base, width, width, static_cast<size_t>(dst.num_blocks())};
    volume.srcPos = {0, static_cast<size_t>(copies[i].src), 0};
    volume.dstPos = {0, static_cast<size_t>(copies[i].dst), 0};
    volume.extent = {width, run, static_cast<size_t>(from.layers)};
    volume.kind = cudaMemcpyDefault;
    device_->note(cudaMemcpy3DAsync(&volume, stream), "swap_blocks");
    i += run;
  }
  device_->note(cudaEventRecord(moved_, stream), "swap_blocks");
  device_->note(cudaStreamWaitEvent(device_->stream(), moved_, 0), "swap_blocks");
}

}  // namespace tenon
