// Questions about edges of one graph, many of them: whether a node has a neighbour, and where.
//
// Rows are in the order of edges, not of neighbours. A short row is scanned. A long one has a table
// that maps its neighbours to their places in it: a question reads one cache line, and the
// neighbour's own if the slot is taken. Tables take 12 to 20 bytes a neighbour of long rows, and
// are made once, in linear time.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {

// A row of a graph: its place and its edges.
struct RowSpan {
  int64_t row;
  int64_t begin;
  int64_t end;

  int64_t degree() const { return end - begin; }
};

inline void prefetch_entry(const AnyInts& values, int64_t i) {
  prefetch_line(static_cast<const char*>(values.data) + i * values.width);
}

// The row of a node. Throws std::out_of_range if the graph has none for it, std::runtime_error for
// corrupt row pointers.
RowSpan span_of(const DeviceCsr& graph, int64_t id);

class RowTables {
 public:
  // `graph` reads the CPU's memory, which must outlive this. Throws std::runtime_error for corrupt
  // row pointers.
  explicit RowTables(const DeviceCsr& graph);

  // Whether a row of the graph has a neighbour.
  bool holds(const RowSpan& row, int64_t id) const;

  // Fetches ahead what `holds` reads first.
  void prefetch(const RowSpan& row, int64_t id) const;

  // Whether `each_place` may be asked of a row: it has a table.
  static bool has_places(const RowSpan& row);

  // Calls f(place) for each place in a row, from 0, where a neighbour is.
  template <class F>
  void each_place(const RowSpan& row, int64_t id, F&& f) const {
    const Table& table = table_of(row);
    uint32_t place = slots_[find(table, row, id)];
    for (; place != kFree; place = later_[table.first_later + place]) f(int64_t{place});
  }

 private:
  // Table of a long row: 2^bits first places of neighbours from slots_[first], and, from
  // later_[first_later], for each place the next one of the same neighbour; kFree where there is
  // none. `row` is -1 in a free entry of tables_.
  struct Table {
    int64_t row;
    int64_t first;
    int64_t first_later;
    int bits;
  };

  void fill(const Table& table, const RowSpan& row);
  // The slot of a neighbour, or the free one where it would be.
  int64_t find(const Table& table, const RowSpan& row, int64_t id) const;
  int64_t index_of(int64_t row) const;
  const Table& table_of(const RowSpan& row) const { return tables_[index_of(row.row)]; }

  static constexpr uint32_t kFree = 0xFFFFFFFFu;

  DeviceCsr graph_;
  Buffer<Table> tables_;  // open addressing by row
  int table_bits_ = 1;
  Buffer<uint32_t> slots_;
  Buffer<uint32_t> later_;
};

}  // namespace khop::cpu
