#include "attention/cascade.h"

#include "base/check.h"

namespace tenon {
namespace {

size_t at(int32_t i) {
  return static_cast<size_t>(i);
}

}  // namespace

void PrefixPlanner::prepare(int32_t max_rows) {
  const size_t rows = at(std::max(max_rows, 1));
  tree_.reserve(max_rows);
  pending_.reserve(2 * rows);
  limit_.reserve(rows);
  sorted_.reserve(rows);
  bucket_of_.reserve(rows);
  counts_.reserve(rows + 1);
  size_t buckets = 1;
  while (buckets < 2 * rows) buckets *= 2;
  bucket_page_.reserve(2 * buckets);
}

int32_t PrefixPlanner::shareable_pages(int32_t row) const {
  // Whole pages of keys that were computed before this step.
  const int32_t context = batch_->seq_lens[at(row)] - batch_->query_len(row);
  return std::max(context, 0) / block_size_;
}

const int32_t* PrefixPlanner::table(int32_t row) const {
  return batch_->page_indices.data() + batch_->page_indptr[at(row)];
}

const PrefixTree& PrefixPlanner::find(const BatchView& batch, int32_t block_size) {
  batch_ = &batch;
  block_size_ = block_size;
  tree_.clear();
  pending_.clear();
  limit_.clear();
  for (int32_t row = 0; row < batch.num_decode_rows; ++row) {
    limit_.push_back(batch.query_len(row) > 0 ? shareable_pages(row) : 0);
    if (limit_.back() > 0) tree_.rows.push_back(row);
  }
  split_by_page({0, static_cast<int32_t>(tree_.rows.size()), -1, 0});
  // Depth first; a span is rows with one page in common at `page`.
  while (!pending_.empty()) {
    const Span span = pending_.back();
    pending_.pop_back();
    extend(span);
  }
  // Rows without group are no concern of the reader.
  if (tree_.groups.empty()) tree_.rows.clear();
  return tree_;
}

// Orders the span's rows by the page they have at span.page, in the order of first appearance, rows
// that end before it last, and puts every run of two and more into pending_.
void PrefixPlanner::split_by_page(const Span& span) {
  if (span.count < 2) return;
  const auto rows = std::span(tree_.rows).subspan(at(span.first), at(span.count));
  size_t buckets = 1;
  while (buckets < 2 * rows.size()) buckets *= 2;
  bucket_page_.assign(2 * buckets, -1);  // open addressing: page, number of its run
  bucket_of_.clear();
  counts_.clear();
  int32_t num_short = 0;
  for (const int32_t row : rows) {
    if (limit_[at(row)] <= span.page) {
      bucket_of_.push_back(-1);
      ++num_short;
      continue;
    }
    const int32_t page = table(row)[span.page];
    size_t slot = static_cast<uint32_t>(page) * size_t{0x9E3779B1} & (buckets - 1);
    while (bucket_page_[2 * slot] != -1 && bucket_page_[2 * slot] != page) {
      slot = (slot + 1) & (buckets - 1);
    }
    if (bucket_page_[2 * slot] == -1) {
      bucket_page_[2 * slot] = page;
      bucket_page_[2 * slot + 1] = static_cast<int32_t>(counts_.size());
      counts_.push_back(0);
    }
    bucket_of_.push_back(bucket_page_[2 * slot + 1]);
    ++counts_[at(bucket_of_.back())];
  }
  if (counts_.size() == rows.size()) return;  // nobody shares
  if (counts_.size() > 1 || num_short > 0) {
    int32_t begin = 0;
    for (int32_t& count : counts_) {
      const int32_t end = begin + count;
      count = begin;  // from here on where the run begins
      begin = end;
    }
    sorted_.resize(rows.size());
    int32_t next_short = begin;
    for (size_t i = 0; i < rows.size(); ++i) {
      int32_t& next = bucket_of_[i] < 0 ? next_short : counts_[at(bucket_of_[i])];
      sorted_[at(next++)] = rows[i];
    }
    std::copy(sorted_.begin(), sorted_.end(), rows.begin());
  } else {
    counts_[0] = span.count;
  }
  // counts_ now holds where each run ends.
  int32_t begin = 0;
  for (const int32_t end : counts_) {
    if (end - begin >= 2)
      pending_.push_back({span.first + begin, end - begin, span.parent, span.page});
    begin = end;
  }
}

// Makes the group of a span: as far as all its rows go together.
void PrefixPlanner::extend(const Span& span) {
  const auto rows = std::span(tree_.rows).subspan(at(span.first), at(span.count));
  int32_t end = limit_[at(rows[0])];
  for (const int32_t row : rows.subspan(1)) {
    end = std::min(end, limit_[at(row)]);
    end = static_cast<int32_t>(
        std::mismatch(table(rows[0]) + span.page, table(rows[0]) + end, table(row) + span.page)
            .first -
        table(rows[0]));
  }
  const auto group = static_cast<int32_t>(tree_.groups.size());
  tree_.groups.push_back({span.parent, span.first, span.count, span.page, end});
  split_by_page({span.first, span.count, group, end});
}

void choose_prefix_groups(const BatchView& batch,
                          int32_t block_size,
                          int32_t granularity,
                          const std::function<bool(const PrefixLevel&)>& pays,
                          PrefixTree& chosen) {
  chosen.clear();
  if (batch.prefix_groups.empty()) return;
  chosen.rows.assign(batch.prefix_rows.begin(), batch.prefix_rows.end());
  // Of each group of the batch: the nearest chosen one among itself and its ancestors, or -1.
  chosen.nearest.assign(batch.prefix_groups.size(), -1);
  for (size_t i = 0; i < batch.prefix_groups.size(); ++i) {
    const PrefixGroup& group = batch.prefix_groups[i];
    const int32_t parent = group.parent < 0 ? -1 : chosen.nearest[at(group.parent)];
    chosen.nearest[i] = parent;
    PrefixGroup level = group;
    level.parent = parent;
    level.begin_page = parent < 0 ? 0 : chosen.groups[at(parent)].end_page;
    level.end_page = group.end_page / granularity * granularity;
    if (level.end_page <= level.begin_page) continue;
    PrefixLevel facts{group.count, 0, (level.end_page - level.begin_page) * block_size,
                      parent < 0 ? 0 : chosen.depth(at(parent)) + 1};
    for (int32_t r = group.first; r < group.first + group.count; ++r) {
      facts.queries += batch.query_len(batch.prefix_rows[at(r)]);
    }
    if (!pays(facts)) continue;
    chosen.nearest[i] = static_cast<int32_t>(chosen.groups.size());
    chosen.groups.push_back(level);
  }
}

void prefix_pages(const PrefixTree& tree, std::span<int32_t> pages) {
  std::fill(pages.begin(), pages.end(), 0);
  for (const PrefixGroup& group : tree.groups) {  // children after parents
    for (int32_t i = group.first; i < group.first + group.count; ++i) {
      pages[at(tree.rows[at(i)])] = group.end_page;
    }
  }
}

CascadeUse cascade_use(const PrefixTree& tree, int32_t block_size) {
  CascadeUse use;
  use.groups = static_cast<int32_t>(tree.groups.size());
  for (const PrefixGroup& group : tree.groups) {
    const int64_t keys = int64_t{group.end_page - group.begin_page} * block_size;
    use.tokens_not_read += keys * (group.count - 1);
    if (group.parent < 0) use.rows += group.count;
  }
  return use;
}

}  // namespace tenon
