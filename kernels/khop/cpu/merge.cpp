#include "khop/cpu/merge.hpp"

#include <algorithm>
#include <stdexcept>

namespace khop::cpu {
namespace {

// Rows whose neighbours are numbered at a time.
constexpr int64_t kMergedRows = 64;

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

}  // namespace

template <class Col>
void merge_hop(const int32_t* owners, const std::vector<OwnerReply<Col>>& replies,
               const Frontier& frontier, bool with_edges, NodeSet& sources, EdgeList& out) {
  AppendedEdges appended(out);
  const int64_t num_rows = frontier.end - frontier.begin;
  struct Cursor {
    int64_t row = 0;
    int64_t neighbor = 0;
  };
  std::vector<Cursor> cursors(replies.size());
  Buffer<int64_t> keys;
  int32_t* const counts = out.counts.extend(num_rows);

  for (int64_t first = 0; first < num_rows; first += kMergedRows) {
    const int64_t last = std::min(first + kMergedRows, num_rows);
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

void merge_induced_rows(const int32_t* owners, const std::vector<OwnerReply<int32_t>>& replies,
                        int64_t num_rows, int64_t num_members, bool with_edges,
                        InducedRows& merged) {
  std::vector<int64_t> next_row(replies.size());
  std::vector<int64_t> next_edge(replies.size());
  for (int64_t i = 0; i < num_rows; ++i) {
    const auto owner = static_cast<std::size_t>(owners[i]);
    if (owner >= replies.size() || next_row[owner] >= replies[owner].num_rows) {
      throw std::invalid_argument("a reply holds fewer rows than were asked for");
    }
    const OwnerReply<int32_t>& reply = replies[owner];
    const int32_t count = reply.counts[next_row[owner]++];
    int64_t& edge = next_edge[owner];
    if (count < 0 || count > reply.num_neighbors - edge) {
      throw std::invalid_argument("a reply's counts do not match its neighbours");
    }
    for (int64_t j = edge; j < edge + count; ++j) {
      if (reply.neighbors[j] < 0 || reply.neighbors[j] >= num_members) {
        throw std::invalid_argument("a reply names a node that is not in the batch");
      }
      merged.sources.push_back(reply.neighbors[j]);
      if (with_edges) merged.edges.push_back(reply.edges[j]);
    }
    merged.counts.push_back(count);
    edge += count;
  }
  for (std::size_t p = 0; p < replies.size(); ++p) {
    if (next_row[p] != replies[p].num_rows || next_edge[p] != replies[p].num_neighbors) {
      throw std::invalid_argument("a reply holds more rows than were asked for");
    }
  }
}

template void merge_hop<int32_t>(const int32_t*, const std::vector<OwnerReply<int32_t>>&,
                                 const Frontier&, bool, NodeSet&, EdgeList&);
template void merge_hop<int64_t>(const int32_t*, const std::vector<OwnerReply<int64_t>>&,
                                 const Frontier&, bool, NodeSet&, EdgeList&);

}  // namespace khop::cpu
