#include "attention/cascade.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "attention/synthetic_batch.h"

namespace tenon {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

// Decode rows of one token with these block tables; the last page is full but for `missing` keys.
SyntheticBatch batch_of(const std::vector<std::vector<int32_t>>& tables,
                        int32_t block_size,
                        int32_t missing = 0) {
  SyntheticBatch batch;
  batch.query_start_loc = {0};
  batch.page_indptr = {0};
  for (const std::vector<int32_t>& table : tables) {
    batch.page_indices.insert(batch.page_indices.end(), table.begin(), table.end());
    batch.page_indptr.push_back(static_cast<int32_t>(batch.page_indices.size()));
    batch.query_start_loc.push_back(batch.query_start_loc.back() + 1);
    batch.seq_lens.push_back(static_cast<int32_t>(table.size()) * block_size - missing);
    batch.slot_mapping.push_back(0);
  }
  fill_view(batch);
  batch.view.num_decode_rows = batch.view.num_rows();  // a row of one key, too
  return batch;
}

std::vector<int32_t> rows_of(const PrefixTree& tree, const PrefixGroup& group) {
  return {tree.rows.begin() + group.first, tree.rows.begin() + group.first + group.count};
}

class Planned {
 public:
  Planned(const SyntheticBatch& batch, int32_t block_size) {
    planner_.prepare(batch.view.num_rows());
    tree = planner_.find(batch.view, block_size);
  }
  PrefixTree tree;

