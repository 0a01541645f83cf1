// The decode kernel's way through the keys: shapes, the stretch of a block and the copies of its
// keys into shared memory. Part of decode_kernel.cuh.
#pragma once

#include <type_traits>

#include "attention/backends/flash/bulk_copy.cuh"
#include "attention/backends/flash/decode.h"
#include "attention/backends/flash/mma.cuh"

namespace tenon::flash {

template <typename ElementType,
          int kHeadDim,
          int kTileRows,
          int kBlockWarps,
          int kDepth,
          bool kBulkCopies,
          Cells kCellType = Cells::kHalf,
          bool kWithExtras = false>
struct DecodeTraits {
  using T = ElementType;  // of the products
  static constexpr Cells kCells = kCellType;
  static constexpr bool kQuantised = kCells != Cells::kHalf;
  using Cell = std::conditional_t<kQuantised, uint8_t, T>;  // in memory
  static constexpr bool kTokenScales = kCells == Cells::kI8;
  // Scores follow rules and are in units of log2 e; else they are products, yet to be scaled.
  static constexpr bool kRules = kQuantised || kWithExtras;
  static constexpr int kDim = kHeadDim;  // padded
  static constexpr int kRows = kTileRows;
  static constexpr int kTeamWarps = kTileRows <= 16 ? 1 : kTileRows / 16;
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kStages = kDepth;
  static constexpr bool kBulk = kBulkCopies;

  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTeams = kWarps / kTeamWarps;
  static constexpr int kKeys = kTeamWarps == 1 ? 16 : 32;             // of a stage
  static constexpr int kPiece = 16 / static_cast<int>(sizeof(Cell));  // elements of 16 bytes
  static constexpr int kChunks = 2 * kDim / kPiece;  // of 16 bytes: K and V of a token
  static constexpr int kCopies = kKeys * kChunks / (32 * kTeamWarps);  // of a thread and stage
  // K and V of a token, as they lie in memory (KvLayout::kLBHNCSwizzled) or 16 bytes apart: either
  // way eight rows of a matrix lie in different banks. 8-bit cells are always swizzled here.
  static constexpr bool kSwizzled = kBulk || kQuantised;
  static constexpr int kRowBytes = 16 * kChunks + (kSwizzled ? 0 : 16);
  static constexpr int kCellBytes = kKeys * kRowBytes;
  static constexpr int kScaleBytes = kTokenScales ? 8 * kKeys : 0;  // K's, then V's
  static constexpr int kStageBytes = kCellBytes + kScaleBytes;
  static constexpr int kRingBytes = kTeams * kStages * kStageBytes;
  // Four rows of every warp at a time are merged; 8 words more spread them over the banks.
  static constexpr int kMergeStride = kDim + 8;
  static constexpr int kMergeBytes = kWarps * 4 * kMergeStride * 4;
  static constexpr int kStateBytes = (kWarps * 16 + kRows) * 8 + 16;
  static constexpr int kBarrierBytes = kBulk ? 8 * kTeams * kStages : 0;
  static constexpr int kSharedBytes = kRingBytes + kMergeBytes + kStateBytes + kBarrierBytes;
  static_assert(kKeys * kChunks % (32 * kTeamWarps) == 0);
  static_assert(!kBulk || (kDim % 64 == 0 && kKeys == kBulkKeys));
  static_assert(!kQuantised || kDim % 64 == 0);
  static_assert(kSharedBytes <= 232448);  // what a block may have on sm_90

  // Of the partial results: kRows rows of output, then (maximum, sum) of each.
  static constexpr int kSlotFloats = kRows * (kDim + 2);

