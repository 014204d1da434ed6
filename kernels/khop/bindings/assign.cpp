#include "khop/cpu/assign.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

template <class T>
using InMatrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using OutMatrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Rows of an undirected graph; their arrays belong to NumPy.
struct Rows {
  int64_t first_node;
  In<int64_t> indptr;
  InArray indices;
  In<int32_t> weights;
};

// Calls f with a view of rows: they lie within their arrays, and neighbours are below `num_nodes`,
// as are all nodes of `order`, which have their rows here.
template <class F>
decltype(auto) visit(const Rows& rows, const In<int64_t>& order, int64_t num_nodes, F&& f) {
  const int64_t num_rows = static_cast<int64_t>(rows.indptr.shape(0)) - 1;
  if (num_rows < 0 || rows.first_node < 0 || rows.first_node > num_nodes - num_rows) {
    throw nb::value_error("the rows are not those of the graph's nodes");
  }
  const bool exist = std::all_of(order.data(), order.data() + order.shape(0), [&](int64_t v) {
    return v >= rows.first_node && v < rows.first_node + num_rows;
  });
  if (!exist) throw nb::value_error("order names a node that has no row");
  return visit_ints(rows.indices, "indices", [&](auto* data) {
    using Col = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    const int64_t num_entries = length(rows.indices);
    const int64_t* indptr = rows.indptr.data();
    bool sound = static_cast<int64_t>(rows.weights.shape(0)) == num_entries && indptr[0] == 0 &&
                 indptr[num_rows] == num_entries;
    for (int64_t v = 0; v < num_rows && sound; ++v) sound = indptr[v] <= indptr[v + 1];
    for (int64_t e = 0; e < num_entries && sound; ++e) {
      sound = data[e] >= 0 && data[e] < num_nodes && rows.weights.data()[e] >= 0;
    }
    if (!sound) throw nb::value_error("the graph's rows or neighbours are corrupt");
    return f(
        cpu::UndirectedRows<Col>{rows.first_node, num_rows, indptr, data, rows.weights.data()});
  });
}

template <class Col>
nb::tuple to_tuple(cpu::UndirectedGraph<Col>&& graph) {
  return nb::make_tuple(to_numpy(std::move(graph.indptr)), to_numpy(std::move(graph.indices)),
                        to_numpy(std::move(graph.weights)));
}

