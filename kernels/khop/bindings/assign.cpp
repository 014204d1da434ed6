#include "khop/cpu/assign.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

template <class T>
using InMatrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using OutMatrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// An undirected graph whose arrays belong to NumPy.
struct Graph {
  In<int64_t> indptr;
  InArray indices;
  In<int32_t> weights;

  int64_t num_nodes() const { return static_cast<int64_t>(indptr.shape(0)) - 1; }
  template <class Col>
  cpu::UndirectedView<Col> view() const {
    return {indptr.data(), static_cast<const Col*>(indices.data()), weights.data(), num_nodes()};
  }
};

// Calls f with a view of a graph: rows lie within its arrays, and neighbours exist.
template <class F>
decltype(auto) visit(const Graph& graph, F&& f) {
  const int64_t num_nodes = graph.num_nodes();
  if (num_nodes < 0) throw nb::value_error("indptr must have an entry more than there are nodes");
  return visit_ints(graph.indices, "indices", [&](auto* data) {
    using Col = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    const cpu::UndirectedView<Col> view = graph.view<Col>();
    const int64_t num_entries = length(graph.indices);
    bool sound = static_cast<int64_t>(graph.weights.shape(0)) == num_entries &&
                 view.indptr[0] == 0 && view.indptr[num_nodes] == num_entries;
    for (int64_t v = 0; v < num_nodes && sound; ++v) sound = view.indptr[v] <= view.indptr[v + 1];
    for (int64_t e = 0; e < num_entries && sound; ++e) {
      sound = view.indices[e] >= 0 && view.indices[e] < num_nodes && view.weights[e] >= 0;
    }
    if (!sound) throw nb::value_error("the graph's rows or neighbours are corrupt");
    return f(view);
  });
}

template <class Col>
nb::tuple to_tuple(cpu::UndirectedGraph<Col>&& graph) {
  return nb::make_tuple(to_numpy(std::move(graph.indptr)), to_numpy(std::move(graph.indices)),
                        to_numpy(std::move(graph.weights)));
}

nb::tuple undirected_of(const InArray& indptr, const InArray& indices) {
  return visit_ints(indptr, "indptr", [&](auto* pointers) {
    return visit_ints(indices, "indices", [&](auto* columns) {
      using Col = std::remove_const_t<std::remove_pointer_t<decltype(columns)>>;
      const int64_t num_nodes = length(indptr) - 1;
      bool sound = num_nodes >= 0 && pointers[0] == 0 && pointers[num_nodes] == length(indices);
      for (int64_t v = 0; v < num_nodes && sound; ++v) sound = pointers[v] <= pointers[v + 1];
      if (!sound) throw nb::value_error("indptr does not fit indices");
      cpu::UndirectedGraph<Col> out;
      {
        nb::gil_scoped_release release;
        cpu::undirected(pointers, columns, num_nodes, out);
      }
      return to_tuple(std::move(out));
    });
  });
}

cpu::AssignScore score_of(const std::string& name) {
  if (name == "ldg") return cpu::AssignScore::kLdg;
  if (name == "fennel") return cpu::AssignScore::kFennel;
  if (name == "cut") return cpu::AssignScore::kCut;
  throw nb::value_error(("no such score '" + name + "'").c_str());
}

void check_order(const In<int64_t>& order, int64_t num_nodes) {
  const bool sound = std::all_of(order.data(), order.data() + order.shape(0),
                                 [=](int64_t v) { return v >= 0 && v < num_nodes; });
  if (!sound) throw nb::value_error("order names a node that does not exist");
}

