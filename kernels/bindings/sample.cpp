#include "sample.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "graph.hpp"
#include "hotness.hpp"
#include "subgraph.hpp"

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
    with_edges: record the position of each drawn edge.)";

int32_t checked(int64_t index, std::size_t count, const char* what) {
  if (index < 0 || index >= static_cast<int64_t>(count)) {
    throw nb::index_error((std::string("no such ") + what).c_str());
  }
  return static_cast<int32_t>(index);
}

void check_length(int64_t got, int64_t want, const char* name) {
  if (got != want) {
    throw nb::value_error((std::string(name) + " must hold " + std::to_string(want) +
                           " entries, but holds " + std::to_string(got))
                              .c_str());
  }
}

void hop(Subgraph& self, int64_t relation, const Csr& graph, int64_t fanout, bool replace,
         uint64_t key) {
  const int32_t r = checked(relation, self.num_relations(), "edge type");
  nb::gil_scoped_release release;
  graph.visit([&](const auto& view) { self.hop(r, view, HopSpec{fanout, replace, key}); });
}

using ReplyArrays = std::tuple<InArray, InArray, std::optional<InArray>>;

template <class Col>
void merge_typed(Subgraph& self, int32_t relation, const In<int32_t>& owners,
                 const std::vector<ReplyArrays>& arrays) {
  std::vector<OwnerReply<Col>> replies;
  std::vector<Buffer<Col>> widened(arrays.size());
  for (std::size_t p = 0; p < arrays.size(); ++p) {
    const auto& [counts, neighbors, edges] = arrays[p];
    if (!is_type<int32_t>(counts) || counts.ndim() != 1) {
      throw nb::type_error("a reply's counts must be a vector of int32");
    }
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
    const int64_t* edge_data = nullptr;
    if (self.with_edges()) {
      if (!edges.has_value() || !is_type<int64_t>(*edges) || edges->ndim() != 1 ||
          length(*edges) != length(neighbors)) {
        throw nb::value_error("a reply must hold an int64 edge for each neighbour");
      }
      edge_data = static_cast<const int64_t*>(edges->data());
    }
    replies.push_back({static_cast<const int32_t*>(counts.data()), length(counts), columns,
                       length(neighbors), edge_data});
  }
  nb::gil_scoped_release release;
  self.merge(relation, owners.data(), static_cast<int64_t>(owners.shape(0)), replies);
}

void merge(Subgraph& self, int64_t relation, const In<int32_t>& owners,
           const std::vector<ReplyArrays>& replies) {
  const int32_t r = checked(relation, self.num_relations(), "edge type");
  check_length(static_cast<int64_t>(owners.shape(0)), self.frontier_of_relation(r), "owners");
  bool wide = false;
  for (const auto& reply : replies) wide |= is_type<int64_t>(std::get<1>(reply));
  wide ? merge_typed<int64_t>(self, r, owners, replies)
       : merge_typed<int32_t>(self, r, owners, replies);
}

NumpyArray<int64_t> copy_of(const int64_t* data, int64_t count) {
  Buffer<int64_t> copy(count);
  if (count > 0) std::memcpy(copy.data(), data, static_cast<std::size_t>(count) * sizeof(int64_t));
  return to_numpy(std::move(copy));
}

void write_nodes(const Subgraph& self, int64_t type, const Out<int64_t>& out) {
  const NodeSet& nodes = self.nodes(checked(type, self.num_node_types(), "node type"));
  check_length(static_cast<int64_t>(out.shape(0)), nodes.size(), "out");
  nb::gil_scoped_release release;
  if (nodes.size() > 0) {
    std::memcpy(out.data(), nodes.nodes(),
                static_cast<std::size_t>(nodes.size()) * sizeof(int64_t));
  }
}

void write_edge_index(const Subgraph& self, int64_t relation, const Out<int64_t>& row,
                      const Out<int64_t>& col) {
  const EdgeList& edges = self.edges(checked(relation, self.num_relations(), "edge type"));
  check_length(static_cast<int64_t>(row.shape(0)), edges.sources.size(), "row");
  check_length(static_cast<int64_t>(col.shape(0)), edges.sources.size(), "col");
  nb::gil_scoped_release release;
  edges.write_endpoints(row.data(), col.data());
}

void write_edges(const Subgraph& self, int64_t relation, const Out<int64_t>& out) {
  const EdgeList& edges = self.edges(checked(relation, self.num_relations(), "edge type"));
  if (!self.with_edges()) throw nb::value_error("edges were not recorded: with_edges is False");
  check_length(static_cast<int64_t>(out.shape(0)), edges.edges.size(), "out");
  nb::gil_scoped_release release;
  if (edges.edges.size() > 0) {
    std::memcpy(out.data(), edges.edges.data(),
                static_cast<std::size_t>(edges.edges.size()) * sizeof(int64_t));
  }
}

std::vector<int64_t> edges_per_hop(const Subgraph& self, int64_t relation) {
  std::vector<int64_t> counts;
  for (const auto& h : self.edges(checked(relation, self.num_relations(), "edge type")).hops) {
    counts.push_back(h.num_edges);
  }
  return counts;
}

