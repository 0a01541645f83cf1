// Batches made up from the batch grammar, with their own KV cells: what conformance runs, tests and
// benches feed to a backend.
//
// Ownership:     a SyntheticBatch owns the arrays its view borrows; it can move, but not be copied.
// Thread safety: build and use on one thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "attention/backend.h"
#include "attention/batch_view.h"
#include "attention/cascade.h"
#include "kv_cache/pool.h"

namespace tenon {

struct SyntheticBatch {
  SyntheticBatch() = default;
  SyntheticBatch(SyntheticBatch&&) = default;
  SyntheticBatch& operator=(SyntheticBatch&&) = default;

  std::vector<int32_t> query_start_loc, seq_lens, page_indptr, page_indices;
  std::vector<int64_t> slot_mapping;
  BatchView view;
  PrefixTree prefixes;  // set by share_prefixes()
};

// Finds the prefix tree of the batch and puts it into its view.
void share_prefixes(SyntheticBatch& batch, int32_t block_size);

// Rows are sorted into the view's order (decode, extend, prefill). Pages are distinct blocks of [1,
// num_blocks) in an order drawn from `seed`; seed 0: ascending. Requires: enough blocks.
SyntheticBatch make_batch(std::vector<BatchSpecRow> rows,
                          int32_t block_size,
                          int64_t num_blocks,
                          uint64_t seed);

// Makes the view of the arrays: spans, counts and maxima. Rows must be in the view's order.
void fill_view(SyntheticBatch& batch);

// Blocks that make_batch needs for `rows`, block 0 included.
int64_t blocks_needed(const std::vector<BatchSpecRow>& rows, int32_t block_size);

// `count` floats, roughly normal with deviation 1; the same for the same seed on every machine.
std::vector<float> random_floats(size_t count, uint64_t seed);

}  // namespace tenon
