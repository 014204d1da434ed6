#include "khop/cpu/induce.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "khop/cpu/id_filter.hpp"

namespace khop::cpu {
namespace {

// Columns looked up at a time: their slots are on the way from memory together.
constexpr int64_t kChunk = 256;

// A key that no node has: what a damaged file may name.
constexpr int64_t kNoMember = -1;

PairSet::Span hidden_from(const PairSet* excluded, int64_t row) {
  return excluded == nullptr ? PairSet::Span{nullptr, nullptr} : excluded->of(row);
}

int32_t checked_count(int64_t count) {
  if (count > std::numeric_limits<int32_t>::max()) {
    throw std::length_error("a row contributes more than 2^31 - 1 edges to one batch");
  }
  return static_cast<int32_t>(count);
}

// Row by row.
template <class Ptr, class Col>
void induce_each(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                 const NodeSet& members, const PairSet* excluded, bool with_edges, InducedRows& out,
                 const StopFlag* stop) {
  const RowFinder<Ptr, Col> finder(graph);
  IdFilter filter;
  filter.reset(members.size());
  for (int64_t i = 0; i < members.size(); ++i) filter.add(members.id_of(members.keys()[i]));
  int64_t found[kChunk], keys[kChunk];
  for (int64_t i = 0; i < num_rows; ++i) {
    const Row row = finder.find(rows, i);
    const PairSet::Span hidden = hidden_from(excluded, row.id);
    const int64_t before = out.sources.size();
    for (int64_t first = row.begin; first < row.end; first += kChunk) {
      check_stop(stop);
      const int64_t last = std::min(first + kChunk, row.end);
      int64_t count = 0;
      for (int64_t e = first; e < last; ++e) {
        found[count] = e;
        count += filter.may_hold(static_cast<int64_t>(graph.indices[e]));
      }
      for (int64_t k = 0; k < count; ++k) {
        const auto id = static_cast<int64_t>(graph.indices[found[k]]);
        keys[k] = members.holds(id) ? members.key(row.tree, id) : kNoMember;
      }
      members.prefetch(keys, count);
      for (int64_t k = 0; k < count; ++k) {
        const int32_t number = members.find(keys[k]);
        if (number < 0) continue;
        const int64_t e = found[k];
        if (!hidden.empty() && hidden.contains(static_cast<int64_t>(graph.indices[e]))) continue;
        out.sources.push_back(number);
        if (with_edges) out.edges.push_back(graph.first_edge + e);
      }
    }
    out.counts.push_back(checked_count(out.sources.size() - before));
  }
}

// Numbers of rows or members, grouped by the node that they are of; they ascend in a group.
class NumbersByNode {
 public:
  struct Span {
    const int32_t* begin;
    const int32_t* end;
    int64_t size() const { return end - begin; }
  };

  // Nodes are below `num_nodes`.
  explicit NumbersByNode(int64_t num_nodes) : nodes_(num_nodes, false) {}

  void add(int64_t node, int32_t number) {
    given_.push_back(node);
    given_numbers_.push_back(number);
  }