  // Where in a stage half `half` (16 bytes) of 32-byte pair `pair` of a token's K and V lies.
  __device__ static constexpr uint32_t cell(uint32_t token, uint32_t pair, uint32_t half) {
    const uint32_t swizzle = kBulk ? token % 8 * 16 : 0;
    return token * kRowBytes + pair / 4 * 128 + ((pair % 4 * 32 + half * 16) ^ swizzle);
  }
  static constexpr int kFirstValuePair = kDim / 16;  // K has the pairs before it
  // Where piece `piece` (16 bytes) of a token's K and V lies, if it is swizzled.
  __device__ static constexpr uint32_t piece(uint32_t token, uint32_t index) {
    return token * kRowBytes + (index ^ token % 8) * 16;
  }
  // Where a token's scale is: K's, or V's.
  __device__ static constexpr uint32_t token_scale(uint32_t token, bool of_v) {
    return kCellBytes + ((of_v ? kKeys : 0) + token) * 4;
  }
};

__device__ __forceinline__ int divide(int n, const FastDivisor& d) {
  return static_cast<int>((static_cast<uint64_t>(static_cast<uint32_t>(n)) * d.factor) >> d.shift);
}

// Where a block's stretch meets one unit.
struct DecodePiece {
  int unit;
  int head;
  int begin;  // keys
  int end;
  int first;  // of the keys that are read: the first one within the window
};

// A stretch as threads hold it.
struct StretchStart {
  int unit_begin;
  int unit_end;
  int key_begin;
  int key_end;
  int first_stretch;
  int last_stretch;
  int first_page;
  int total;
  DecodeTile tile;
  int page;  // the lane's one of DecodeStretch::pages
};

__device__ __forceinline__ StretchStart load_stretch(const DecodeStretch& from) {
  const int4* words = reinterpret_cast<const int4*>(&from);
  const int4 a = __ldg(words);
  const int4 b = __ldg(words + 1);
  StretchStart s;
  reinterpret_cast<int4*>(&s.tile)[0] = __ldg(words + 2);
  reinterpret_cast<int4*>(&s.tile)[1] = __ldg(words + 3);
  s.page = __ldg(from.pages + threadIdx.x % DecodeStretch::kPages);
  s.unit_begin = a.x, s.unit_end = a.y, s.key_begin = a.z, s.key_end = a.w;
  s.first_stretch = b.x, s.last_stretch = b.y, s.first_page = b.z, s.total = b.w;
  return s;
}

// Walks the units of a stretch, and keeps the tile of the current one. With `kWindows`, keys that
// no row of a tile sees through its window are skipped, whole runs of them.
template <bool kWindows>
class DecodeWalk {
 public:
  // Requires: a stretch that is not empty.
  __device__ DecodeWalk(const DecodeParams& params, const StretchStart& stretch)
      : params_(params),
        stretch_(stretch),
        unit_(stretch.unit_begin),
        tile_index_(stretch.unit_begin / params.num_kv_heads),
        tile_(stretch.tile) {}
  __device__ bool done() const { return unit_ >= stretch_.unit_end; }
  __device__ void next() {
    ++unit_;
    if (!done()) load();
  }
  __device__ DecodePiece piece() const {
    DecodePiece piece;
    piece.unit = unit_;
    piece.head = unit_ - tile_index_ * params_.num_kv_heads;
    piece.begin = unit_ == stretch_.unit_begin ? stretch_.key_begin : 0;
    piece.end = unit_ + 1 == stretch_.unit_end ? min(stretch_.key_end, tile_.keys) : tile_.keys;
    piece.first = piece.begin;
    if constexpr (kWindows) {
      const int position = tile_.seq_len - tile_.query_len + divide(tile_.first_row, params_.group);
      const int first = max(position - params_.extras.window + 1, 0);
      piece.first = max(piece.begin, first / kBulkKeys * kBulkKeys);
    }
    return piece;
  }
  __device__ const DecodeTile& tile() const { return tile_; }
  __device__ bool at_first() const { return unit_ == stretch_.unit_begin; }
  __device__ bool at_last() const { return unit_ + 1 == stretch_.unit_end; }

 private:
  __device__ void load() {
    const int index = unit_ / params_.num_kv_heads;
    if (index == tile_index_) return;
    tile_index_ = index;
    const int4* words = reinterpret_cast<const int4*>(params_.tiles + index);
    reinterpret_cast<int4*>(&tile_)[0] = __ldg(words);
    reinterpret_cast<int4*>(&tile_)[1] = __ldg(words + 1);
  }

  const DecodeParams& params_;
  const StretchStart& stretch_;
  int unit_;
  int tile_index_;
  DecodeTile tile_;
};

// The stages of a team and, for bulk copies, the barrier that tells of each stage's arrival.
template <typename Traits>
class StageRing {
 public:
  // `shared` is the block's.
  __device__ StageRing(unsigned char* shared, int team)
      : stages_(ptx::shared_address(shared) + team * Traits::kStages * Traits::kStageBytes),
        barriers_(ptx::shared_address(shared) + Traits::kSharedBytes - Traits::kBarrierBytes +
                  team * Traits::kStages * 8) {}
  // Once a launch, by the team's threads, before any copy.
  __device__ void start() const {
    if constexpr (Traits::kBulk) {
      if (threadIdx.x % 32 == 0) {
        for (int s = 0; s < Traits::kStages; ++s) ptx::barrier_init(barrier(s), 1);
        ptx::barrier_init_fence();
      }
      __syncwarp();
    }
  }
  __device__ uint32_t stage(int index) const { return stages_ + index * Traits::kStageBytes; }
  __device__ uint32_t barrier(int index) const { return barriers_ + index * 8; }
  // Until the bulk copies into the stage have arrived. Every stage that is filled is waited for
  // once.
  __device__ void wait(int index) {
    ptx::barrier_wait(barrier(index), phases_ >> index & 1U);
    phases_ ^= 1U << index;
  }

