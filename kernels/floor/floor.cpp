#include "floor/floor.hpp"

#include <cstring>
#include <stdexcept>

#include "khop/core/node_table.hpp"
#include "khop/cpu/copy_prefetch.hpp"
#include "khop/cpu/gather.hpp"

namespace khop::floor {
namespace {

constexpr int64_t kRowsAhead = 64;
constexpr int64_t kEdgesAhead = 64;

template <class Ptr, class Col>
void check(const FloorRows<Ptr, Col>& graph, const DrawnBatch& batch) {
  int64_t total = 0;
  for (int64_t i = 0; i < batch.num_rows; ++i) {
    if (batch.rows[i] < 0 || batch.rows[i] >= graph.num_rows || batch.counts[i] < 0) {
      throw std::out_of_range("the batch holds a row that the graph has not");
    }
    total += batch.counts[i];
  }
  if (total != batch.num_edges) {
    throw std::out_of_range("the batch's counts do not add up to its edges");
  }
  for (int64_t j = 0; j < batch.num_edges; ++j) {
    if (batch.edges[j] < 0 || batch.edges[j] >= graph.num_edges) {
      throw std::out_of_range("the batch holds an edge that the graph has not");
    }
  }
}

}  // namespace

template <class Ptr, class Col>
uint64_t SampleFloor::touch(const FloorRows<Ptr, Col>& graph, const DrawnBatch& batch) {
  check(graph, batch);
  nodes_.resize(batch.num_nodes);  // first: it refuses what cannot be doubled
  int bits = 10;
  while ((int64_t{1} << bits) < 2 * batch.num_nodes) ++bits;
  table_.resize(int64_t{1} << bits);
  row_.resize(batch.num_edges);
  col_.resize(batch.num_edges);
  uint64_t* const table = table_.data();
  int64_t* const row = row_.data();
  int64_t* const col = col_.data();
  const auto slot_of = [&](int64_t node) -> uint64_t& {
    return table[slot_index(hash_id(static_cast<uint64_t>(node)), bits)];
  };
  uint64_t sum = 0;
  int64_t asked = 0, read = 0, touched = 0;
  const auto read_to = [&](int64_t end) {
    for (; read < end; ++read) {
      row[read] = static_cast<int64_t>(graph.indices[batch.edges[read]]);
      cpu::prefetch_scattered_line_to_write(&slot_of(row[read]));
    }
  };
  const auto touch_to = [&](int64_t end) {
    for (; touched < end; ++touched) {
      uint64_t& slot = slot_of(row[touched]);
      sum += slot;
      slot = static_cast<uint64_t>(touched);
    }
  };
  const auto ask_for_row = [&](int64_t i) {
    if (i >= batch.num_rows) return;
    cpu::prefetch_scattered_line(&graph.indptr[batch.rows[i]]);
    cpu::prefetch_scattered_line(&graph.indptr[batch.rows[i] + 1]);
  };
  for (int64_t i = 0; i < kRowsAhead; ++i) ask_for_row(i);
  for (int64_t i = 0; i < batch.num_rows; ++i) {
    ask_for_row(i + kRowsAhead);
    sum += static_cast<uint64_t>(graph.indptr[batch.rows[i]]) +
           static_cast<uint64_t>(graph.indptr[batch.rows[i] + 1]);
    for (const int64_t end = asked + batch.counts[i]; asked < end; ++asked) {
      cpu::prefetch_scattered_line(&graph.indices[batch.edges[asked]]);
      col[asked] = i;
      if (asked < kEdgesAhead) continue;
      read_to(asked - kEdgesAhead);
      touch_to(read - kEdgesAhead);
    }
  }
  read_to(batch.num_edges);
  touch_to(batch.num_edges);
  for (int64_t i = 0; i < batch.num_nodes; ++i) nodes_[i] = i;
  return sum;
}

template <class Index>
uint64_t touch_rows(const cpu::RowTable& table, const Index* rows, int64_t count, char* out) {
  const int64_t width = table.row_bytes;
  const cpu::CopyPrefetch prefetch(width);
  const int64_t ahead = prefetch.ahead();
  for (int64_t i = 0; i < count; ++i) {
    const auto row = static_cast<int64_t>(rows[i]);
    if (row < 0 || row >= table.num_rows) throw std::out_of_range("there is no such row");
  }
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count) {
      prefetch.operator()<false>(table.data + static_cast<int64_t>(rows[i + ahead]) * width);
    }
    const char* const from = table.data + static_cast<int64_t>(rows[i]) * width;
    for (int64_t at = 0; at < width; at += cpu::kLine) sum += static_cast<unsigned char>(from[at]);
  }
  for (int64_t at = 0; at < count * width; at += cpu::kLine) out[at] = static_cast<char>(sum);
  return sum;
}

#define KHOP_INSTANTIATE(Ptr, Col) \
  template uint64_t SampleFloor::touch<Ptr, Col>(const FloorRows<Ptr, Col>&, const DrawnBatch&);
KHOP_INSTANTIATE(int32_t, int32_t)
KHOP_INSTANTIATE(int32_t, int64_t)
KHOP_INSTANTIATE(int64_t, int32_t)
KHOP_INSTANTIATE(int64_t, int64_t)
#undef KHOP_INSTANTIATE
template uint64_t touch_rows<int32_t>(const cpu::RowTable&, const int32_t*, int64_t, char*);
template uint64_t touch_rows<int64_t>(const cpu::RowTable&, const int64_t*, int64_t, char*);

}  // namespace khop::floor