  // Call it after the last `add`.
  void group() {
    Buffer<int32_t> groups(given_.size());
    nodes_.insert(given_.data(), given_.size(), groups.data());
    first_.assign(static_cast<std::size_t>(nodes_.size()) + 1, 0);
    for (int64_t i = 0; i < groups.size(); ++i) ++first_[static_cast<std::size_t>(groups[i]) + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    std::vector<int64_t> next(first_);
    numbers_.resize(groups.size());
    for (int64_t i = 0; i < groups.size(); ++i) {
      numbers_[next[static_cast<std::size_t>(groups[i])]++] = given_numbers_[i];
    }
  }

  int64_t num_groups() const { return nodes_.size(); }
  int64_t node(int64_t group) const { return nodes_.keys()[group]; }
  Span of_group(int64_t group) const {
    return {numbers_.data() + first_[static_cast<std::size_t>(group)],
            numbers_.data() + first_[static_cast<std::size_t>(group) + 1]};
  }

  void prefetch(const int64_t* nodes, int64_t count) const { nodes_.prefetch(nodes, count); }
  Span of(int64_t node) const {
    const int32_t group = nodes_.find(node);
    return group < 0 ? Span{nullptr, nullptr} : of_group(group);
  }

 private:
  NodeSet nodes_;
  Buffer<int64_t> given_;
  Buffer<int32_t> given_numbers_;
  std::vector<int64_t> first_;  // of each group in numbers_
  Buffer<int32_t> numbers_;
};

// The rows of a disjoint batch that an owner has: a node's row, once for each of its trees.
template <class Ptr, class Col>
class TreeRows {
 public:
  TreeRows(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows)
      : rows_(rows), by_node_(graph.num_rows), keys_(graph.num_rows, true), ends_(num_rows) {
    const RowFinder<Ptr, Col> finder(graph);
    for (int64_t i = 0; i < num_rows; ++i) {
      const Row row = finder.find(rows, i);
      ends_[i] = row.end;
      entries_ += row.end - row.begin;
      num_trees_ = std::max(num_trees_, static_cast<int64_t>(rows.trees[i]) + 1);
      by_node_.add(row.row, static_cast<int32_t>(i));
    }
    by_node_.group();
    for (int64_t group = 0; group < by_node_.num_groups(); ++group) {
      const NumbersByNode::Span trees = by_node_.of_group(group);
      distinct_entries_ += end_of(trees) - finder.find(rows, *trees.begin).begin;
    }
  }

  // Whether to scan a node's row once for all of its trees. Where few nodes are in several trees,
  // what that needs costs more than it saves: a third of the time, if none are.
  bool overlap() const { return entries_ >= 2 * distinct_entries_; }

  // Makes `find` ready. Rows that are there twice are not told apart: `are_distinct` is false then.
  void index() {
    keys_.set_num_trees(num_trees_);
    Buffer<int64_t> keys(ends_.size());
    for (int64_t group = 0; group < by_node_.num_groups(); ++group) {
      const NumbersByNode::Span trees = by_node_.of_group(group);
      const int64_t row = by_node_.node(group);
      for (const int32_t* i = trees.begin; i != trees.end; ++i) keys[*i] = keys_.key(tree(*i), row);
    }
    Buffer<int32_t> numbers(keys.size());
    keys_.insert(keys.data(), keys.size(), numbers.data());
    are_distinct_ = keys_.size() == keys.size();
  }
  bool are_distinct() const { return are_distinct_; }
  int32_t find(int64_t tree, int64_t row) const { return keys_.find(keys_.key(tree, row)); }

  int64_t num_trees() const { return num_trees_; }
  const NumbersByNode& by_node() const { return by_node_; }
  int64_t tree(int32_t number) const { return rows_.trees[number]; }
  // One past the last edge that a row's tree sees, or any of several.
  int64_t end(int32_t number) const { return ends_[number]; }
  int64_t end_of(NumbersByNode::Span numbers) const {
    int64_t last = ends_[*numbers.begin];
    for (const int32_t* i = numbers.begin; i != numbers.end; ++i) last = std::max(last, ends_[*i]);
    return last;
  }

