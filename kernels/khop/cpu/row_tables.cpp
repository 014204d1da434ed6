#include "khop/cpu/row_tables.hpp"

#include <algorithm>

#include "khop/core/node_table.hpp"
#include "khop/cpu/prefetch.hpp"
#include "khop/cpu/row_errors.hpp"
#include "khop/cpu/row_scan.hpp"

namespace khop::cpu {
namespace {

// Rows of more neighbours have tables...
constexpr int64_t kShortRow = 128;
// ...but for those whose places 32 bits do not hold.
constexpr int64_t kLongestRow = int64_t{1} << 31;
constexpr int64_t kLineBytes = 64;

RowSpan sound_span(const DeviceCsr& graph, int64_t row) {
  const int64_t begin = graph.indptr[row];
  const int64_t end = graph.indptr[row + 1];
  if (!graph.row_is_sound(begin, end)) throw_corrupt_row(row, begin, end, graph.num_edges);
  return {row, begin, end};
}

// Of a table with twice as many slots as entries, or more.
int bits_for(int64_t count) {
  int bits = 1;
  while ((int64_t{1} << bits) < 2 * count) ++bits;
  return bits;
}

int64_t first_slot(int64_t id, int bits) {
  return static_cast<int64_t>(slot_index(hash_id(static_cast<uint64_t>(id)), bits));
}

}  // namespace

RowSpan span_of(const DeviceCsr& graph, int64_t id) {
  const int64_t row = graph.row_of(id);
  if (row < 0 || row >= graph.num_rows) throw_no_such_row(id, graph.first_row, graph.num_rows);
  return sound_span(graph, row);
}

RowTables::RowTables(const DeviceCsr& graph) : graph_(graph) {
  int64_t num_tables = 0, num_slots = 0, num_places = 0;
  for (int64_t row = 0; row < graph.num_rows; ++row) {
    const RowSpan span = sound_span(graph, row);
    if (!has_places(span)) continue;
    ++num_tables;
    num_slots += int64_t{1} << bits_for(span.degree());
    num_places += span.degree();
  }
  table_bits_ = bits_for(num_tables);
  tables_.resize(int64_t{1} << table_bits_);
  std::fill_n(tables_.data(), tables_.size(), Table{-1, 0, 0, 0});
  slots_.resize(num_slots);
  std::fill_n(slots_.data(), num_slots, kFree);
  later_.resize(num_places);
  Table next{-1, 0, 0, 0};
  for (int64_t row = 0; row < graph.num_rows; ++row) {
    const RowSpan span = sound_span(graph, row);
    if (!has_places(span)) continue;
    next.row = row;
    next.bits = bits_for(span.degree());
    tables_[index_of(row)] = next;
    fill(next, span);
    next.first += int64_t{1} << next.bits;
    next.first_later += span.degree();
  }
}

void RowTables::fill(const Table& table, const RowSpan& row) {
  for (int64_t place = row.degree(); place-- > 0;) {
    uint32_t& slot = slots_[find(table, row, graph_.indices[row.begin + place])];
    later_[table.first_later + place] = slot;
    slot = static_cast<uint32_t>(place);
  }
}

int64_t RowTables::find(const Table& table, const RowSpan& row, int64_t id) const {
  const int64_t mask = (int64_t{1} << table.bits) - 1;
  for (int64_t slot = first_slot(id, table.bits);; slot = (slot + 1) & mask) {
    const uint32_t place = slots_[table.first + slot];
    if (place == kFree || graph_.indices[row.begin + place] == id) return table.first + slot;
  }
}

int64_t RowTables::index_of(int64_t row) const {
  const int64_t mask = tables_.size() - 1;
  int64_t index = first_slot(row, table_bits_);
  while (tables_[index].row != -1 && tables_[index].row != row) index = (index + 1) & mask;
  return index;
}

bool RowTables::holds(const RowSpan& row, int64_t id) const {
  if (has_places(row)) return slots_[find(table_of(row), row, id)] != kFree;
  const AnyInts& columns = graph_.indices;
  if (columns.width == 4) {
    return id == static_cast<int32_t>(id) &&
           row_holds(static_cast<const int32_t*>(columns.data) + row.begin, row.degree(),
                     static_cast<int32_t>(id));
  }
  return row_holds(static_cast<const int64_t*>(columns.data) + row.begin, row.degree(), id);
}

void RowTables::prefetch(const RowSpan& row, int64_t id) const {
  if (has_places(row)) {
    const Table& table = table_of(row);
    prefetch_line(&slots_[table.first + first_slot(id, table.bits)]);
    return;
  }
  const int64_t step = kLineBytes / graph_.indices.width;
  for (int64_t edge = row.begin; edge < std::min(row.end, row.begin + kShortRow); edge += step) {
    prefetch_entry(graph_.indices, edge);
  }
}

bool RowTables::has_places(const RowSpan& row) {
  return row.degree() > kShortRow && row.degree() <= kLongestRow;
}

}  // namespace khop::cpu