nb::tuple sample_rows_of(const Csr& graph, const In<int64_t>& ids, int64_t fanout, bool replace,
                         uint64_t key, bool with_edges) {
  return graph.visit([&](const auto& view) {
    using Col = std::remove_const_t<std::remove_pointer_t<decltype(view.indices)>>;
    DrawnRows<Col> drawn;
    {
      nb::gil_scoped_release release;
      sample_rows(view, ids.data(), static_cast<int64_t>(ids.shape(0)),
                  HopSpec{fanout, replace, key}, with_edges, drawn);
    }
    nb::object edges = nb::none();
    if (with_edges) edges = nb::cast(to_numpy(std::move(drawn.edges)));
    return nb::make_tuple(to_numpy(std::move(drawn.counts)), to_numpy(std::move(drawn.neighbors)),
                          edges);
  });
}

void add_hotness(const Csr& graph, const In<double>& frontier, int64_t fanout, bool replace,
                 const Out<double>& log_missed) {
  check_length(static_cast<int64_t>(frontier.shape(0)), graph.num_rows(), "frontier");
  nb::gil_scoped_release release;
  graph.visit([&](const auto& view) {
    accumulate_hotness(view, frontier.data(), fanout, replace, log_missed.data(),
                       static_cast<int64_t>(log_missed.shape(0)));
  });
}

}  // namespace

void bind_sample(nb::module_& m) {
  using Relations = std::vector<std::pair<int32_t, int32_t>>;
  nb::class_<Subgraph>(m, "Subgraph", kSubgraphDoc)
      .def(
          "__init__",
          [](Subgraph* self, const std::vector<int64_t>& num_nodes, const Relations& relations,
             bool with_edges) {
            std::vector<Subgraph::Relation> typed;
            for (const auto& [source, destination] : relations)
              typed.push_back({source, destination});
            new (self) Subgraph(num_nodes, std::move(typed), with_edges);
          },
          nb::arg("num_nodes"), nb::arg("relations"), nb::arg("with_edges"))
      .def("begin", &Subgraph::begin, "Starts a new batch.")
      .def(
          "add_seeds",
          [](Subgraph& self, int64_t type, const In<int64_t>& ids) {
            self.add_seeds(checked(type, self.num_node_types(), "node type"), ids.data(),
                           static_cast<int64_t>(ids.shape(0)));
          },
          nb::arg("node_type"), nb::arg("ids").noconvert())
      .def("hop", &hop, nb::arg("relation"), nb::arg("graph"), nb::arg("fanout"),
           nb::arg("replace"), nb::arg("key"),
           "Draws the frontier's neighbours over one edge type from a graph that holds all rows.")
      .def("merge", &merge, nb::arg("relation"), nb::arg("owners").noconvert(), nb::arg("replies"),
           "Takes neighbours that owners drew: replies[p] = (counts, neighbors, edges or None).")
      .def("end_hop", &Subgraph::end_hop, "Makes what the hop found the next frontier.")
      .def(
          "frontier",
          [](const Subgraph& self, int64_t type) {
            const int32_t t = checked(type, self.num_node_types(), "node type");
            const auto [begin, end] = self.frontier(t);
            return copy_of(self.nodes(t).nodes() + begin, end - begin);
          },
          nb::arg("node_type"), "Ids of the nodes whose neighbours the next hop draws.")
      .def(
          "num_nodes",
          [](const Subgraph& self, int64_t type) {
            return self.nodes(checked(type, self.num_node_types(), "node type")).size();
          },
          nb::arg("node_type"))
      .def(
          "num_edges",
          [](const Subgraph& self, int64_t relation) {
            return self.edges(checked(relation, self.num_relations(), "edge type")).sources.size();
          },
          nb::arg("relation"))
      .def(
          "nodes_per_hop",
          [](const Subgraph& self, int64_t type) {
            return self.nodes_per_hop(checked(type, self.num_node_types(), "node type"));
          },
          nb::arg("node_type"), "Number of seeds, then of the nodes that each hop added.")
      .def("edges_per_hop", &edges_per_hop, nb::arg("relation"))
      .def("write_nodes", &write_nodes, nb::arg("node_type"), nb::arg("out").noconvert())
      .def("write_edge_index", &write_edge_index, nb::arg("relation"), nb::arg("row").noconvert(),
           nb::arg("col").noconvert())
      .def("write_edges", &write_edges, nb::arg("relation"), nb::arg("out").noconvert());

  m.def("sample_rows", &sample_rows_of, nb::arg("graph"), nb::arg("ids").noconvert(),
        nb::arg("fanout"), nb::arg("replace"), nb::arg("key"), nb::arg("with_edges"),
        "Draws neighbours of rows: (counts int32, neighbors, edges int64 or None).");
  m.def("accumulate_hotness", &add_hotness, nb::arg("graph"), nb::arg("frontier").noconvert(),
        nb::arg("fanout"), nb::arg("replace"), nb::arg("log_missed").noconvert(),
        "Adds to log_missed[u] the log-probability that no row of the frontier draws u.");
}

}  // namespace khop::bindings
