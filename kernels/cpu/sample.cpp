#include "sample.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace khop {
namespace {

// Rows are drawn in blocks: while one block's columns are on their way from memory, the next block
// is drawn and the last one is numbered. 64 rows of 15 picks keep about a thousand lines in flight.
constexpr int64_t kBlockRows = 64;

// A block of rows on its way through draw, read and number.
template <class Col>
struct Block {
  int64_t first = 0;  // place of its first row in the frontier
  int64_t last = 0;
  Buffer<int64_t> positions;
  Buffer<Col> columns;
};

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

// Numbers the neighbours of a frontier's rows, block by block.
template <class Col>
class Numberer {
 public:
  Numberer(const Frontier& frontier, NodeSet& sources) : frontier_(frontier), sources_(sources) {}

  // Says which keys will be numbered soon: columns of the rows first .. last - 1.
  void announce(const Buffer<Col>& columns, int64_t first, int64_t last, const int32_t* counts) {
    if (!frontier_.disjoint) {
      sources_.prefetch(columns.data(), columns.size());
      return;
    }
    sources_.check_ids(columns.data(), columns.size());
    keys_.clear();
    int64_t* key = keys_.extend(columns.size());
    const Col* column = columns.data();
    const int64_t* rows = frontier_.nodes.keys() + frontier_.begin;
    for (int64_t i = first; i < last; ++i) {
      const int64_t tree = frontier_.nodes.tree_of(rows[i]);
      for (int32_t j = 0; j < counts[i]; ++j) *key++ = sources_.key(tree, *column++);
    }
    sources_.prefetch(keys_.data(), keys_.size());
  }

  // Numbers the columns that were announced last.
  void number(const Buffer<Col>& columns, int32_t* out) {
    sources_.reserve(columns.size());
    if (!frontier_.disjoint) {
      sources_.insert(columns.data(), columns.size(), out);
    } else {
      sources_.insert(keys_.data(), keys_.size(), out);
    }
  }

 private:
  const Frontier& frontier_;
  NodeSet& sources_;
  Buffer<int64_t> keys_;  // where keys are more than columns
};

template <class Ptr, class Col>
void read_columns(const CsrView<Ptr, Col>& graph, const Buffer<int64_t>& positions, Col* out) {
  for (int64_t j = 0; j < positions.size(); ++j) out[j] = graph.indices[positions[j]];
}

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

void append_edges(const Buffer<int64_t>& positions, int64_t first_edge, Buffer<int64_t>& edges) {
  int64_t* out = edges.extend(positions.size());
  for (int64_t j = 0; j < positions.size(); ++j) out[j] = first_edge + positions[j];
}

}  // namespace

template <class Ptr, class Col>
void sample_rows(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                 const HopSpec& spec, bool with_edges, DrawnRows<Col>& out) {
  RowDrawer<Ptr, Col> drawer(graph, spec);
  std::array<Buffer<int64_t>, 2> positions;
  out.counts.clear();
  out.neighbors.clear();
  out.edges.clear();
  out.counts.resize(num_rows);
  const int64_t num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  drawer.prefetch_rows(rows.ids, std::min(kBlockRows, num_rows));
  for (int64_t t = 0; t <= num_blocks; ++t) {
    if (t < num_blocks) {
      const int64_t first = t * kBlockRows;
      const int64_t next = std::min(first + kBlockRows, num_rows);
      drawer.prefetch_rows(rows.ids + next, std::min(kBlockRows, num_rows - next));
      auto& drawn = positions[static_cast<std::size_t>(t % 2)];
      drawn.clear();
      drawer.draw(rows.from(first), next - first, out.counts.data() + first, drawn);
    }
    if (t >= 1) {
      const auto& ready = positions[static_cast<std::size_t>((t - 1) % 2)];
      read_columns(graph, ready, out.neighbors.extend(ready.size()));
      if (with_edges) append_edges(ready, graph.first_edge, out.edges);
    }
  }
}

