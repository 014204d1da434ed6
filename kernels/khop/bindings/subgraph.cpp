#include "khop/cpu/subgraph.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <type_traits>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/csr.hpp"
#include "khop/bindings/hop_options.hpp"

namespace khop::bindings {
namespace {

constexpr const char* kSubgraphDoc =
    R"(A batch's subgraph while it is drawn, reused batch after batch.

Nodes are numbered per node type in the order of first appearance, seeds first (duplicate seeds keep
a number each and are found under the first).

Args:
    num_nodes: number of nodes of each node type (bounds the ids).
    relations: (source node type, destination node type) of each edge type; destinations are the
        nodes whose neighbours are drawn.
    with_edges: record the position of each drawn edge.
    disjoint: give each seed a tree of its own: nodes are the same only within a tree.)";

constexpr int64_t kIdBytes = sizeof(int64_t);

template <class T>
int64_t length_of(const In<T>& array) {
  return static_cast<int64_t>(array.shape(0));
}

void add_seeds(cpu::Subgraph& self, int64_t type, const In<int64_t>& ids,
               const std::optional<In<int64_t>>& times) {
  const int32_t t = checked(type, self.num_node_types(), "node type");
  if (times.has_value()) check_length(length_of(*times), length_of(ids), "times");
  self.add_seeds(t, ids.data(), times.has_value() ? times->data() : nullptr, length_of(ids));
}

void exclude(cpu::Subgraph& self, int64_t relation, const In<int64_t>& rows,
             const In<int64_t>& neighbors) {
  const int32_t r = checked(relation, self.num_relations(), "edge type");
  check_length(length_of(neighbors), length_of(rows), "neighbors");
  self.exclude(r, rows.data(), neighbors.data(), length_of(rows));
}

void hop(cpu::Subgraph& self, int64_t relation, const Csr& graph, const HopOptions& options) {
  const int32_t r = checked(relation, self.num_relations(), "edge type");
  nb::gil_scoped_release release;
  graph.visit([&](const auto& view) { self.hop(r, view, options); });
}

// A list may hold None where a graph should be.
void check_graphs(const std::vector<const Csr*>& graphs) {
  for (const Csr* graph : graphs) {
    if (graph == nullptr) throw nb::type_error("graphs must hold a Csr for each edge type");
  }
}

// Draws all hops over all edge types. hop(relation, options) draws one.
template <class Hop>
void sample_hops(cpu::Subgraph& self, const HopTable& hops, uint64_t run_key, uint64_t batch,
                 bool all, Hop&& hop) {
  const std::size_t count = self.num_relations();
  const std::size_t num_hops = hops.empty() ? 0 : hops[0].size();
  nb::gil_scoped_release release;
  for (std::size_t h = 0; h < num_hops; ++h) {
    for (std::size_t r = 0; r < count; ++r) {
      const auto relation = static_cast<int32_t>(r);
      HopOptions options =
          hops[r][h].at({run_key, batch, static_cast<uint32_t>(h), static_cast<uint32_t>(r),
                         static_cast<uint32_t>(self.relation(relation).source)});
      hop(relation, options);
    }
    self.end_hop(all);
  }
}

void sample(cpu::Subgraph& self, const std::vector<const Csr*>& graphs, const HopTable& hops,
            uint64_t run_key, uint64_t batch, bool all) {
  check_hops(hops, self.num_relations());
  if (graphs.size() != self.num_relations()) {
    throw nb::value_error("there must be a graph and the options of all hops for each edge type");
  }
  check_graphs(graphs);
  sample_hops(self, hops, run_key, batch, all, [&](int32_t relation, HopOptions options) {
    const Csr& graph = *graphs[static_cast<std::size_t>(relation)];
    options.last &= graph.has_times();
    graph.visit([&](const auto& view) { self.hop(relation, view, options); });
  });
}

// Parts of an edge type, of the same types of integers, in the order of their rows.
using Parts = std::vector<const Csr*>;

void check_parts(const Parts& parts) {
  check_graphs(parts);
  if (parts.empty()) throw nb::value_error("an edge type needs a part");
  for (std::size_t p = 1; p < parts.size(); ++p) {
    if (parts[p]->first_row() != parts[p - 1]->first_row() + parts[p - 1]->num_rows()) {
      throw nb::value_error("the rows of a part must begin where those of the part before end");
    }
    if (parts[p]->widths() != parts[0]->widths() ||
        parts[p]->has_times() != parts[0]->has_times()) {
      throw nb::type_error("parts must have arrays of the same types");
    }
  }
}

void sample_parts(cpu::Subgraph& self, const std::vector<Parts>& graphs, const HopTable& hops,
                  uint64_t run_key, uint64_t batch, bool all) {
  check_hops(hops, self.num_relations());
  if (graphs.size() != self.num_relations()) {
    throw nb::value_error("there must be parts and the options of all hops for each edge type");
  }
  for (const Parts& parts : graphs) check_parts(parts);
  sample_hops(self, hops, run_key, batch, all, [&](int32_t relation, HopOptions options) {
    const Parts& parts = graphs[static_cast<std::size_t>(relation)];
    options.last &= parts[0]->has_times();
    parts[0]->visit([&](const auto& first) {
      std::vector<std::decay_t<decltype(first)>> views;
      for (const Csr* part : parts) {
        part->visit([&](const auto& view) {
          if constexpr (std::is_same_v<decltype(view), decltype(first)>) views.push_back(view);
        });
      }
      self.hop(relation, views, options);
    });
  });
}

using ReplyArrays = std::tuple<InArray, InArray, std::optional<InArray>>;

// The parts of a reply that do not depend on the type of its neighbours.
template <class Col>
cpu::OwnerReply<Col> reply_of(const ReplyArrays& arrays, const Col* columns, bool with_edges) {
  const auto& [counts, neighbors, edges] = arrays;
  if (!is_type<int32_t>(counts) || counts.ndim() != 1) {
    throw nb::type_error("a reply's counts must be a vector of int32");
  }
  const int64_t* edge_data = nullptr;
  if (with_edges) {
    if (!edges.has_value() || !is_type<int64_t>(*edges) || edges->ndim() != 1 ||
        length(*edges) != length(neighbors)) {
      throw nb::value_error("a reply must hold an int64 edge for each neighbour");
    }
    edge_data = static_cast<const int64_t*>(edges->data());
  }
  return {static_cast<const int32_t*>(counts.data()), length(counts), columns, length(neighbors),
          edge_data};
}

template <class Col>
void merge_typed(cpu::Subgraph& self, int32_t relation, const In<int32_t>& owners,
                 const std::vector<ReplyArrays>& arrays) {
  std::vector<cpu::OwnerReply<Col>> replies;
  std::vector<cpu::Buffer<Col>> widened(arrays.size());
  for (std::size_t p = 0; p < arrays.size(); ++p) {
    const InArray& neighbors = std::get<1>(arrays[p]);
    const Col* columns = visit_ints(neighbors, "a reply's neighbours", [&](auto* data) {
      using Got = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
      if constexpr (std::is_same_v<Got, Col>) {
        return data;
      } else {
        Col* copy = widened[p].extend(length(neighbors));
        for (int64_t j = 0; j < length(neighbors); ++j) copy[j] = static_cast<Col>(data[j]);
        return static_cast<const Col*>(copy);
      }
    });
    replies.push_back(reply_of(arrays[p], columns, self.with_edges()));
  }
  nb::gil_scoped_release release;
  self.merge(relation, owners.data(), replies);
}

void merge(cpu::Subgraph& self, int64_t relation, const In<int32_t>& owners,
           const std::vector<ReplyArrays>& replies) {
  const int32_t r = checked(relation, self.num_relations(), "edge type");
  const cpu::Frontier frontier = self.frontier(self.relation(r).destination);
  check_length(length_of(owners), frontier.end - frontier.begin, "owners");
  bool wide = false;
  for (const auto& reply : replies) wide |= is_type<int64_t>(std::get<1>(reply));
  wide ? merge_typed<int64_t>(self, r, owners, replies)
       : merge_typed<int32_t>(self, r, owners, replies);
}

void induce(cpu::Subgraph& self, const std::vector<const Csr*>& graphs) {
  if (graphs.size() != self.num_relations()) {
    throw nb::value_error("there must be a graph for each edge type");
  }
  check_graphs(graphs);
  nb::gil_scoped_release release;
  for (std::size_t r = 0; r < graphs.size(); ++r) {
    graphs[r]->visit([&](const auto& view) { self.induce(static_cast<int32_t>(r), view); });
  }
}

void merge_induced(cpu::Subgraph& self, int64_t relation, const In<int32_t>& owners,
                   const std::vector<ReplyArrays>& arrays) {
  const int32_t r = checked(relation, self.num_relations(), "edge type");
  check_length(length_of(owners), self.nodes(self.relation(r).destination).size(), "owners");
  std::vector<cpu::OwnerReply<int32_t>> replies;
  for (const ReplyArrays& reply : arrays) {
    const InArray& numbers = std::get<1>(reply);
    if (!is_type<int32_t>(numbers) || numbers.ndim() != 1) {
      throw nb::type_error("a reply's members must be a vector of int32");
    }
    replies.push_back(
        reply_of(reply, static_cast<const int32_t*>(numbers.data()), self.with_edges()));
  }
  nb::gil_scoped_release release;
  self.merge_induced(r, owners.data(), replies);
}

void add_reverses(cpu::Subgraph& self,
                  const std::vector<std::tuple<int32_t, int32_t, bool>>& reversals,
                  bool keep_edges) {
  std::vector<Reversal> checked_ones;
  for (const auto& [relation, reverse, mirror] : reversals) {
    checked_ones.push_back({checked(relation, self.num_relations(), "edge type"),
                            checked(reverse, self.num_relations(), "edge type"), mirror});
  }
  nb::gil_scoped_release release;
  self.add_reverses(checked_ones, keep_edges);
}

nb::tuple members_of(const cpu::Subgraph& self, int32_t type, int64_t begin, int64_t end) {
  cpu::Subgraph::Members members = self.members(type, begin, end);
  nb::object trees = nb::none();
  nb::object times = nb::none();
  if (self.disjoint()) {
    trees = nb::cast(to_numpy(std::move(members.trees)));
    if (self.frontier(type).tree_times != nullptr) {
      times = nb::cast(to_numpy(std::move(members.times)));
    }
  }
  return nb::make_tuple(to_numpy(std::move(members.ids)), trees, times);
}

nb::tuple frontier_of(const cpu::Subgraph& self, int64_t type) {
  const int32_t t = checked(type, self.num_node_types(), "node type");
  const cpu::Frontier frontier = self.frontier(t);
  return members_of(self, t, frontier.begin, frontier.end);
}

nb::tuple all_members(const cpu::Subgraph& self, int64_t type) {
  const int32_t t = checked(type, self.num_node_types(), "node type");
  return members_of(self, t, 0, self.nodes(t).size());
}

NumpyArray<int64_t> keys_of(const cpu::Subgraph& self, int64_t type) {
  const cpu::NodeSet& nodes = self.nodes(checked(type, self.num_node_types(), "node type"));
  cpu::Buffer<int64_t> keys(nodes.size());
  if (nodes.size() > 0) std::copy_n(nodes.keys(), nodes.size(), keys.data());
  return to_numpy(std::move(keys));
}

void write_nodes(const cpu::Subgraph& self, int64_t type, const Out<int64_t>& out) {
  const cpu::NodeSet& nodes = self.nodes(checked(type, self.num_node_types(), "node type"));
  check_length(static_cast<int64_t>(out.shape(0)), nodes.size(), "out");
  const ReleaseGil release(nodes.size() * kIdBytes);
  const int64_t* keys = nodes.keys();
  for (int64_t i = 0; i < nodes.size(); ++i) out.data()[i] = nodes.id_of(keys[i]);
}

void write_trees(const cpu::Subgraph& self, int64_t type, const Out<int64_t>& out) {
  const cpu::NodeSet& nodes = self.nodes(checked(type, self.num_node_types(), "node type"));
  check_length(static_cast<int64_t>(out.shape(0)), nodes.size(), "out");
  const ReleaseGil release(nodes.size() * kIdBytes);
  const int64_t* keys = nodes.keys();
  for (int64_t i = 0; i < nodes.size(); ++i) out.data()[i] = nodes.tree_of(keys[i]);
}

void write_edge_index(const cpu::Subgraph& self, int64_t relation, const Out<int64_t>& row,
                      const Out<int64_t>& col) {
  const cpu::EdgeList& edges = self.edges(checked(relation, self.num_relations(), "edge type"));
  check_length(static_cast<int64_t>(row.shape(0)), edges.sources.size(), "row");
  check_length(static_cast<int64_t>(col.shape(0)), edges.sources.size(), "col");
  const ReleaseGil release(2 * edges.sources.size() * kIdBytes);
  edges.write_endpoints(row.data(), col.data());
}

void write_edges(const cpu::Subgraph& self, int64_t relation, const Out<int64_t>& out) {
  const cpu::EdgeList& edges = self.edges(checked(relation, self.num_relations(), "edge type"));
  if (!self.with_edges()) throw nb::value_error("edges were not recorded: with_edges is False");
  check_length(static_cast<int64_t>(out.shape(0)), edges.edges.size(), "out");
  const ReleaseGil release(edges.edges.size() * kIdBytes);
  if (edges.edges.size() > 0) std::copy_n(edges.edges.data(), edges.edges.size(), out.data());
}

std::vector<int64_t> edges_per_hop(const cpu::Subgraph& self, int64_t relation) {
  std::vector<int64_t> counts;
  for (const auto& h : self.edges(checked(relation, self.num_relations(), "edge type")).hops) {
    counts.push_back(h.num_edges);
  }
  return counts;
}

}  // namespace

