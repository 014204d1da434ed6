#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "device_graph.hpp"

namespace khop::bindings {
namespace {

// Checks what Python hands over; the rest is the device's.
class PySubgraph {
 public:
  using Pairs = std::vector<std::pair<int32_t, int32_t>>;

  PySubgraph(std::shared_ptr<PyDevice> device, const std::vector<int64_t>& num_nodes,
             const Pairs& relations, bool with_edges, bool disjoint, int64_t room)
      : device_(std::move(device)),
        num_types_(num_nodes.size()),
        num_relations_(relations.size()),
        with_edges_(with_edges) {
    if (room < 1) throw nb::value_error("room must be at least 1");
    std::vector<DeviceRelation> typed;
    for (const auto& [source, destination] : relations) typed.push_back({source, destination});
    subgraph_ = (*device_)->make_subgraph(num_nodes, std::move(typed), with_edges, disjoint, room);
  }

  void begin() {
    subgraph_->begin();
    graphs_ = nb::list();
  }

  void add_seeds(int64_t type, const In<int64_t>& ids, const std::optional<In<int64_t>>& times) {
    if (times.has_value()) check_length(times->shape(0), ids.shape(0), "times");
    subgraph_->add_seeds(checked(type, num_types_, "node type"), ids.data(),
                         times.has_value() ? times->data() : nullptr,
                         static_cast<int64_t>(ids.shape(0)));
  }

  void exclude(int64_t relation, const In<int64_t>& rows, const In<int64_t>& neighbors) {
    check_length(neighbors.shape(0), rows.shape(0), "neighbors");
    subgraph_->exclude(checked(relation, num_relations_, "edge type"), rows.data(),
                       neighbors.data(), static_cast<int64_t>(rows.shape(0)));
  }

  void sample(const nb::list& graphs, const std::vector<std::vector<int64_t>>& fanouts,
              bool replace, const std::vector<bool>& weighted, bool last, uint64_t run_key,
              uint64_t batch, bool cuda_graph) {
    SamplePlan plan;
    plan.graphs = arrays_of(graphs);
    if (fanouts.size() < num_relations_ || weighted.size() < num_relations_) {
      throw nb::value_error(
          "there must be a graph, fan-outs and a weighted flag for each edge type");
    }
    for (const auto& hops : fanouts) {
      if (hops.size() != fanouts[0].size()) {
        throw nb::value_error("edge types differ in the number of hops");
      }
    }
    plan.fanouts = fanouts;
    plan.weighted = weighted;
    plan.replace = replace;
    plan.last = last;
    plan.run_key = run_key;
    plan.batch = batch;
    plan.as_graph = cuda_graph;
    graphs_ = graphs;
    nb::gil_scoped_release release;
    subgraph_->sample(std::move(plan));
  }

  void induce(const nb::list& graphs) {
    const std::vector<GraphArrays> arrays = arrays_of(graphs);
    nb::gil_scoped_release release;
    subgraph_->induce(arrays);
  }

  void add_reverses(const std::vector<std::tuple<int32_t, int32_t, bool>>& reversals,
                    bool keep_edges) {
    std::vector<Reversal> typed;
    for (const auto& [relation, reverse, mirror] : reversals) {
      typed.push_back({checked(relation, num_relations_, "edge type"),
                       checked(reverse, num_relations_, "edge type"), mirror});
    }
    nb::gil_scoped_release release;
    subgraph_->add_reverses(typed, keep_edges);
  }

  int64_t num_nodes(int64_t type) {
    return shape().num_nodes[static_cast<std::size_t>(checked(type, num_types_, "node type"))];
  }
  int64_t num_edges(int64_t relation) {
    return shape()
        .num_edges[static_cast<std::size_t>(checked(relation, num_relations_, "edge type"))];
  }
  std::vector<int64_t> nodes_per_hop(int64_t type) {
    return shape().nodes_per_hop[static_cast<std::size_t>(checked(type, num_types_, "node type"))];
  }
  std::vector<int64_t> edges_per_hop(int64_t relation) {
    return shape()
        .edges_per_hop[static_cast<std::size_t>(checked(relation, num_relations_, "edge type"))];
  }

  void write_nodes(int64_t type, const AnyOut& out) {
    int64_t* const data = checked_out(out, num_nodes(type), "out");
    subgraph_->write_nodes(static_cast<int32_t>(type), data);
  }
  void write_trees(int64_t type, const AnyOut& out) {
    int64_t* const data = checked_out(out, num_nodes(type), "out");
    subgraph_->write_trees(static_cast<int32_t>(type), data);
  }
  void write_edge_index(int64_t relation, const AnyOut& row, const AnyOut& col) {
    const int64_t count = num_edges(relation);
    int64_t* const rows = checked_out(row, count, "row");
    int64_t* const cols = checked_out(col, count, "col");
    subgraph_->write_edge_index(static_cast<int32_t>(relation), rows, cols);
  }
  void write_edges(int64_t relation, const AnyOut& out, const std::optional<AnyArray>& names) {
    if (!with_edges_) throw nb::value_error("edges were not recorded: with_edges is False");
    int64_t* const data = checked_out(out, num_edges(relation), "out");
    if (!names.has_value()) {
      subgraph_->write_edges(static_cast<int32_t>(relation), nullptr, 8, 0, data);
      return;
    }
    device_->check_place(*names, "names");
    visit_ints(*names, "names", [&](auto* typed) {
      subgraph_->write_edges(static_cast<int32_t>(relation), typed, sizeof(*typed),
                             static_cast<int64_t>(names->shape(0)), data);
      return 0;
    });
  }