 private:
  PrefixPlanner planner_;
};

// Case ATT-01 (a): three references to a block do not make three requests share it.
TEST(PrefixPlanner, AsksTheTablesOfThisBatchAlone) {
  constexpr int32_t kX = 7, kY = 8, kZ = 9;
  EXPECT_THAT(Planned(batch_of({{kX, 1}, {kY, 2}, {kZ, 3}}, 4), 4).tree.groups, IsEmpty());
}

// Case ATT-01 (d): identical prompts keep their last token, and with it the last page, to
// themselves.
TEST(PrefixPlanner, LeavesEveryRowKeysOfItsOwn) {
  // Eight keys in two full pages, all the same: the query is the last of them.
  const SyntheticBatch full = batch_of({{1, 2}, {1, 2}}, 4);
  const Planned planned(full, 4);
  ASSERT_EQ(planned.tree.groups.size(), 1U);
  EXPECT_EQ(planned.tree.groups[0].end_page, 1);
  // With a page more the query is outside.
  const Planned longer(batch_of({{1, 2, 3}, {1, 2, 4}}, 4, 3), 4);
  ASSERT_EQ(longer.tree.groups.size(), 1U);
  EXPECT_EQ(longer.tree.groups[0].end_page, 2);
}

TEST(PrefixPlanner, FindsGroupsSideBySideAndNested) {
  const SyntheticBatch batch = batch_of(
      {{1, 2, 3, 10}, {5, 6, 11}, {1, 2, 4, 12}, {13, 14}, {1, 2, 3, 15}, {5, 6, 16}, {1, 17}}, 16);
  const PrefixTree tree = Planned(batch, 16).tree;
  ASSERT_EQ(tree.groups.size(), 4U);
  int found = 0;
  for (const PrefixGroup& group : tree.groups) {
    std::vector<int32_t> rows = rows_of(tree, group);
    std::sort(rows.begin(), rows.end());
    if (rows == std::vector<int32_t>{0, 2, 4, 6}) {
      EXPECT_EQ(group.parent, -1);
      EXPECT_EQ(group.end_page, 1);
      ++found;
    } else if (rows == std::vector<int32_t>{0, 2, 4}) {
      EXPECT_EQ(group.begin_page, 1);
      EXPECT_EQ(group.end_page, 2);
      ++found;
    } else if (rows == std::vector<int32_t>{0, 4}) {
      EXPECT_EQ(group.begin_page, 2);
      EXPECT_EQ(group.end_page, 3);
      ++found;
    } else if (rows == std::vector<int32_t>{1, 5}) {
      EXPECT_EQ(group.parent, -1);
      EXPECT_EQ(group.end_page, 2);
      ++found;
    }
  }
  EXPECT_EQ(found, 4);
}

// Against all pairs: two rows are together exactly as far as their tables agree and both have
// computed keys.
TEST(PrefixPlanner, AgreesWithEveryPairOfRandomTables) {
  std::mt19937 random(5);
  const auto below = [&](uint32_t limit) { return static_cast<int32_t>(random() % limit); };
  for (int round = 0; round < 300; ++round) {
    const int32_t block_size = 1 + below(5);
    std::vector<std::vector<int32_t>> tables;
    int32_t fresh = 1000;
    const int32_t rows = 1 + below(14);
    for (int32_t row = 0; row < rows; ++row) {
      std::vector<int32_t> table;
      if (row > 0 && below(3) != 0) {  // a copy of another one's beginning
        const auto& other = tables[static_cast<size_t>(below(static_cast<uint32_t>(row)))];
        table.assign(other.begin(), other.begin() + below(static_cast<uint32_t>(other.size()) + 1));
      }
      const int32_t more = 1 + below(4);
      for (int32_t i = 0; i < more; ++i) table.push_back(fresh++);
      tables.push_back(std::move(table));
    }
    const SyntheticBatch batch =
        batch_of(tables, block_size, below(static_cast<uint32_t>(block_size)));
    const PrefixTree tree = Planned(batch, block_size).tree;
    const auto shareable = [&](size_t row) { return (batch.seq_lens[row] - 1) / block_size; };
    std::vector<std::vector<int32_t>> together(tables.size(),
                                               std::vector<int32_t>(tables.size(), 0));
    for (size_t g = 0; g < tree.groups.size(); ++g) {
      const PrefixGroup& group = tree.groups[g];
      ASSERT_GE(group.count, 2);
      ASSERT_LT(group.parent, static_cast<int32_t>(g));
      ASSERT_EQ(group.begin_page,
                group.parent < 0 ? 0 : tree.groups[static_cast<size_t>(group.parent)].end_page);
      ASSERT_LT(group.begin_page, group.end_page);
      for (const int32_t a : rows_of(tree, group)) {
        for (const int32_t b : rows_of(tree, group)) {
          int32_t& end = together[static_cast<size_t>(a)][static_cast<size_t>(b)];
          ASSERT_EQ(end, group.begin_page);  // levels of a pair follow each other without a gap
          end = group.end_page;
        }
      }
    }
    for (size_t a = 0; a < tables.size(); ++a) {
      for (size_t b = 0; b < tables.size(); ++b) {
        if (a == b) continue;
        const auto common = static_cast<int32_t>(
            std::mismatch(tables[a].begin(), tables[a].end(), tables[b].begin(), tables[b].end())
                .first -
            tables[a].begin());
        ASSERT_EQ(together[a][b], std::min({common, shareable(a), shareable(b)}));
      }
    }
  }
}

TEST(PrefixPlanner, LooksAtDecodeRowsOnly) {
  const auto rows = parse_batch_spec("3q1s40p32_2q5s40p32");
  const SyntheticBatch batch = make_batch(*rows, 16, blocks_needed(*rows, 16), 1);
  const PrefixTree tree = Planned(batch, 16).tree;
  ASSERT_EQ(tree.groups.size(), 1U);
  EXPECT_THAT(rows_of(tree, tree.groups[0]), UnorderedElementsAre(0, 1, 2));
}

TEST(ChoosePrefixGroups, WhatALevelDoesNotTakeGoesToItsChildren) {
  const auto rows = parse_batch_spec("2q1s200p16+64_2q1s200p16+96_q1s300");
  SyntheticBatch batch = make_batch(*rows, 16, blocks_needed(*rows, 16), 1);
  share_prefixes(batch, 16);
  ASSERT_EQ(batch.view.prefix_groups.size(), 3U);
  PrefixTree chosen;
  chosen.reserve(8);
  choose_prefix_groups(
      batch.view, 16, 1, [](const PrefixLevel& level) { return level.rows == 2; }, chosen);
  ASSERT_EQ(chosen.groups.size(), 2U);
  for (const PrefixGroup& group : chosen.groups) {
    EXPECT_EQ(group.parent, -1);
    EXPECT_EQ(group.begin_page, 0);
  }
  std::vector<int32_t> pages(5);
  prefix_pages(chosen, pages);
  EXPECT_THAT(pages, ElementsAre(5, 5, 7, 7, 0));
  EXPECT_EQ(cascade_use(chosen, 16).tokens_not_read, 5 * 16 + 7 * 16);
  EXPECT_EQ(cascade_use(chosen, 16).rows, 4);
  // Whole multiples of four pages: the root is too short, the children end earlier.
  choose_prefix_groups(
      batch.view, 16, 4, [](const PrefixLevel&) { return true; }, chosen);
  prefix_pages(chosen, pages);
  EXPECT_THAT(pages, ElementsAre(4, 4, 4, 4, 0));
}

}  // namespace
}  // namespace tenon
