#include "sample.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>

#include "khop/pick.hpp"

namespace khop {
namespace {

// Rows are drawn in blocks: while one block's columns are on their way from memory, the next block
// is drawn and the last one is numbered. 64 rows of 15 picks keep about a thousand lines in flight.
constexpr int64_t kBlockRows = 64;

// Positions already picked in a row too wide to scan.
class PositionSet {
 public:
  void reset(int64_t count) {
    int bits = 8;
    while ((int64_t{1} << bits) < 2 * count) ++bits;
    bits_ = bits;
    slots_.clear();
    slots_.resize(int64_t{1} << bits);
    std::fill_n(slots_.data(), slots_.size(), int64_t{-1});
  }
  bool contains(int64_t position) const { return slots_[find(position)] == position; }
  void add(int64_t position) { slots_[find(position)] = position; }

 private:
  int64_t find(int64_t position) const {
    const int64_t mask = slots_.size() - 1;
    int64_t slot =
        static_cast<int64_t>(slot_index(hash_id(static_cast<uint64_t>(position)), bits_));
    while (slots_[slot] != -1 && slots_[slot] != position) slot = (slot + 1) & mask;
    return slot;
  }

  int bits_ = 0;
  Buffer<int64_t> slots_;
};

template <class Ptr, class Col>
class RowDrawer {
 public:
  RowDrawer(const CsrView<Ptr, Col>& graph, const HopSpec& spec) : graph_(graph), spec_(spec) {}

  void prefetch_rows(const int64_t* ids, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = ids[i] - graph_.first_row;
      if (row < 0 || row >= graph_.num_rows) continue;
      __builtin_prefetch(&graph_.indptr[row]);
      if (graph_.row_id_width != 0) {
        __builtin_prefetch(static_cast<const char*>(graph_.row_ids) + row * graph_.row_id_width);
      }
    }
  }

  // Appends the picked edge positions of `count` rows and prefetches their columns.
  void draw(const int64_t* ids, int64_t count, int32_t* counts, Buffer<int64_t>& positions) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = ids[i] - graph_.first_row;
      if (row < 0 || row >= graph_.num_rows) throw_no_such_row(ids[i]);
      const int64_t begin = static_cast<int64_t>(graph_.indptr[row]);
      const int64_t end = static_cast<int64_t>(graph_.indptr[row + 1]);
      if (!graph_.row_is_sound(begin, end)) throw_unsound(row, begin, end);
      const int64_t degree = end - begin;
      const int64_t picks = pick_count(degree, spec_.fanout, spec_.replace);
      if (picks > std::numeric_limits<int32_t>::max()) {
        throw std::length_error("a row contributes more than 2^31 - 1 neighbours to one batch");
      }
      counts[i] = static_cast<int32_t>(picks);
      int64_t* out = positions.extend(picks);
      if (takes_all(degree, spec_.fanout, spec_.replace)) {
        take_row(begin, picks, out);
      } else if (picks > 0) {
        pick(row, begin, degree, picks, out);
      }
    }
  }

 private:
  void take_row(int64_t begin, int64_t count, int64_t* out) const {
    constexpr int64_t kPerLine = 64 / sizeof(Col);
    for (int64_t j = 0; j < count; ++j) out[j] = begin + j;
    for (int64_t j = 0; j < count; j += kPerLine) __builtin_prefetch(&graph_.indices[begin + j]);
  }

  void pick(int64_t row, int64_t begin, int64_t degree, int64_t picks, int64_t* out) {
    const NodeDraws draws{spec_.key, graph_.original_id(row), 0};
    if (spec_.replace) {
      pick_with_replacement(draws, degree, picks, out);
    } else if (picks <= kScanLimit && degree <= std::numeric_limits<uint32_t>::max()) {
      std::array<uint32_t, kScanLimit> picked;
      pick_without_replacement_scan(draws, degree, picks, picked.data());
      for (int64_t j = 0; j < picks; ++j) out[j] = picked[static_cast<std::size_t>(j)];
    } else {
      seen_.reset(picks);
      pick_without_replacement(
          draws, degree, picks, out,
          [this](int64_t, int64_t position) { return seen_.contains(position); },
          [this](int64_t position) { seen_.add(position); });
    }
    for (int64_t j = 0; j < picks; ++j) {
      out[j] += begin;
      __builtin_prefetch(&graph_.indices[out[j]]);
    }
  }

  [[noreturn]] void throw_no_such_row(int64_t id) const {
    throw std::out_of_range("node " + std::to_string(id) + " is not one of the graph's rows " +
                            std::to_string(graph_.first_row) + " to " +
                            std::to_string(graph_.first_row + graph_.num_rows - 1));
  }
  [[noreturn]] void throw_unsound(int64_t row, int64_t begin, int64_t end) const {
    throw std::runtime_error("row pointers are corrupt: row " + std::to_string(row) +
                             " spans edges " + std::to_string(begin) + " to " +
                             std::to_string(end) + " of " + std::to_string(graph_.num_edges));
  }

  const CsrView<Ptr, Col>& graph_;
  const HopSpec& spec_;
  PositionSet seen_;
};