template <class Ptr, class Col>
void sample_hop(const CsrView<Ptr, Col>& graph, const Frontier& frontier, const HopSpec& spec,
                bool with_edges, NodeSet& sources, EdgeList& out) {
  RowDrawer<Ptr, Col> drawer(graph, spec);
  Numberer<Col> numberer(frontier, sources);
  RowBlock rows;
  std::array<int64_t, kBlockRows> next_ids;
  std::array<Block<Col>, 3> blocks;
  const int64_t num_rows = frontier.end - frontier.begin;
  const int64_t num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  Appended appended(out);
  int32_t* const counts = out.counts.extend(num_rows);

  const auto prefetch_rows = [&](int64_t first) {
    const int64_t last = std::min(first + kBlockRows, num_rows);
    const int64_t* keys = frontier.nodes.keys() + frontier.begin;
    for (int64_t i = first; i < last; ++i) {
      next_ids[static_cast<std::size_t>(i - first)] = frontier.nodes.id_of(keys[i]);
    }
    drawer.prefetch_rows(next_ids.data(), std::max<int64_t>(last - first, 0));
  };
  prefetch_rows(0);
  for (int64_t t = 0; t < num_blocks + 2; ++t) {
    if (t < num_blocks) {  // draw block t
      auto& drawn = blocks[static_cast<std::size_t>(t % 3)];
      drawn.first = t * kBlockRows;
      drawn.last = std::min(drawn.first + kBlockRows, num_rows);
      prefetch_rows(drawn.last);
      drawn.positions.clear();
      drawer.draw(rows.read(frontier, drawn.first, drawn.last), drawn.last - drawn.first,
                  counts + drawn.first, drawn.positions);
    }
    if (t >= 2) {  // number block t - 2
      auto& arrived = blocks[static_cast<std::size_t>((t - 2) % 3)];
      const int64_t count = arrived.columns.size();
      numberer.number(arrived.columns, out.sources.extend(count));
      if (with_edges) append_edges(arrived.positions, graph.first_edge, out.edges);
    }
    if (t >= 1 && t - 1 < num_blocks) {  // read the columns of block t - 1
      auto& ready = blocks[static_cast<std::size_t>((t - 1) % 3)];
      ready.columns.clear();
      read_columns(graph, ready.positions, ready.columns.extend(ready.positions.size()));
      numberer.announce(ready.columns, ready.first, ready.last, counts);
    }
  }
  appended.finish(frontier);
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
  Numberer<Col> numberer(frontier, sources);
  Buffer<Col> columns;
  int32_t* const counts = out.counts.extend(num_rows);

  for (int64_t first = 0; first < num_rows; first += kBlockRows) {
    const int64_t last = std::min(first + kBlockRows, num_rows);
    columns.clear();
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
      std::copy_n(reply.neighbors + cursor.neighbor, count, columns.extend(count));
      if (with_edges) {
        std::copy_n(reply.edges + cursor.neighbor, count, out.edges.extend(count));
      }
      cursor.neighbor += count;
    }
    numberer.announce(columns, first, last, counts);
    numberer.number(columns, out.sources.extend(columns.size()));
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
  const int32_t* count = counts.data();
  for (const Hop& hop : hops) {
    for (int64_t i = 0; i < hop.num_destinations; ++i, ++count) {
      std::fill_n(col, *count, hop.first_destination + i);
      col += *count;
    }
  }
}

#define KHOP_INSTANTIATE(Ptr, Col)                                                              \
  template void sample_rows<Ptr, Col>(const CsrView<Ptr, Col>&, const RowSet&, int64_t,         \
                                      const HopSpec&, bool, DrawnRows<Col>&);                   \
  template void sample_hop<Ptr, Col>(const CsrView<Ptr, Col>&, const Frontier&, const HopSpec&, \
                                     bool, NodeSet&, EdgeList&);
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