 private:
  static int32_t checked(int64_t index, std::size_t count, const char* what) {
    if (index < 0 || index >= static_cast<int64_t>(count)) {
      throw nb::index_error((std::string("no such ") + what).c_str());
    }
    return static_cast<int32_t>(index);
  }

  static void check_length(std::size_t got, std::size_t want, const char* name) {
    if (got != want) {
      throw nb::value_error((std::string(name) + " must hold " + std::to_string(want) +
                             " entries, but holds " + std::to_string(got))
                                .c_str());
    }
  }

  const BatchShape& shape() {
    nb::gil_scoped_release release;
    return subgraph_->shape();
  }

  int64_t* checked_out(const AnyOut& out, int64_t want, const char* name) const {
    device_->check_place(out, name);
    if (out.ndim() != 1 || !is_type<int64_t>(out)) {
      throw nb::type_error((std::string(name) + " must be a vector of int64").c_str());
    }
    check_length(out.shape(0), static_cast<std::size_t>(want), name);
    return static_cast<int64_t*>(out.data());
  }

  std::vector<GraphArrays> arrays_of(const nb::list& graphs) const {
    if (nb::len(graphs) != num_relations_) {
      throw nb::value_error("there must be a graph for each edge type");
    }
    std::vector<GraphArrays> arrays;
    for (const nb::handle item : graphs) {
      if (!nb::isinstance<DeviceGraph>(item)) {
        throw nb::type_error("graphs must hold a DeviceGraph for each edge type");
      }
      const auto& graph = nb::cast<const DeviceGraph&>(item);
      // Several streams of one GPU may read the same graph.
      if (graph.device()->name() != (*device_)->name()) {
        throw nb::value_error("a graph belongs to another device than the subgraph");
      }
      arrays.push_back(graph.arrays_for(device_));
    }
    return arrays;
  }

  std::shared_ptr<PyDevice> device_;
  std::size_t num_types_;
  std::size_t num_relations_;
  bool with_edges_;
  std::unique_ptr<DeviceSubgraph> subgraph_;
  nb::list graphs_;  // those that are being drawn from
};

}  // namespace

void bind_device_graph(nb::module_& m);

void bind_device_subgraph(nb::module_& m) {
  bind_device_graph(m);
  nb::class_<PySubgraph>(m, "DeviceSubgraph", R"(A batch's subgraph while a device draws it.

As `Subgraph`, and equal to what it draws, bit for bit. Seeds and exclusions are NumPy arrays;
arrays to write to lie in the device's memory. `sample` waits for nothing; the first question after
it waits for the whole batch.

Args:
    device: the device.
    num_nodes, relations, with_edges, disjoint: as of `Subgraph`.
    room: entries of a batch (edges, nodes) that memory is taken for at once where fan-outs allow
        so many. Beyond, a batch that finds too little room is drawn again with more.)")
      .def(nb::init<std::shared_ptr<PyDevice>, const std::vector<int64_t>&,
                    const PySubgraph::Pairs&, bool, bool, int64_t>(),
           nb::arg("device"), nb::arg("num_nodes"), nb::arg("relations"), nb::arg("with_edges"),
           nb::arg("disjoint") = false, nb::arg("room") = int64_t{1} << 22)
      .def("begin", &PySubgraph::begin, "Starts a new batch.")
      .def("add_seeds", &PySubgraph::add_seeds, nb::arg("node_type"), nb::arg("ids").noconvert(),
           nb::arg("times").noconvert().none() = nb::none(),
           "Adds seeds; with times, only what is not later is drawn for them.")
      .def("exclude", &PySubgraph::exclude, nb::arg("relation"), nb::arg("rows").noconvert(),
           nb::arg("neighbors").noconvert(),
           "Keeps edges out of the batch, all that lead from a row to the neighbour beside it.")
      .def("sample", &PySubgraph::sample, nb::arg("graphs"), nb::arg("fanouts"), nb::arg("replace"),
           nb::arg("weighted"), nb::arg("last"), nb::arg("run_key"), nb::arg("batch"),
           nb::arg("cuda_graph") = false,
           R"(Draws all hops over all edge types. Waits for nothing.

With `cuda_graph`, the kernels of a batch are recorded once and played again for later batches of
the same graphs and fan-outs, of as many seeds or fewer.)")
      .def("induce", &PySubgraph::induce, nb::arg("graphs"),
           "Replaces the edges by all edges among the batch's nodes. Waits twice an edge type.")
      .def("add_reverses", &PySubgraph::add_reverses, nb::arg("reversals"), nb::arg("keep_edges"),
           "Adds the reverses of edges, for each (relation, reverse relation, mirror), coalesced.")
      .def("num_nodes", &PySubgraph::num_nodes, nb::arg("node_type"))
      .def("num_edges", &PySubgraph::num_edges, nb::arg("relation"))
      .def("nodes_per_hop", &PySubgraph::nodes_per_hop, nb::arg("node_type"),
           "Number of seeds, then of the nodes that each hop added.")
      .def("edges_per_hop", &PySubgraph::edges_per_hop, nb::arg("relation"))
      .def("write_nodes", &PySubgraph::write_nodes, nb::arg("node_type"),
           nb::arg("out").noconvert())
      .def("write_trees", &PySubgraph::write_trees, nb::arg("node_type"),
           nb::arg("out").noconvert())
      .def("write_edge_index", &PySubgraph::write_edge_index, nb::arg("relation"),
           nb::arg("row").noconvert(), nb::arg("col").noconvert())
      .def("write_edges", &PySubgraph::write_edges, nb::arg("relation"), nb::arg("out").noconvert(),
           nb::arg("names").none() = nb::none(),
           "Positions of the edges in the graph, or their names: [num_edges] on the device.");
}

}  // namespace khop::bindings