// A block of rows on its way through draw, read and number.
template <class Col>
struct Block {
  Buffer<int64_t> positions;
  Buffer<Col> columns;
};

template <class Ptr, class Col>
void read_columns(const CsrView<Ptr, Col>& graph, const Buffer<int64_t>& positions, Col* out) {
  for (int64_t j = 0; j < positions.size(); ++j) out[j] = graph.indices[positions[j]];
}

void append_edges(const Buffer<int64_t>& positions, int64_t first_edge, Buffer<int64_t>& edges) {
  int64_t* out = edges.extend(positions.size());
  for (int64_t j = 0; j < positions.size(); ++j) out[j] = first_edge + positions[j];
}

}  // namespace

template <class Ptr, class Col>
void sample_rows(const CsrView<Ptr, Col>& graph, const int64_t* ids, int64_t num_ids,
                 const HopSpec& spec, bool with_edges, DrawnRows<Col>& out) {
  RowDrawer<Ptr, Col> drawer(graph, spec);
  std::array<Buffer<int64_t>, 2> positions;
  out.counts.clear();
  out.neighbors.clear();
  out.edges.clear();
  out.counts.resize(num_ids);
  const int64_t num_blocks = (num_ids + kBlockRows - 1) / kBlockRows;
  drawer.prefetch_rows(ids, std::min(kBlockRows, num_ids));
  for (int64_t t = 0; t <= num_blocks; ++t) {
    if (t < num_blocks) {
      const int64_t first = t * kBlockRows;
      const int64_t next = std::min(first + kBlockRows, num_ids);
      drawer.prefetch_rows(ids + next, std::min(kBlockRows, num_ids - next));
      auto& drawn = positions[static_cast<std::size_t>(t % 2)];
      drawn.clear();
      drawer.draw(ids + first, next - first, out.counts.data() + first, drawn);
    }
    if (t >= 1) {
      const auto& ready = positions[static_cast<std::size_t>((t - 1) % 2)];
      read_columns(graph, ready, out.neighbors.extend(ready.size()));
      if (with_edges) append_edges(ready, graph.first_edge, out.edges);
    }
  }
}