nb::tuple undirected_of(const InArray& indptr, const InArray& indices, int64_t first_node) {
  return visit_ints(indptr, "indptr", [&](auto* pointers) {
    return visit_ints(indices, "indices", [&](auto* columns) {
      using Col = std::remove_const_t<std::remove_pointer_t<decltype(columns)>>;
      const int64_t num_rows = length(indptr) - 1;
      check_first(first_node, std::max(num_rows, int64_t{0}), "first_node");
      bool sound = num_rows >= 0 && pointers[0] == 0 && pointers[num_rows] == length(indices);
      for (int64_t v = 0; v < num_rows && sound; ++v) sound = pointers[v] <= pointers[v + 1];
      if (!sound) throw nb::value_error("indptr does not fit indices");
      cpu::UndirectedGraph<Col> out;
      {
        nb::gil_scoped_release release;
        cpu::undirected(pointers, columns, first_node, num_rows, out);
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

// A pass that puts nodes into parts. What it writes to is checked once: other threads leave it
// alone.
class AssignPass {
 public:
  AssignPass(const InMatrix<int32_t>& weights, const InMatrix<int64_t>& capacities,
             const OutMatrix<int64_t>& loads, const Out<int32_t>& labels, const std::string& score,
             int64_t num_edges)
      : weights_(weights),
        capacities_(capacities),
        loads_(loads),
        labels_(labels),
        scores_(checked(), score_of(score), static_cast<double>(num_edges)) {}

  int64_t visit(const Rows& rows, const In<int64_t>& order) {
    return bindings::visit(rows, order, num_nodes(), [&](const auto& view) {
      nb::gil_scoped_release release;
      return cpu::assign_nodes(view, order.data(), static_cast<int64_t>(order.shape(0)), scores_,
                               labels_.data());
    });
  }

 private:
  int64_t num_nodes() const { return static_cast<int64_t>(labels_.shape(0)); }

  cpu::Constraints checked() const {
    const std::size_t num_parts = capacities_.shape(1);
    if (weights_.shape(1) != labels_.shape(0) || capacities_.shape(0) != weights_.shape(0) ||
        loads_.shape(0) != weights_.shape(0) || loads_.shape(1) != num_parts || num_parts < 1 ||
        num_parts > 4096) {
      throw nb::value_error("weights, capacities, loads and labels do not fit each other");
    }
    const auto is_bad = [=](int32_t p) { return p < 0 || p > static_cast<int32_t>(num_parts); };
    if (std::any_of(labels_.data(), labels_.data() + labels_.shape(0), is_bad) ||
        std::any_of(weights_.data(), weights_.data() + weights_.size(),
                    [](int32_t w) { return w < 0; })) {
      throw nb::value_error("a label is no part, or a weight is below 0");
    }
    return {weights_.data(),
            capacities_.data(),
            loads_.data(),
            static_cast<int64_t>(weights_.shape(0)),
            static_cast<int32_t>(num_parts),
            num_nodes()};
  }

  InMatrix<int32_t> weights_;
  InMatrix<int64_t> capacities_;
  OutMatrix<int64_t> loads_;
  Out<int32_t> labels_;
  cpu::PartScores scores_;
};

// A pass that lets nodes join clusters.
class ClusterPass {
 public:
  ClusterPass(const In<int32_t>& weights, int64_t limit, const OutArray& labels,
              const Out<int64_t>& loads)
      : weights_(weights), limit_(limit), labels_(labels), loads_(loads), sums_(length(labels)) {
    const auto num_nodes = static_cast<std::size_t>(length(labels));
    if (weights.shape(0) != num_nodes || loads.shape(0) != num_nodes) {
      throw nb::value_error("weights, loads and labels do not fit each other");
    }
    visit_ints(labels, "labels", [&](auto* of) {
      if (std::any_of(of, of + num_nodes, [&](auto c) { return c < 0 || c >= length(labels); })) {
        throw nb::value_error("a label is no cluster");
      }
    });
  }

  int64_t visit(const Rows& rows, const In<int64_t>& order) {
    if (labels_.dtype() != rows.indices.dtype()) {
      throw nb::type_error("labels and indices differ in dtype");
    }
    return bindings::visit(rows, order, length(labels_), [&](const auto& view) {
      using Col = std::remove_const_t<std::remove_pointer_t<decltype(view.indices)>>;
      nb::gil_scoped_release release;
      return cpu::cluster_nodes(view, order.data(), static_cast<int64_t>(order.shape(0)),
                                weights_.data(), limit_, static_cast<Col*>(labels_.data()),
                                loads_.data(), sums_);
    });
  }

 private:
  In<int32_t> weights_;
  int64_t limit_;
  OutArray labels_;
  Out<int64_t> loads_;
  cpu::RowSums sums_;
};

}  // namespace

void bind_assign(nb::module_& m) {
  m.def("undirected", &undirected_of, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
        nb::arg("first_node") = 0,
        "(indptr, indices, weights) of rows of an undirected graph, from rows that have both "
        "directions of each edge: ascending, parallel edges added up, self loops dropped.");
  nb::class_<Rows>(m, "UndirectedRows",
                   "Rows of an undirected graph, as `undirected` returns them.")
      .def(
          "__init__",
          [](Rows* self, int64_t first_node, const In<int64_t>& indptr, const InArray& indices,
             const In<int32_t>& weights) { new (self) Rows{first_node, indptr, indices, weights}; },
          nb::arg("first_node"), nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
          nb::arg("weights").noconvert());
  nb::class_<AssignPass>(m, "AssignPass",
                         "A pass that puts nodes, one after the other, into parts.")
      .def(nb::init<const InMatrix<int32_t>&, const InMatrix<int64_t>&, const OutMatrix<int64_t>&,
                    const Out<int32_t>&, const std::string&, int64_t>(),
           nb::arg("weights").noconvert(), nb::arg("capacities").noconvert(),
           nb::arg("loads").noconvert(), nb::arg("labels").noconvert(), nb::arg("score"),
           nb::arg("num_edges"))
      .def("visit", &AssignPass::visit, nb::arg("rows"), nb::arg("order").noconvert(),
           "Visits the nodes in `order`, whose rows these are; returns how many moved.");
  nb::class_<ClusterPass>(m, "ClusterPass",
                          "A pass that lets nodes, one after the other, join clusters.")
      .def(nb::init<const In<int32_t>&, int64_t, const OutArray&, const Out<int64_t>&>(),
           nb::arg("weights").noconvert(), nb::arg("limit"), nb::arg("labels").noconvert(),
           nb::arg("loads").noconvert())
      .def("visit", &ClusterPass::visit, nb::arg("rows"), nb::arg("order").noconvert(),
           "Visits the nodes in `order`, whose rows these are; returns how many moved.");
}

}  // namespace khop::bindings
