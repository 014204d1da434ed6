#include "khop/cpu/sample.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "khop/cpu/edge_pipeline.hpp"
#include "khop/cpu/part_rows.hpp"
#include "khop/cpu/pick_rows.hpp"
#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {
namespace {

// Rows whose pointers are prefetched ahead of the draw.
constexpr int64_t kRowsAhead = 64;

// Ids, trees and times of a block of a frontier: numbering may grow the node list that the frontier
// lies in, so they are copied.
template <int64_t kRows>
class RowBlock {
 public:
  RowSet read(const Frontier& frontier, int64_t first, int64_t last) {
    const int64_t* keys = frontier.nodes.keys() + frontier.begin;
    if (!frontier.disjoint) {
      std::copy(keys + first, keys + last, ids_.begin());
      return {ids_.data(), nullptr, nullptr};
    }
    for (int64_t i = first; i < last; ++i) {
      const auto place = static_cast<std::size_t>(i - first);
      const int64_t tree = frontier.nodes.tree_of(keys[i]);
      ids_[place] = frontier.nodes.id_of(keys[i]);
      trees_[place] = static_cast<int32_t>(tree);
      if (frontier.tree_times != nullptr) times_[place] = frontier.tree_times[tree];
    }
    return {ids_.data(), trees_.data(), frontier.tree_times == nullptr ? nullptr : times_.data()};
  }

 private:
  std::array<int64_t, kRows> ids_;
  std::array<int32_t, kRows> trees_;
  std::array<int64_t, kRows> times_;
};

// Draws all rows of a frontier, block by block, and calls `drawn` after each.
template <int64_t kRows, class Drawer, class Drawn>
void draw_frontier(Drawer& drawer, const Frontier& frontier, int32_t* counts,
                   Buffer<int64_t>& positions, Drawn&& drawn) {
  constexpr int64_t ahead = std::max(kRowsAhead, kRows);
  RowBlock<kRows> rows;
  std::array<int64_t, kRows> coming{};
  const int64_t num_rows = frontier.end - frontier.begin;
  // The node list may grow, and move, with each block.
  const auto prefetch = [&](int64_t first) {
    const int64_t last = std::min(first + kRows, num_rows);
    const int64_t* keys = frontier.nodes.keys() + frontier.begin;
    for (int64_t i = first; i < last; ++i) {
      coming[static_cast<std::size_t>(i - first)] = frontier.nodes.id_of(keys[i]);
    }
    drawer.prefetch_rows(coming.data(), std::max<int64_t>(last - first, 0));
  };
  for (int64_t first = 0; first < ahead; first += kRows) prefetch(first);
  for (int64_t first = 0; first < num_rows; first += kRows) {
    prefetch(first + ahead);
    const int64_t last = std::min(first + kRows, num_rows);
    const RowSet block = rows.read(frontier, first, last);
    drawer.draw(block, last - first, counts + first, positions);
    drawn(block, last - first, counts + first);
  }
}

// Draws a frontier's neighbours, numbers them, and appends the edges.
template <int64_t kRows, class Drawer, class Columns>
void draw_and_number(Drawer& drawer, const Columns& columns, const Frontier& frontier,
                     bool with_edge, NodeSet& sources, EdgeList& out) {
  AppendedEdges appended(out);
  int32_t* const counts = out.counts.extend(frontier.end - frontier.begin);
  EdgeSink replace_root{out.sources, with_edge ? &out.edges : nullptr};
  const auto run = [&](auto pipeline) {
    draw_frontier<kRows>(drawer, frontier, counts, pipeline.positions(),
                         [&](const RowSet& rows, int64_t num_rows, const int32_t* drawn) {
                           pipeline.advance(rows, num_rows, drawn);
                         });
    pipeline.finish();
  };
  if (frontier.disjoint) {
    sources.narrow() ? run(EdgePipeline<Columns, true, true>(columns, sources, replace_root))
                     : run(EdgePipeline<Columns, true, false>(columns, sources, replace_root));
  } else {
    sources.narrow() ? run(EdgePipeline<Columns, false, true>(columns, sources, replace_root))
                     : run(EdgePipeline<Columns, false, false>(columns, sources, replace_root));
  }
  appended.finish(frontier);
}

}  // namespace