template <class Ptr, class Col>
void sample_hop(const CsrView<Ptr, Col>& graph, const NodeSet& destinations, int64_t begin,
                int64_t end, const HopSpec& spec, bool with_edges, NodeSet& sources,
                EdgeList& out) {
  RowDrawer<Ptr, Col> drawer(graph, spec);
  // Numbering may grow the node list that the frontier lies in, so a block's ids are copied.
  std::array<int64_t, kBlockRows> ids;
  std::array<Block<Col>, 3> blocks;
  const int64_t num_rows = end - begin;
  const int64_t num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
  const int64_t edges_before = out.sources.size();
  int32_t* const counts = out.counts.extend(num_rows);

  drawer.prefetch_rows(destinations.nodes() + begin, std::min(kBlockRows, num_rows));
  for (int64_t t = 0; t < num_blocks + 2; ++t) {
    if (t < num_blocks) {  // draw block t
      const int64_t first = t * kBlockRows;
      const int64_t next = std::min(first + kBlockRows, num_rows);
      const int64_t* frontier = destinations.nodes() + begin;
      drawer.prefetch_rows(frontier + next, std::min(kBlockRows, num_rows - next));
      std::copy(frontier + first, frontier + next, ids.begin());
      auto& drawn = blocks[static_cast<std::size_t>(t % 3)];
      drawn.positions.clear();
      drawer.draw(ids.data(), next - first, counts + first, drawn.positions);
    }
    if (t >= 1 && t - 1 < num_blocks) {  // read the columns of block t - 1
      auto& ready = blocks[static_cast<std::size_t>((t - 1) % 3)];
      const int64_t count = ready.positions.size();
      ready.columns.clear();
      read_columns(graph, ready.positions, ready.columns.extend(count));
      sources.prefetch(ready.columns.data(), count);
    }
    if (t >= 2) {  // number block t - 2
      auto& arrived = blocks[static_cast<std::size_t>((t - 2) % 3)];
      const int64_t count = arrived.columns.size();
      sources.reserve(count);
      sources.insert(arrived.columns.data(), count, out.sources.extend(count));
      if (with_edges) append_edges(arrived.positions, graph.first_edge, out.edges);
    }
  }
  out.hops.push_back({begin, num_rows, out.sources.size() - edges_before});
}

template <class Col>
void merge_hop(const int32_t* owners, int64_t num_rows, const std::vector<OwnerReply<Col>>& replies,
               int64_t begin, bool with_edges, NodeSet& sources, EdgeList& out) {
  const int64_t edges_before = out.sources.size();
  struct Cursor {
    int64_t row = 0;
    int64_t neighbor = 0;
  };
  std::vector<Cursor> cursors(replies.size());
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
    sources.reserve(columns.size());
    sources.prefetch(columns.data(), columns.size());
    sources.insert(columns.data(), columns.size(), out.sources.extend(columns.size()));
  }
  for (std::size_t p = 0; p < replies.size(); ++p) {
    if (cursors[p].row != replies[p].num_rows || cursors[p].neighbor != replies[p].num_neighbors) {
      throw std::invalid_argument("a reply holds more rows than were asked for");
    }
  }
  out.hops.push_back({begin, num_rows, out.sources.size() - edges_before});
}

void EdgeList::clear() {
  hops.clear();
  counts.clear();
  sources.clear();
  edges.clear();
}

void EdgeList::write_endpoints(int64_t* row, int64_t* col) const {
  for (int64_t j = 0; j < sources.size(); ++j) row[j] = sources[j];
  const int32_t* count = counts.data();
  for (const Hop& hop : hops) {
    for (int64_t i = 0; i < hop.num_destinations; ++i, ++count) {
      std::fill_n(col, *count, hop.first_destination + i);
      col += *count;
    }
  }
}

#define KHOP_INSTANTIATE(Ptr, Col)                                                               \
  template void sample_rows<Ptr, Col>(const CsrView<Ptr, Col>&, const int64_t*, int64_t,         \
                                      const HopSpec&, bool, DrawnRows<Col>&);                    \
  template void sample_hop<Ptr, Col>(const CsrView<Ptr, Col>&, const NodeSet&, int64_t, int64_t, \
                                     const HopSpec&, bool, NodeSet&, EdgeList&);
KHOP_INSTANTIATE(int32_t, int32_t)
KHOP_INSTANTIATE(int32_t, int64_t)
KHOP_INSTANTIATE(int64_t, int32_t)
KHOP_INSTANTIATE(int64_t, int64_t)
#undef KHOP_INSTANTIATE

template void merge_hop<int32_t>(const int32_t*, int64_t, const std::vector<OwnerReply<int32_t>>&,
                                 int64_t, bool, NodeSet&, EdgeList&);
template void merge_hop<int64_t>(const int32_t*, int64_t, const std::vector<OwnerReply<int64_t>>&,
                                 int64_t, bool, NodeSet&, EdgeList&);

}  // namespace khop
