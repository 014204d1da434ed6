#include "edges.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace khop {
namespace {

// Row pointers are fetched this many look-ups ahead, the first columns half as many.
constexpr int64_t kAhead = 16;

// Entries compared before the next look at the result: a branch an entry would forbid vectors.
constexpr int64_t kBlock = 64;

template <class Col>
bool holds(const Col* columns, int64_t degree, Col wanted) {
  for (int64_t begin = 0; begin < degree; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, degree);
    unsigned found = 0;
    for (int64_t j = begin; j < end; ++j) found |= static_cast<unsigned>(columns[j] == wanted);
    if (found != 0) return true;
  }
  return false;
}

template <class Ptr, class Col>
void prefetch(const CsrView<Ptr, Col>& graph, const int64_t* rows, int64_t i, int64_t count) {
  const auto row_of = [&](int64_t j) {
    const int64_t row = j < count ? rows[j] - graph.first_row : -1;
    return row < graph.num_rows ? row : -1;
  };
  if (const int64_t row = row_of(i + kAhead); row >= 0) __builtin_prefetch(&graph.indptr[row]);
  if (const int64_t row = row_of(i + kAhead / 2); row >= 0) {
    __builtin_prefetch(&graph.indices[static_cast<int64_t>(graph.indptr[row])]);
  }
}

}  // namespace

template <class Ptr, class Col>
void has_edges(const CsrView<Ptr, Col>& graph, const int64_t* rows, const int64_t* neighbors,
               int64_t count, bool* exists) {
  for (int64_t i = 0; i < count; ++i) {
    prefetch(graph, rows, i, count);
    const int64_t row = rows[i] - graph.first_row;
    if (row < 0 || row >= graph.num_rows) {
      throw std::out_of_range("node " + std::to_string(rows[i]) +
                              " is not one of the graph's rows " + std::to_string(graph.first_row) +
                              " to " + std::to_string(graph.first_row + graph.num_rows - 1));
    }
    const int64_t begin = static_cast<int64_t>(graph.indptr[row]);
    const int64_t end = static_cast<int64_t>(graph.indptr[row + 1]);
    if (!graph.row_is_sound(begin, end)) {
      throw std::runtime_error("row pointers are corrupt: row " + std::to_string(row) +
                               " spans edges " + std::to_string(begin) + " to " +
                               std::to_string(end) + " of " + std::to_string(graph.num_edges));
    }
    const bool fits = neighbors[i] >= 0 && neighbors[i] <= std::numeric_limits<Col>::max();
    exists[i] = fits && holds(graph.indices + begin, end - begin, static_cast<Col>(neighbors[i]));
  }
}

#define KHOP_INSTANTIATE(Ptr, Col)                                                            \
  template void has_edges<Ptr, Col>(const CsrView<Ptr, Col>&, const int64_t*, const int64_t*, \
                                    int64_t, bool*);
KHOP_INSTANTIATE(int32_t, int32_t)
KHOP_INSTANTIATE(int32_t, int64_t)
KHOP_INSTANTIATE(int64_t, int32_t)
KHOP_INSTANTIATE(int64_t, int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop
