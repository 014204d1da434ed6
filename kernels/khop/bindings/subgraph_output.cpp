// Writes a drawn subgraph, all types at once, to arrays that the caller made: a batch of twenty
// types would otherwise take a hundred calls.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "khop/bindings/module.hpp"
#include "khop/cpu/gather.hpp"
#include "khop/cpu/subgraph.hpp"

namespace khop::bindings {
namespace {

using Ends = nb::ndarray<int64_t, nb::shape<2, -1>, nb::c_contig, nb::device::cpu>;
using Ids = Out<int64_t>;

template <class Array>
int64_t last_axis(const Array& array) {
  return static_cast<int64_t>(array.shape(array.ndim() - 1));
}

void check_count(std::size_t got, std::size_t want, const char* name) {
  if (got == want) return;
  throw nb::value_error((std::string(name) + " must hold an array for each of " +
                         std::to_string(want) + " types, but holds " + std::to_string(got))
                            .c_str());
}

template <class Array>
void check_size(const Array& array, int64_t want, const char* name, int32_t type) {
  if (last_axis(array) == want) return;
  throw nb::value_error((std::string(name) + " of type " + std::to_string(type) + " must hold " +
                         std::to_string(want) + " entries, but holds " +
                         std::to_string(last_axis(array)))
                            .c_str());
}

class SubgraphOutput {
 public:
  SubgraphOutput(std::vector<std::optional<InArray>> edge_names, bool backward)
      : edge_names_(std::move(edge_names)), backward_(backward) {
    for (const auto& names : edge_names_) {
      if (names.has_value()) visit_ints(*names, "edge_names", [](auto*) { return 0; });
    }
  }

  using Counts = std::vector<int64_t>;
  using HopCounts = std::vector<std::vector<int64_t>>;
  std::tuple<Counts, Counts, HopCounts, HopCounts> sizes(const cpu::Subgraph& subgraph) const {
    Counts nodes, edges;
    HopCounts node_hops, edge_hops;
    for (int32_t t = 0; t < static_cast<int32_t>(subgraph.num_node_types()); ++t) {
      nodes.push_back(subgraph.nodes(t).size());
      node_hops.push_back(subgraph.nodes_per_hop(t));
    }
    for (int32_t r = 0; r < static_cast<int32_t>(subgraph.num_relations()); ++r) {
      const cpu::EdgeList& list = subgraph.edges(r);
      edges.push_back(list.sources.size());
      Counts& hops = edge_hops.emplace_back();
      for (const cpu::EdgeList::Hop& hop : list.hops) hops.push_back(hop.num_edges);
    }
    return {std::move(nodes), std::move(edges), std::move(node_hops), std::move(edge_hops)};
  }

  void write(const cpu::Subgraph& subgraph, const std::vector<Ids>& nodes,
             const std::vector<Ends>& ends, const std::vector<std::optional<Ids>>& edges,
             const std::optional<std::vector<Ids>>& trees) const {
    const int64_t entries = checked_entries(subgraph, nodes, ends, edges, trees);
    const ReleaseGil release(entries * static_cast<int64_t>(sizeof(int64_t)));
    for (std::size_t t = 0; t < nodes.size(); ++t) {
      const cpu::NodeSet& set = subgraph.nodes(static_cast<int32_t>(t));
      const int64_t* keys = set.keys();
      for (int64_t i = 0; i < set.size(); ++i) nodes[t].data()[i] = set.id_of(keys[i]);
      for (int64_t i = 0; trees.has_value() && i < set.size(); ++i) {
        (*trees)[t].data()[i] = set.tree_of(keys[i]);
      }
    }
    for (std::size_t r = 0; r < ends.size(); ++r) {
      const cpu::EdgeList& list = subgraph.edges(static_cast<int32_t>(r));
      int64_t* first = ends[r].data();
      int64_t* second = first + list.sources.size();
      list.write_endpoints(backward_ ? second : first, backward_ ? first : second);
      if (edges[r].has_value()) write_edges(r, list, edges[r]->data());
    }
  }

