#include "khop/cpu/sample.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "khop/cpu/edge_pipeline.hpp"
#include "khop/cpu/pick_rows.hpp"

namespace khop {
namespace {

// Rows whose pointers are asked for ahead of the draw.
constexpr int64_t kRowsAhead = 64;

// Ids, trees and times of a block of a frontier: numbering may grow the node list that the frontier
// lies in, so they are copied.
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
  std::array<int64_t, kBlockRows> ids_;
  std::array<int32_t, kBlockRows> trees_;
  std::array<int64_t, kBlockRows> times_;
};

// What a hop appends to an edge list; undone if the hop fails, so that counts and hops agree.
class Appended {
 public:
  explicit Appended(EdgeList& list)
      : list_(list),
        counts_(list.counts.size()),
        sources_(list.sources.size()),
        edges_(list.edges.size()) {}
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;
  ~Appended() {
    if (done_) return;
    list_.counts.resize(counts_);
    list_.sources.resize(sources_);
    list_.edges.resize(edges_);
  }

  void finish(const Frontier& frontier) {
    list_.hops.push_back(
        {frontier.begin, frontier.end - frontier.begin, list_.sources.size() - sources_});
    done_ = true;
  }

 private:
  EdgeList& list_;
  int64_t counts_;
  int64_t sources_;
  int64_t edges_;
  bool done_ = false;
};

// Draws all rows of a frontier, block by block, and calls `drawn` after each.
template <class Ptr, class Col, class Drawn>
void draw_frontier(RowDrawer<Ptr, Col>& drawer, const Frontier& frontier, int32_t* counts,
                   Buffer<int64_t>& positions, Drawn&& drawn) {
  RowBlock rows;
  std::array<int64_t, kBlockRows> coming;
  const int64_t num_rows = frontier.end - frontier.begin;
  // The node list may grow, and move, with each block.
  const auto prefetch = [&](int64_t first) {
    const int64_t last = std::min(first + kBlockRows, num_rows);
    const int64_t* keys = frontier.nodes.keys() + frontier.begin;
    for (int64_t i = first; i < last; ++i) {
      coming[static_cast<std::size_t>(i - first)] = frontier.nodes.id_of(keys[i]);
    }
    drawer.prefetch_rows(coming.data(), std::max<int64_t>(last - first, 0));
  };
  for (int64_t first = 0; first < kRowsAhead; first += kBlockRows) prefetch(first);
  for (int64_t first = 0; first < num_rows; first += kBlockRows) {
    prefetch(first + kRowsAhead);
    const int64_t last = std::min(first + kBlockRows, num_rows);
    const RowSet block = rows.read(frontier, first, last);
    drawer.draw(block, last - first, counts + first, positions);
    drawn(block, last - first, counts + first);
  }
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
    const int64_t coming = std::min(first + kRowsAhead, num_rows);
    drawer.prefetch_rows(rows.ids + coming, std::min(kBlockRows, num_rows - coming));
    const int64_t before = positions.size();
    drawer.draw(rows.from(first), std::min(kBlockRows, num_rows - first), out.counts.data() + first,
                positions);
    for (int64_t j = before; j < positions.size(); ++j) {
      __builtin_prefetch(&graph.indices[positions[j]]);
    }
    out.neighbors.resize(positions.size());
    read_columns(before);  // those of the block before
  }
  read_columns(positions.size());
  if (!spec.with_edge) positions.clear();
  for (int64_t j = 0; j < positions.size(); ++j) positions[j] += graph.first_edge;
}

template <class Ptr, class Col>
void sample_hop(const CsrView<Ptr, Col>& graph, const Frontier& frontier, const HopSpec& spec,
                NodeSet& sources, EdgeList& out) {
  RowDrawer<Ptr, Col> drawer(graph, spec);
  Appended appended(out);
  int32_t* const counts = out.counts.extend(frontier.end - frontier.begin);
  EdgeSink sink{out.sources, spec.with_edge ? &out.edges : nullptr, graph.first_edge};
  const auto run = [&](auto stream) {
    draw_frontier(drawer, frontier, counts, stream.positions(),
                  [&](const RowSet& rows, int64_t num_rows, const int32_t* drawn) {
                    stream.advance(rows, num_rows, drawn);
                  });
    stream.finish();
  };
  if (frontier.disjoint) {
    sources.narrow() ? run(EdgeStream<Col, true, true>(graph.indices, sources, sink))
                     : run(EdgeStream<Col, true, false>(graph.indices, sources, sink));
  } else {
    sources.narrow() ? run(EdgeStream<Col, false, true>(graph.indices, sources, sink))
                     : run(EdgeStream<Col, false, false>(graph.indices, sources, sink));
  }
  appended.finish(frontier);
}