int64_t assign_pass(const Graph& graph, const In<int64_t>& order, const InMatrix<int32_t>& weights,
                    const InMatrix<int64_t>& capacities, const OutMatrix<int64_t>& loads,
                    const Out<int32_t>& labels, const std::string& score) {
  const cpu::AssignScore kind = score_of(score);
  const auto num_nodes = static_cast<std::size_t>(graph.num_nodes());
  const std::size_t num_parts = capacities.shape(1);
  if (weights.shape(1) != num_nodes || labels.shape(0) != num_nodes ||
      capacities.shape(0) != weights.shape(0) || loads.shape(0) != weights.shape(0) ||
      loads.shape(1) != num_parts || num_parts < 1 || num_parts > 4096) {
    throw nb::value_error("weights, capacities, loads and labels do not fit each other");
  }
  const auto is_bad = [=](int32_t p) { return p < 0 || p > static_cast<int32_t>(num_parts); };
  if (std::any_of(labels.data(), labels.data() + num_nodes, is_bad) ||
      std::any_of(weights.data(), weights.data() + weights.size(),
                  [](int32_t w) { return w < 0; })) {
    throw nb::value_error("a label is no part, or a weight is below 0");
  }
  check_order(order, graph.num_nodes());
  const cpu::Constraints constraints{weights.data(), capacities.data(), loads.data(),
                                     static_cast<int64_t>(weights.shape(0)),
                                     static_cast<int32_t>(num_parts)};
  return visit(graph, [&](const auto& view) {
    nb::gil_scoped_release release;
    return cpu::assign_pass(view, order.data(), static_cast<int64_t>(order.shape(0)), constraints,
                            kind, labels.data());
  });
}

int64_t cluster_pass(const Graph& graph, const In<int64_t>& order, const In<int32_t>& weights,
                     int64_t limit, const OutArray& labels, const Out<int64_t>& loads) {
  const auto num_nodes = static_cast<std::size_t>(graph.num_nodes());
  if (weights.shape(0) != num_nodes || loads.shape(0) != num_nodes ||
      static_cast<std::size_t>(length(labels)) != num_nodes ||
      labels.dtype() != graph.indices.dtype()) {
    throw nb::value_error("weights, loads and labels do not fit the graph");
  }
  check_order(order, graph.num_nodes());
  return visit(graph, [&](const auto& view) {
    using Col = std::remove_const_t<std::remove_pointer_t<decltype(view.indices)>>;
    auto* const of = static_cast<Col*>(labels.data());
    if (std::any_of(of, of + num_nodes, [&](Col c) { return c < 0 || c >= view.num_nodes; })) {
      throw nb::value_error("a label is no cluster");
    }
    nb::gil_scoped_release release;
    return cpu::cluster_pass(view, order.data(), static_cast<int64_t>(order.shape(0)),
                             weights.data(), limit, of, loads.data());
  });
}

nb::tuple contract_of(const Graph& graph, const InArray& labels, int64_t num_clusters) {
  if (length(labels) != graph.num_nodes() || labels.dtype() != graph.indices.dtype()) {
    throw nb::value_error("labels do not fit the graph");
  }
  return visit(graph, [&](const auto& view) {
    using Col = std::remove_const_t<std::remove_pointer_t<decltype(view.indices)>>;
    const auto* const of = static_cast<const Col*>(labels.data());
    if (num_clusters < 0 ||
        std::any_of(of, of + view.num_nodes, [=](Col c) { return c < 0 || c >= num_clusters; })) {
      throw nb::value_error("a label is no cluster");
    }
    cpu::UndirectedGraph<Col> out;
    {
      nb::gil_scoped_release release;
      cpu::contract(view, of, num_clusters, out);
    }
    return to_tuple(std::move(out));
  });
}

}  // namespace

void bind_assign(nb::module_& m) {
  m.def("undirected", &undirected_of, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
        "(indptr, indices, weights) of an undirected graph, from rows that have both directions of "
        "each edge: ascending, parallel edges added up, self loops dropped.");
  nb::class_<Graph>(m, "UndirectedGraph", "An undirected graph, as `undirected` returns it.")
      .def(
          "__init__",
          [](Graph* self, const In<int64_t>& indptr, const InArray& indices,
             const In<int32_t>& weights) { new (self) Graph{indptr, indices, weights}; },
          nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
          nb::arg("weights").noconvert())
      .def("assign_pass", &assign_pass, nb::arg("order").noconvert(),
           nb::arg("weights").noconvert(), nb::arg("capacities").noconvert(),
           nb::arg("loads").noconvert(), nb::arg("labels").noconvert(), nb::arg("score"),
           "Puts the nodes in `order`, one after the other, into parts; returns how many moved.")
      .def("cluster_pass", &cluster_pass, nb::arg("order").noconvert(),
           nb::arg("weights").noconvert(), nb::arg("limit"), nb::arg("labels").noconvert(),
           nb::arg("loads").noconvert(),
           "Lets each node of `order` join a cluster of its neighbours; returns how many moved.")
      .def("contract", &contract_of, nb::arg("labels").noconvert(), nb::arg("num_clusters"),
           "The graph of clusters, as `undirected` returns one.");
}

}  // namespace khop::bindings