void bind_subgraph(nb::module_& m) {
  using Relations = std::vector<std::pair<int32_t, int32_t>>;
  // Engines attach a program's arrays to it, as `values`.
  nb::class_<cpu::Subgraph>(m, "Subgraph", nb::dynamic_attr(), kSubgraphDoc)
      .def(
          "__init__",
          [](cpu::Subgraph* self, const std::vector<int64_t>& num_nodes, const Relations& relations,
             bool with_edges, bool disjoint) {
            std::vector<Relation> typed;
            for (const auto& [source, destination] : relations)
              typed.push_back({source, destination});
            new (self) cpu::Subgraph(num_nodes, std::move(typed), with_edges, disjoint);
          },
          nb::arg("num_nodes"), nb::arg("relations"), nb::arg("with_edges"),
          nb::arg("disjoint") = false)
      .def("begin", &cpu::Subgraph::begin, "Starts a new batch.")
      .def("add_seeds", &add_seeds, nb::arg("node_type"), nb::arg("ids").noconvert(),
           nb::arg("times").noconvert().none() = nb::none(),
           "Adds seeds; with times, only what is not later is drawn for them.")
      .def("exclude", &exclude, nb::arg("relation"), nb::arg("rows").noconvert(),
           nb::arg("neighbors").noconvert(),
           "Keeps edges out of the batch, all that lead from a row to the neighbour beside it.")
      .def("hop", &hop, nb::arg("relation"), nb::arg("graph"), nb::arg("options"),
           "Draws the frontier's neighbours over one edge type from a graph that holds all rows.")
      .def("sample", &sample, nb::arg("graphs"), nb::arg("hops"), nb::arg("run_key"),
           nb::arg("batch"), nb::arg("all") = false,
           "Draws all hops over all edge types from graphs that hold all rows. hops[r][h] are the "
           "options of hop h over edge type r, whose keys follow from run_key and batch. With all, "
           "all nodes draw in each hop.")
      .def("sample_parts", &sample_parts, nb::arg("parts"), nb::arg("hops"), nb::arg("run_key"),
           nb::arg("batch"), nb::arg("all") = false,
           "As sample, from parts: parts[r] are the parts of edge type r in the order of their "
           "rows. Together they hold all rows.")
      .def("merge", &merge, nb::arg("relation"), nb::arg("owners").noconvert(), nb::arg("replies"),
           "Takes neighbours that owners drew: replies[p] = (counts, neighbors, edges or None).")
      .def("end_hop", &cpu::Subgraph::end_hop, nb::arg("all") = false,
           "Makes what the hop found the next frontier, or all nodes.")
      .def("induce", &induce, nb::arg("graphs"),
           "Replaces the edges by all edges among the batch's nodes.")
      .def("merge_induced", &merge_induced, nb::arg("relation"), nb::arg("owners").noconvert(),
           nb::arg("replies"),
           "As induce, of what owners found: replies[p] = (counts, numbers, edges or None).")
      .def("add_reverses", &add_reverses, nb::arg("reversals"), nb::arg("keep_edges"),
           "Adds the reverses of edges, for each (relation, reverse relation, mirror), coalesced.")
      .def("frontier", &frontier_of, nb::arg("node_type"),
           "The nodes whose neighbours the next hop draws: (ids, trees or None, times or None).")
      .def("members", &all_members, nb::arg("node_type"), "As frontier, all nodes of the batch.")
      .def("keys", &keys_of, nb::arg("node_type"), "Keys (tree and id) of the batch's nodes.")
      .def(
          "num_nodes",
          [](const cpu::Subgraph& self, int64_t type) {
            return self.nodes(checked(type, self.num_node_types(), "node type")).size();
          },
          nb::arg("node_type"))
      .def(
          "num_edges",
          [](const cpu::Subgraph& self, int64_t relation) {
            return self.edges(checked(relation, self.num_relations(), "edge type")).sources.size();
          },
          nb::arg("relation"))
      .def(
          "nodes_per_hop",
          [](const cpu::Subgraph& self, int64_t type) {
            return self.nodes_per_hop(checked(type, self.num_node_types(), "node type"));
          },
          nb::arg("node_type"), "Number of seeds, then of the nodes that each hop added.")
      .def("edges_per_hop", &edges_per_hop, nb::arg("relation"))
      .def("write_nodes", &write_nodes, nb::arg("node_type"), nb::arg("out").noconvert())
      .def("write_trees", &write_trees, nb::arg("node_type"), nb::arg("out").noconvert())
      .def("write_edge_index", &write_edge_index, nb::arg("relation"), nb::arg("row").noconvert(),
           nb::arg("col").noconvert())
      .def("write_edges", &write_edges, nb::arg("relation"), nb::arg("out").noconvert());
}

}  // namespace khop::bindings