 private:
  const RowSet& rows_;
  NumbersByNode by_node_;
  NodeSet keys_;
  Buffer<int64_t> ends_;
  int64_t num_trees_ = 0;
  int64_t entries_ = 0;
  int64_t distinct_entries_ = 0;
  bool are_distinct_ = true;
};

// Members of a disjoint batch, by node. Keys may come from elsewhere: those of no node or no tree
// are left out, and all but the first of equal ones.
NumbersByNode members_by_node(const NodeSet& members, int64_t num_trees) {
  NumbersByNode found(members.num_ids());
  for (int64_t i = 0; i < members.size(); ++i) {
    const int64_t key = members.keys()[i], tree = members.tree_of(key);
    if (!members.holds(members.id_of(key)) || tree < 0 || tree >= num_trees) continue;
    if (members.find(key) == i) found.add(members.id_of(key), static_cast<int32_t>(i));
  }
  found.group();
  return found;
}

// An edge of the batch, as it is found: rows by node, edges of a row in its order.
struct FoundEdge {
  int32_t row;
  int32_t source;
  int64_t edge;
};

// Sorts edges by row. Keeps their order in each.
void write_by_row(const Buffer<FoundEdge>& found, const Buffer<int64_t>& counts, bool with_edges,
                  InducedRows& out) {
  Buffer<int64_t> places(counts.size());
  int64_t place = out.sources.size();
  for (int64_t i = 0; i < counts.size(); ++i) {
    places[i] = place;
    place += counts[i];
    out.counts.push_back(checked_count(counts[i]));
  }
  out.sources.resize(place);
  if (with_edges) out.edges.resize(place);
  for (int64_t i = 0; i < found.size(); ++i) {
    const FoundEdge& edge = found[i];
    const int64_t at = places[edge.row]++;
    out.sources[at] = edge.source;
    if (with_edges) out.edges[at] = edge.edge;
  }
}

// Each node's row once for all of its trees. An edge from u to v is in as many of them as have
// both: those of the node that is in fewer trees are looked up among the other's.
template <class Ptr, class Col>
void induce_shared(const CsrView<Ptr, Col>& graph, const RowSet& row_set, int64_t num_rows,
                   TreeRows<Ptr, Col>& rows, const NodeSet& members, const PairSet* excluded,
                   bool with_edges, InducedRows& out, const StopFlag* stop) {
  rows.index();
  const NumbersByNode by_node = members_by_node(members, rows.num_trees());
  const RowFinder<Ptr, Col> finder(graph);
  Buffer<int64_t> counts(num_rows), ids;
  std::fill_n(counts.data(), num_rows, 0);
  Buffer<FoundEdge> found;
  const auto add = [&](int32_t row, int32_t source, int64_t e) {
    if (e >= rows.end(row)) return;
    found.push_back({row, source, graph.first_edge + e});
    ++counts[row];
  };
  for (int64_t group = 0; group < rows.by_node().num_groups(); ++group) {
    const NumbersByNode::Span here = rows.by_node().of_group(group);
    const Row row = finder.find(row_set, *here.begin);
    const PairSet::Span hidden = hidden_from(excluded, row.id);
    const int64_t end = rows.end_of(here);
    for (int64_t first = row.begin; first < end; first += kChunk) {
      check_stop(stop);
      const int64_t last = std::min(first + kChunk, end);
      ids.clear();
      for (int64_t e = first; e < last; ++e) {
        const auto id = static_cast<int64_t>(graph.indices[e]);
        ids.push_back(members.holds(id) ? id : kNoMember);
      }
      by_node.prefetch(ids.data(), ids.size());
      for (int64_t e = first; e < last; ++e) {
        const int64_t id = ids[e - first];
        const NumbersByNode::Span there = by_node.of(id);
        if (there.begin == there.end || (!hidden.empty() && hidden.contains(id))) continue;
        if (here.size() <= there.size() || !rows.are_distinct()) {
          for (const int32_t* i = here.begin; i != here.end; ++i) {
            const int32_t source = members.find(members.key(rows.tree(*i), id));
            if (source >= 0) add(*i, source, e);
          }
        } else {
          for (const int32_t* i = there.begin; i != there.end; ++i) {
            const int32_t at = rows.find(members.tree_of(members.keys()[*i]), row.row);
            if (at >= 0) add(at, *i, e);
          }
        }
      }
    }
  }
  write_by_row(found, counts, with_edges, out);
}

}  // namespace

template <class Ptr, class Col>
void induce_rows(const CsrView<Ptr, Col>& graph, const RowSet& rows, int64_t num_rows,
                 const NodeSet& members, const PairSet* excluded, bool with_edges, InducedRows& out,
                 const StopFlag* stop) {
  if (rows.trees != nullptr) {
    TreeRows<Ptr, Col> tree_rows(graph, rows, num_rows);
    if (tree_rows.overlap()) {
      induce_shared(graph, rows, num_rows, tree_rows, members, excluded, with_edges, out, stop);
      return;
    }
  }
  induce_each(graph, rows, num_rows, members, excluded, with_edges, out, stop);
}

#define KHOP_INSTANTIATE(Ptr, Col)                                                        \
  template void induce_rows<Ptr, Col>(const CsrView<Ptr, Col>&, const RowSet&, int64_t,   \
                                      const NodeSet&, const PairSet*, bool, InducedRows&, \
                                      const StopFlag*);
KHOP_INSTANTIATE(int32_t, int32_t)
KHOP_INSTANTIATE(int32_t, int64_t)
KHOP_INSTANTIATE(int64_t, int32_t)
KHOP_INSTANTIATE(int64_t, int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
