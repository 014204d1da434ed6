#include "khop/cpu/induce.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace khop::cpu {
namespace {

// Columns looked up at a time: their slots are on the way from memory together.
constexpr int64_t kChunk = 256;

// A key that no node has: what a damaged file may name.
constexpr int64_t kNoMember = -1;

}  // namespace

template <class Ptr, class Col>
void induce_rows(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                 const NodeSet& members, const PairSet* excluded, bool with_edges,
                 InducedRows& out) {
  const RowFinder<Ptr, Col> finder(graph);
  Buffer<int64_t> keys;
  for (int64_t i = 0; i < num_rows; ++i) {
    const Row row = finder.find(rows, i);
    const PairSet::Span hidden =
        excluded == nullptr ? PairSet::Span{nullptr, nullptr} : excluded->of(row.id);
    const int64_t before = out.sources.size();
    for (int64_t first = row.begin; first < row.end; first += kChunk) {
      const int64_t last = std::min(first + kChunk, row.end);
      keys.clear();
      for (int64_t e = first; e < last; ++e) {
        const auto id = static_cast<int64_t>(graph.indices[e]);
        keys.push_back(members.holds(id) ? members.key(row.tree, id) : kNoMember);
      }
      members.prefetch(keys.data(), keys.size());
      for (int64_t e = first; e < last; ++e) {
        const int32_t number = members.find(keys[e - first]);
        if (number < 0) continue;
        if (!hidden.empty() && hidden.contains(static_cast<int64_t>(graph.indices[e]))) continue;
        out.sources.push_back(number);
        if (with_edges) out.edges.push_back(graph.first_edge + e);
      }
    }
    const int64_t count = out.sources.size() - before;
    if (count > std::numeric_limits<int32_t>::max()) {
      throw std::length_error("a row contributes more than 2^31 - 1 edges to one batch");
    }
    out.counts.push_back(static_cast<int32_t>(count));
  }
}

#define KHOP_INSTANTIATE(Ptr, Col)                                                      \
  template void induce_rows<Ptr, Col>(const CsrView<Ptr, Col>&, const RowSet&, int64_t, \
                                      const NodeSet&, const PairSet*, bool, InducedRows&);
KHOP_INSTANTIATE(int32_t, int32_t)
KHOP_INSTANTIATE(int32_t, int64_t)
KHOP_INSTANTIATE(int64_t, int32_t)
KHOP_INSTANTIATE(int64_t, int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