 private:
  const uint32_t stages_;
  const uint32_t barriers_;
  uint32_t phases_ = 0;  // a bit a stage
};

// The copying side of a team: puts run after run of keys into the ring. All threads of a team carry
// the same state, but for the page that each lane has looked up for its key of the next run.
template <typename Traits>
class KeyStream {
 public:
  using Cell = typename Traits::Cell;

  __device__ KeyStream(const DecodeParams& params,
                       const StretchStart& stretch,
                       int team,
                       int thread)
      : params_(params),
        stretch_(stretch),
        walk_(params, stretch),
        team_(team),
        thread_(thread),
        lane_(thread % 32) {
    open();
    look_up();
  }

  // Starts the copies of the next run, if there is one, into stage `index`. With 16-byte copies a
  // group is committed in any case; before bulk copies all reads of the stage must have been made.
  __device__ void copy_next(const StageRing<Traits>& ring, int index) {
    if (!walk_.done()) {
      if constexpr (Traits::kBulk) {
        copy_whole(ring.stage(index), ring.barrier(index));
      } else {
        const int page = divide(key_, params_.page_size);
        const int in_page = key_ - page * params_.page_size.divisor;
        if (in_page + Traits::kKeys <= params_.page_size.divisor && key_ + Traits::kKeys <= end_ &&
            params_.head_dim == Traits::kDim) {
          copy_run(ring.stage(index), in_page);
        } else {
          copy_cells(ring.stage(index));
        }
      }
      key_ += Traits::kTeams * Traits::kKeys;
      if (key_ >= end_) {
        walk_.next();
        open();
      }
      look_up();
    }
    if constexpr (!Traits::kBulk) ptx::copy_commit();
  }

 private:
  // One copy: runs begin at multiples of their length and pages have multiples of it. Cells past
  // the end of the row come along; see clear_values().
  __device__ void copy_whole(uint32_t stage, uint32_t barrier) {
    if (lane_ != 0) return;
    const int in_page = key_ - divide(key_, params_.page_size) * params_.page_size.divisor;
    ptx::barrier_arrive_expect(barrier, Traits::kStageBytes);
    ptx::bulk_load(stage, head_base_ + page_ * params_.page_stride + in_page * params_.token_stride,
                   Traits::kCellBytes, barrier);
    if constexpr (Traits::kTokenScales) {
      const float* scales = token_scales(page_) + in_page;
      const uint32_t to = stage + Traits::token_scale(0, false);
      if (params_.page_size.divisor == Traits::kKeys) {  // V's follow K's
        ptx::bulk_load(to, scales, Traits::kScaleBytes, barrier);
      } else {
        ptx::bulk_load(to, scales, Traits::kScaleBytes / 2, barrier);
        ptx::bulk_load(stage + Traits::token_scale(0, true), scales + params_.page_size.divisor,
                       Traits::kScaleBytes / 2, barrier);
      }
    }
  }
  // K's of the current head in a page.
  [[nodiscard]] __device__ const float* token_scales(int page) const {
    return reinterpret_cast<const float*>(static_cast<const unsigned char*>(params_.kv) +
                                          page * params_.page_stride + params_.token_scale_offset) +
           2 * head_ * params_.page_size.divisor;
  }
  // One number a thread.
  __device__ void copy_token_scales(uint32_t stage) {
    // All lanes of a warp are at K or at V: there are 16 keys and one warp, or 32 and more of them.
    const int token = thread_ % Traits::kKeys;
    const bool of_v = thread_ / Traits::kKeys == 1;
    const int page = __shfl_sync(0xffffffffU, page_, token);
    if (thread_ >= 2 * Traits::kKeys) return;
    const int key = key_ + token;
    const int in_page = key - divide(key, params_.page_size) * params_.page_size.divisor;
    const bool there = key < end_;
    const float* scale = token_scales(page);
    if (there) scale += in_page + (of_v ? params_.page_size.divisor : 0);
    ptx::copy_4(stage + Traits::token_scale(token, of_v), scale, there);
  }
  // A run of whole cells inside one page.
  __device__ void copy_run(uint32_t stage, int in_page) {
    const int64_t page = __shfl_sync(0xffffffffU, page_, 0);
    const Cell* cell = head_base_ + page * params_.page_stride + in_page * params_.token_stride;
#pragma unroll
    for (int i = 0; i < Traits::kCopies; ++i) {
      const int chunk = i * 32 * Traits::kTeamWarps + thread_;
      const int token = chunk / Traits::kChunks;
      const int column = chunk % Traits::kChunks;
      ptx::copy_16_of_line(
          stage + place(token, column),
          cell + token * params_.token_stride + swizzled(column, token) * Traits::kPiece, true);
    }
    if constexpr (Traits::kTokenScales) copy_token_scales(stage);
  }
  // Any run: cells may lie in several pages, end before the run does, and be narrower than the
  // stage.
  __device__ void copy_cells(uint32_t stage) {
    const int key = key_ + lane_;
    const int in_page = key - divide(key, params_.page_size) * params_.page_size.divisor;
    const Cell* cell =
        head_base_ + int64_t{page_} * params_.page_stride + in_page * params_.token_stride;
    const auto address = reinterpret_cast<unsigned long long>(cell);
#pragma unroll 4
    for (int i = 0; i < Traits::kCopies; ++i) {
      const int chunk = i * 32 * Traits::kTeamWarps + thread_;
      const int token = chunk / Traits::kChunks;
      const int column = chunk % Traits::kChunks * Traits::kPiece;  // in the padded K | V
      const bool is_v = column >= Traits::kDim;
      const int dim = is_v ? column - Traits::kDim : column;
      const bool there = key_ + token < end_ && dim < params_.head_dim;
      const auto row = __shfl_sync(0xffffffffU, address, token);
      const int from = is_v ? dim + params_.head_dim : dim;
      const Cell* source =
          reinterpret_cast<const Cell*>(row) +
          (there ? swizzled(from / Traits::kPiece, key_ + token) * Traits::kPiece : 0);
      ptx::copy_16_of_line(stage + place(token, chunk % Traits::kChunks), source, there);
    }
    if constexpr (Traits::kTokenScales) copy_token_scales(stage);
  }
  // Where a piece of 16 bytes goes in a stage.
  [[nodiscard]] __device__ static uint32_t place(int token, int column) {
    if constexpr (Traits::kSwizzled) return Traits::piece(token, column);
    return token * Traits::kRowBytes + column * 16;
  }
  // Goes to the team's first run of the current unit, or of the first one that has any.
  __device__ void open() {
    for (; !walk_.done(); walk_.next()) {
      const DecodePiece piece = walk_.piece();
      key_ = piece.first + team_ * Traits::kKeys;
      end_ = piece.end;
      if (key_ < end_) {
        head_ = piece.head;
        head_base_ = static_cast<const Cell*>(params_.kv) + piece.head * params_.head_stride;
        return;
      }
    }
  }
  // Where piece `piece` of 16 bytes is in memory in the cell of `token`, counted from any multiple
  // of 8.
  [[nodiscard]] __device__ int swizzled(int piece, int token) const {
    return piece ^ (token & params_.swizzle);
  }
  // Keys past the end look up the last one's page: some address that exists. A bulk copy has one.
  __device__ void look_up() {
    if (walk_.done()) return;
    const int key = Traits::kBulk ? key_ : min(key_ + lane_, end_ - 1);
    const int page = divide(key, params_.page_size);
    const int nth = page - stretch_.first_page;
    if (walk_.at_first() && __all_sync(0xffffffffU, nth < DecodeStretch::kPages)) {
      page_ = __shfl_sync(0xffffffffU, stretch_.page, nth);  // the low half of the warp has them
    } else {
      page_ = __ldg(params_.page_indices + walk_.tile().page_begin + page);
    }
  }

  const DecodeParams& params_;
  const StretchStart& stretch_;
  DecodeWalk<Traits::kRules> walk_;
  const int team_;
  const int thread_;  // of the team
  const int lane_;
  const Cell* head_base_ = nullptr;
  int head_ = 0;
  int key_ = 0;  // first key of the next run
  int end_ = 0;
  int page_ = 0;
};

// Zeroes V of a stage from its `first`-th token on: cells of a page that no token has been written
// to may hold anything, and 0 times NaN is NaN. (What they do to the scores, a mask undoes.) By one
// warp.
template <typename Traits>
__device__ __forceinline__ void clear_values(uint32_t stage, int first) {
  constexpr int kPieces = Traits::kChunks / 2;
  for (int i = first * kPieces + static_cast<int>(threadIdx.x % 32); i < Traits::kKeys * kPieces;
       i += 32) {
    ptx::store_shared_zero_16(stage + Traits::piece(i / kPieces, kPieces + i % kPieces));
  }
  ptx::fence_async_shared();  // the next copy into the stage comes after these
  __syncwarp();
}

template <int kTeamWarps>
__device__ __forceinline__ void synchronise_team(int team) {
  if constexpr (kTeamWarps == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(32 * kTeamWarps) : "memory");
  }
}

}  // namespace tenon::flash
