// Shared prefixes of a batch: which decode rows begin with the same pages, as a tree, and which
// levels of it are worth reading once for all their rows (cascade attention: FlashInfer,
// arXiv:2501.01005; Hydragen, arXiv:2402.05099).
//
// The tree comes from page identity in this batch alone, never from reference counts: a finished
// request or one that is not in the step has no say. A level ends at the least number of whole
// pages that all of its rows had computed before this step, so no query lies inside a prefix and
// the prefix pass needs no mask; every row keeps at least its own tokens behind its groups.
//
// Ownership:     a PrefixPlanner owns the tree it hands out until its next find().
// Thread safety: one thread an object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "attention/batch_view.h"

namespace tenon {

// A tree of prefix groups, in BatchView's terms.
struct PrefixTree {
  std::vector<PrefixGroup> groups;
  std::vector<int32_t> rows;
  std::vector<int32_t> nearest;  // work memory of choose_prefix_groups()

  [[nodiscard]] int depth(size_t group) const {
    int depth = 0;
    for (int32_t i = groups[group].parent; i >= 0; i = groups[static_cast<size_t>(i)].parent) {
      ++depth;
    }
    return depth;
  }
  void clear() {
    groups.clear();
    rows.clear();
  }
  // Memory for any tree over `max_rows` rows: a level has at least two rows, and rows enter the
  // list once for each root.
  void reserve(int32_t max_rows) {
    groups.reserve(static_cast<size_t>(max_rows));
    rows.reserve(static_cast<size_t>(max_rows));
    nearest.reserve(static_cast<size_t>(max_rows));
  }
};

class PrefixPlanner {
 public:
  // Takes memory; find() allocates nothing then.
  void prepare(int32_t max_rows);
  // The whole tree of the batch's decode rows. O(rows + shared pages of all rows); O(rows) when
  // nothing is shared. Requires: validate_batch_rows(batch, block_size).
  const PrefixTree& find(const BatchView& batch, int32_t block_size);

 private:
  struct Span {
    int32_t first = 0, count = 0, parent = -1, page = 0;
  };
  [[nodiscard]] int32_t shareable_pages(int32_t row) const;
  [[nodiscard]] const int32_t* table(int32_t row) const;
  void split_by_page(const Span& span);
  void extend(const Span& span);

  const BatchView* batch_ = nullptr;
  int32_t block_size_ = 1;
  PrefixTree tree_;
  std::vector<Span> pending_;
  std::vector<int32_t> limit_;                             // by row: pages it can share
  std::vector<int32_t> bucket_page_, bucket_of_, counts_;  // of split_by_page
  std::vector<int32_t> sorted_;
};

// What a level would be: `rows` rows with `queries` query tokens together, `keys` keys.
struct PrefixLevel {
  int32_t rows = 0;
  int32_t queries = 0;
  int32_t keys = 0;
  int32_t depth = 0;  // chosen levels above it
};

// Levels worth their own pass, in `chosen`: those for which pays(level) holds; what another one
// would have covered goes to its children, so that a child's level may begin further in front.
// `granularity`: levels cover multiples of this many pages from the row's beginning. Requires:
// `chosen` has memory for the tree.
void choose_prefix_groups(const BatchView& batch,
                          int32_t block_size,
                          int32_t granularity,
                          const std::function<bool(const PrefixLevel&)>& pays,
                          PrefixTree& chosen);

// Pages at the front of every row that its groups cover: pages[row], 0 for a row without group.
void prefix_pages(const PrefixTree& tree, std::span<int32_t> pages);

// The counters of a plan that reads `tree`'s levels once.
[[nodiscard]] CascadeUse cascade_use(const PrefixTree& tree, int32_t block_size);

}  // namespace tenon