template <class Ptr, class Col>
void sample_rows(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                 const HopSpec& spec, DrawnRows<Col>& out) {
  RowDrawer<Ptr, Col> drawer(graph, spec);
  Buffer<int64_t>& positions = out.edges;
  out.counts.clear();
  out.neighbors.clear();
  positions.clear();
  out.counts.resize(num_rows);
  int64_t read = 0;
  const auto read_columns = [&](int64_t end) {
    for (; read < end; ++read) out.neighbors[read] = graph.indices[positions[read]];
  };
  drawer.prefetch_rows(rows.ids, std::min(kRowsAhead, num_rows));
  for (int64_t first = 0; first < num_rows; first += kBlockRows) {
    check_stop(spec.stop);
    const int64_t coming = std::min(first + kRowsAhead, num_rows);
    drawer.prefetch_rows(rows.ids + coming, std::min(kBlockRows, num_rows - coming));
    const int64_t before = positions.size();
    drawer.draw(rows.from(first), std::min(kBlockRows, num_rows - first), out.counts.data() + first,
                positions);
    for (int64_t j = before; j < positions.size(); ++j) {
      prefetch_scattered_line(&graph.indices[positions[j]]);
    }
    out.neighbors.resize(positions.size());
    read_columns(before);  // those of the block before
  }
  read_columns(positions.size());
  if (!spec.with_edge) positions.clear();
  for (int64_t j = 0; j < positions.size(); ++j) positions[j] += graph.first_edge;
}

template <class Ptr, class Col>
void pick_positions(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                    const HopSpec& spec, DrawnRows<Col>& out) {
  if (spec.method != HopMethod::kNeighbor || spec.weighted || spec.excluded != nullptr ||
      spec.last || (graph.times != nullptr && rows.times != nullptr)) {
    throw std::invalid_argument("these draws read more of a graph than its row pointers");
  }
  RowDrawer<Ptr, Col> drawer(graph, spec);
  out.counts.resize(num_rows);
  for (int64_t first = 0; first < num_rows; first += kBlockRows) {
    check_stop(spec.stop);
    const int64_t coming = std::min(first + kRowsAhead, num_rows);
    drawer.prefetch_rows(rows.ids + coming, std::min(kBlockRows, num_rows - coming));
    drawer.draw(rows.from(first), std::min(kBlockRows, num_rows - first), out.counts.data() + first,
                out.edges);
  }
}

template <class Ptr, class Col>
void sample_hop(const CsrView<Ptr, Col>& graph, const Frontier& frontier, const HopSpec& spec,
                NodeSet& sources, EdgeList& out) {
  RowDrawer<Ptr, Col> drawer(graph, spec);
  const Columns<Col> columns{graph.indices, graph.first_edge};
  draw_and_number<kBlockRows>(drawer, columns, frontier, spec.with_edge, sources, out);
}

template <class Ptr, class Col>
void sample_hop(const std::vector<CsrView<Ptr, Col>>& parts, const Frontier& frontier,
                const HopSpec& spec, NodeSet& sources, EdgeList& out) {
  PartsDrawer<Ptr, Col> drawer(parts, spec);
  const PartColumns<Ptr, Col> columns{parts.data()};
  draw_and_number<kPartRows>(drawer, columns, frontier, spec.with_edge, sources, out);
}

#define KHOP_INSTANTIATE(Ptr, Col)                                                              \
  template void sample_rows<Ptr, Col>(const CsrView<Ptr, Col>&, const RowSet&, int64_t,         \
                                      const HopSpec&, DrawnRows<Col>&);                         \
  template void pick_positions<Ptr, Col>(const CsrView<Ptr, Col>&, const RowSet&, int64_t,      \
                                         const HopSpec&, DrawnRows<Col>&);                      \
  template void sample_hop<Ptr, Col>(const CsrView<Ptr, Col>&, const Frontier&, const HopSpec&, \
                                     NodeSet&, EdgeList&);                                      \
  template void sample_hop<Ptr, Col>(const std::vector<CsrView<Ptr, Col>>&, const Frontier&,    \
                                     const HopSpec&, NodeSet&, EdgeList&);
KHOP_INSTANTIATE(int32_t, int32_t)
KHOP_INSTANTIATE(int32_t, int64_t)
KHOP_INSTANTIATE(int64_t, int32_t)
KHOP_INSTANTIATE(int64_t, int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