// Keys of the neighbours of the i-th row of a frontier.
template <class Col>
void append_keys(const Frontier& frontier, int64_t i, const Col* neighbors, int64_t count,
                 const NodeSet& sources, Buffer<int64_t>& keys) {
  int64_t* key = keys.extend(count);
  if (!frontier.disjoint) {
    std::copy_n(neighbors, count, key);
    return;
  }
  sources.check_ids(neighbors, count);
  const int64_t tree = frontier.nodes.tree_of(frontier.nodes.keys()[frontier.begin + i]);
  for (int64_t j = 0; j < count; ++j) key[j] = sources.key(tree, neighbors[j]);
}

template <class Col>
void merge_hop(const int32_t* owners, const std::vector<OwnerReply<Col>>& replies,
               const Frontier& frontier, bool with_edges, NodeSet& sources, EdgeList& out) {
  Appended appended(out);
  const int64_t num_rows = frontier.end - frontier.begin;
  struct Cursor {
    int64_t row = 0;
    int64_t neighbor = 0;
  };
  std::vector<Cursor> cursors(replies.size());
  Buffer<int64_t> keys;
  int32_t* const counts = out.counts.extend(num_rows);

  for (int64_t first = 0; first < num_rows; first += kBlockRows) {
    const int64_t last = std::min(first + kBlockRows, num_rows);
    keys.clear();
    for (int64_t i = first; i < last; ++i) {
      const auto owner = static_cast<std::size_t>(owners[i]);
      if (owner >= replies.size()) throw std::invalid_argument("a row's owner sent no reply");
      const OwnerReply<Col>& reply = replies[owner];
      Cursor& cursor = cursors[owner];
      if (cursor.row >= reply.num_rows) {
        throw std::invalid_argument("a reply holds fewer rows than were asked for");
      }
      const int32_t count = reply.counts[cursor.row++];
      if (count < 0 || count > reply.num_neighbors - cursor.neighbor) {
        throw std::invalid_argument("a reply's counts do not match its neighbours");
      }
      counts[i] = count;
      append_keys(frontier, i, reply.neighbors + cursor.neighbor, count, sources, keys);
      if (with_edges) {
        std::copy_n(reply.edges + cursor.neighbor, count, out.edges.extend(count));
      }
      cursor.neighbor += count;
    }
    sources.insert(keys.data(), keys.size(), out.sources.extend(keys.size()));
  }
  for (std::size_t p = 0; p < replies.size(); ++p) {
    if (cursors[p].row != replies[p].num_rows || cursors[p].neighbor != replies[p].num_neighbors) {
      throw std::invalid_argument("a reply holds more rows than were asked for");
    }
  }
  appended.finish(frontier);
}

void EdgeList::clear() {
  in_hop_order = true;
  destinations.clear();
  hops.clear();
  counts.clear();
  sources.clear();
  edges.clear();
}

void EdgeList::write_endpoints(int64_t* row, int64_t* col) const {
  for (int64_t j = 0; j < sources.size(); ++j) row[j] = sources[j];
  if (!in_hop_order) {
    for (int64_t j = 0; j < destinations.size(); ++j) col[j] = destinations[j];
    return;
  }
  // Most rows are short: a fixed number of places, of which the next row overwrites some, takes no
  // branch on their length.
  constexpr int32_t kShort = 16;
  const int32_t* count = counts.data();
  const int64_t* const end = col + sources.size();
  for (const Hop& hop : hops) {
    for (int64_t i = 0; i < hop.num_destinations; ++i, ++count) {
      const bool fits = *count <= kShort && end - col >= kShort;
      std::fill_n(col, fits ? kShort : *count, hop.first_destination + i);
      col += *count;
    }
  }
}

#define KHOP_INSTANTIATE(Ptr, Col)                                                              \
  template void sample_rows<Ptr, Col>(const CsrView<Ptr, Col>&, const RowSet&, int64_t,         \
                                      const HopSpec&, DrawnRows<Col>&);                         \
  template void sample_hop<Ptr, Col>(const CsrView<Ptr, Col>&, const Frontier&, const HopSpec&, \
                                     NodeSet&, EdgeList&);
KHOP_INSTANTIATE(int32_t, int32_t)
KHOP_INSTANTIATE(int32_t, int64_t)
KHOP_INSTANTIATE(int64_t, int32_t)
KHOP_INSTANTIATE(int64_t, int64_t)
#undef KHOP_INSTANTIATE

template void merge_hop<int32_t>(const int32_t*, const std::vector<OwnerReply<int32_t>>&,
                                 const Frontier&, bool, NodeSet&, EdgeList&);
template void merge_hop<int64_t>(const int32_t*, const std::vector<OwnerReply<int64_t>>&,
                                 const Frontier&, bool, NodeSet&, EdgeList&);

}  // namespace khop