 private:
  // Checks that all arrays fit, and returns how many entries they have together.
  int64_t checked_entries(const cpu::Subgraph& subgraph, const std::vector<Ids>& nodes,
                          const std::vector<Ends>& ends,
                          const std::vector<std::optional<Ids>>& edges,
                          const std::optional<std::vector<Ids>>& trees) const {
    check_count(nodes.size(), subgraph.num_node_types(), "nodes");
    check_count(ends.size(), subgraph.num_relations(), "ends");
    check_count(edges.size(), subgraph.num_relations(), "edges");
    check_count(edge_names_.size(), subgraph.num_relations(), "edge_names");
    if (trees.has_value()) check_count(trees->size(), subgraph.num_node_types(), "trees");
    int64_t entries = 0;
    for (int32_t t = 0; t < static_cast<int32_t>(nodes.size()); ++t) {
      const auto place = static_cast<std::size_t>(t);
      check_size(nodes[place], subgraph.nodes(t).size(), "nodes", t);
      if (trees.has_value()) check_size((*trees)[place], subgraph.nodes(t).size(), "trees", t);
      entries += subgraph.nodes(t).size();
    }
    for (int32_t r = 0; r < static_cast<int32_t>(ends.size()); ++r) {
      const auto place = static_cast<std::size_t>(r);
      const cpu::EdgeList& list = subgraph.edges(r);
      check_size(ends[place], list.sources.size(), "ends", r);
      if (edges[place].has_value()) {
        if (!subgraph.with_edges()) throw nb::value_error("edges were not recorded");
        check_size(*edges[place], list.edges.size(), "edges", r);
      }
      entries += 3 * list.sources.size();
    }
    return entries;
  }

  void write_edges(std::size_t relation, const cpu::EdgeList& list, int64_t* out) const {
    const int64_t count = list.edges.size();
    const auto& names = edge_names_[relation];
    if (!names.has_value()) {
      std::copy_n(list.edges.data(), count, out);
      return;
    }
    const cpu::RowTable table{static_cast<const char*>(names->data()), length(*names),
                              row_bytes_of(*names)};
    const cpu::RowTarget target{reinterpret_cast<char*>(out), count, nullptr};
    const int64_t* ids = list.edges.data();
    const int64_t bad = table.row_bytes == sizeof(int32_t)
                            ? cpu::gather_widened(table, ids, count, target, 1)
                            : cpu::gather_rows(table, ids, count, target, 1);
    if (bad >= 0) {
      throw std::out_of_range("edge " + std::to_string(list.edges[bad]) + " of type " +
                              std::to_string(relation) + " has no name: there are " +
                              std::to_string(length(*names)));
    }
  }

  std::vector<std::optional<InArray>> edge_names_;
  bool backward_;
};

}  // namespace

void bind_subgraph_output(nb::module_& m) {
  nb::class_<SubgraphOutput>(m, "SubgraphOutput", R"(Writes drawn subgraphs to arrays.

Args:
    edge_names: for each edge type, [num_edges] int32 or int64, the id of the edge at each position;
        None: its position.
    backward: neighbours were drawn along the edges: sources and destinations are exchanged.)")
      .def(nb::init<std::vector<std::optional<InArray>>, bool>(), nb::arg("edge_names"),
           nb::arg("backward") = false)
      .def("sizes", &SubgraphOutput::sizes, nb::arg("subgraph"),
           "Number of nodes of each type, of edges of each type, and both by hop.")
      .def("write", &SubgraphOutput::write, nb::arg("subgraph"), nb::arg("nodes").noconvert(),
           nb::arg("ends").noconvert(), nb::arg("edges").noconvert(),
           nb::arg("trees").noconvert().none() = nb::none(),
           R"(Fills an int64 array for each type.

Args:
    subgraph: what was drawn.
    nodes: [num_nodes] ids.
    ends: [2, num_edges] numbers of sources and destinations.
    edges: [num_edges] names of edges, or None where they are not wanted.
    trees: [num_nodes] the tree of each node, if they are wanted.

Raises:
    IndexError: an edge without a name; arrays are then partly written.
    ValueError: arrays of other sizes, or edges that were not recorded.)");
}

}  // namespace khop::bindings
