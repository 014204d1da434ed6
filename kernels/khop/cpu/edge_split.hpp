// Split of an edge list by blocks of rows, piece by piece: the first step of a counting sort of
// edges that need not fit in memory, or in a cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {

// Ids of one end of the edges, seen through the map of new ids.
template <class Id, class Map>
struct MappedIds {
  const Id* ids;
  const Map* map;
  int64_t num_ids;

  bool is_valid(int64_t e) const {
    const auto id = static_cast<int64_t>(ids[e]);
    return 0 <= id && id < num_ids;
  }
  int64_t operator[](int64_t e) const { return static_cast<int64_t>(map[ids[e]]); }
  void prefetch(int64_t e) const {
    if (is_valid(e)) prefetch_line(&map[ids[e]]);
  }
};

// Finds the block of a row; block b has the rows [bounds[b], bounds[b + 1]).
class BlockFinder {
 public:
  BlockFinder(const int64_t* bounds, int64_t num_blocks) : bounds_(bounds) {
    const int64_t num_rows = bounds[num_blocks];
    while ((num_rows >> shift_) > kMostGroups) ++shift_;
    first_.resize(static_cast<std::size_t>((num_rows >> shift_) + 1));
    int64_t block = 0;
    for (std::size_t group = 0; group < first_.size(); ++group) {
      const int64_t row = static_cast<int64_t>(group) << shift_;
      while (block < num_blocks - 1 && row >= bounds[block + 1]) ++block;
      first_[group] = static_cast<int32_t>(block);
    }
  }

  int64_t first_row(int64_t block) const { return bounds_[block]; }

  int64_t find(int64_t row) const {
    int64_t block = first_[static_cast<std::size_t>(row >> shift_)];
    while (row >= bounds_[block + 1]) ++block;
    return block;
  }

 private:
  static constexpr int64_t kMostGroups = int64_t{1} << 14;
  const int64_t* bounds_;
  int shift_ = 0;
  std::vector<int32_t> first_;
};

// Misses of maps and counters are hidden by reading this many edges ahead.
constexpr int64_t kEdgesAhead = 32;

// Counts the edges of each row. Returns -1, or the first edge that has an id out of range.
template <class Keys, class Neighbors, class Count>
int64_t count_edges(const Keys& keys, const Neighbors& neighbors, int64_t num_edges,
                    Count* counts) {
  for (int64_t e = 0; e < num_edges; ++e) {
    if (e + kEdgesAhead < num_edges) keys.prefetch(e + kEdgesAhead);
    constexpr int64_t kHalf = kEdgesAhead / 2;
    if (e + kHalf < num_edges && keys.is_valid(e + kHalf)) {
      prefetch_line_to_write(&counts[keys[e + kHalf]]);
    }
    if (!keys.is_valid(e) || !neighbors.is_valid(e)) return e;
    ++counts[keys[e]];
  }
  return -1;
}

// Looks up the row of each edge and counts the edges of each block. Returns -1, or the first edge
// that has an id out of range.
template <class Keys, class Neighbors, class Row>
int64_t find_rows(const Keys& keys, const Neighbors& neighbors, int64_t num_edges,
                  const BlockFinder& blocks, Row* rows, int64_t* counts) {
  for (int64_t e = 0; e < num_edges; ++e) {
    if (e + kEdgesAhead < num_edges) keys.prefetch(e + kEdgesAhead);
    if (!keys.is_valid(e) || !neighbors.is_valid(e)) return e;
    const int64_t row = keys[e];
    rows[e] = static_cast<Row>(row);
    ++counts[blocks.find(row)];
  }
  return -1;
}

// Orders edges by block, stably: row within the block, new id of the neighbour, number of the edge.
// `rows` are those of `find_rows`, `places` the first place of each block; they are used up.
template <class Neighbors, class Row, class Col, class EdgeId>
void split_edges(const Row* rows, const Neighbors& neighbors, int64_t num_edges, int64_t first_edge,
                 const BlockFinder& blocks, int64_t* places, Col* out_rows, Col* out_columns,
                 EdgeId* out_ids) {
  for (int64_t e = 0; e < num_edges; ++e) {
    if (e + kEdgesAhead < num_edges) neighbors.prefetch(e + kEdgesAhead);
    const auto row = static_cast<int64_t>(rows[e]);
    const int64_t block = blocks.find(row);
    const int64_t place = places[block]++;
    out_rows[place] = static_cast<Col>(row - blocks.first_row(block));
    out_columns[place] = static_cast<Col>(neighbors[e]);
    out_ids[place] = static_cast<EdgeId>(first_edge + e);
  }
}

// Numbers nodes by their owners, and within an owner in their order: a counting sort. `places` are
// the first new id of each owner, and are used up.
template <class Id>
void number_by_owner(const int32_t* owners, int64_t num_nodes, int64_t* places, Id* old_of_new,
                     Id* new_of_old) {
  for (int64_t v = 0; v < num_nodes; ++v) {
    const int64_t place = places[owners[v]]++;
    old_of_new[place] = static_cast<Id>(v);
    new_of_old[v] = static_cast<Id>(place);
  }
}

}  // namespace khop::cpu
