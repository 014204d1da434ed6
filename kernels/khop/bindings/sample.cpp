#include "khop/cpu/sample.hpp"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/csr.hpp"
#include "khop/bindings/hop_options.hpp"
#include "khop/cpu/induce.hpp"

namespace khop::bindings {
namespace {

// (rows, neighbours) of edges that are not to be drawn.
using PairArrays = std::tuple<In<int64_t>, In<int64_t>>;

cpu::RowSet row_set(const In<int64_t>& ids, const std::optional<In<int32_t>>& trees,
                    const std::optional<In<int64_t>>& times) {
  const auto count = static_cast<int64_t>(ids.shape(0));
  if (trees.has_value()) {
    check_length(static_cast<int64_t>(trees->shape(0)), count, "trees");
  }
  if (times.has_value()) {
    check_length(static_cast<int64_t>(times->shape(0)), count, "times");
  }
  return {ids.data(), trees.has_value() ? trees->data() : nullptr,
          times.has_value() ? times->data() : nullptr};
}

void fill_pairs(const std::optional<PairArrays>& arrays, cpu::PairSet& pairs) {
  if (!arrays.has_value()) return;
  const auto& [rows, neighbors] = *arrays;
  const auto count = static_cast<int64_t>(rows.shape(0));
  check_length(static_cast<int64_t>(neighbors.shape(0)), count, "excluded neighbours");
  pairs.add(rows.data(), neighbors.data(), count);
}

nb::tuple sample_rows_of(const Csr& graph, const In<int64_t>& ids, const HopOptions& options,
                         const std::optional<In<int32_t>>& trees,
                         const std::optional<In<int64_t>>& times,
                         const std::optional<PairArrays>& excluded) {
  const cpu::RowSet rows = row_set(ids, trees, times);
  cpu::PairSet pairs;
  fill_pairs(excluded, pairs);
  const cpu::HopSpec spec(options, pairs.empty() ? nullptr : &pairs);
  return graph.visit([&](const auto& view) {
    using Col = std::remove_const_t<std::remove_pointer_t<decltype(view.indices)>>;
    cpu::DrawnRows<Col> drawn;
    {
      nb::gil_scoped_release release;
      cpu::sample_rows(view, rows, static_cast<int64_t>(ids.shape(0)), spec, drawn);
    }
    nb::object edges = nb::none();
    if (spec.with_edge) edges = nb::cast(to_numpy(std::move(drawn.edges)));
    return nb::make_tuple(to_numpy(std::move(drawn.counts)), to_numpy(std::move(drawn.neighbors)),
                          edges);
  });
}

// Of other trees the keys would be those of these.
void check_trees(const cpu::RowSet& rows, int64_t count, int64_t num_trees) {
  for (int64_t i = 0; rows.trees != nullptr && i < count; ++i) {
    if (rows.trees[i] >= 0 && rows.trees[i] < num_trees) continue;
    throw std::invalid_argument("there is no tree " + std::to_string(rows.trees[i]) +
                                " in a batch of at most " + std::to_string(num_trees));
  }
}

nb::tuple induce_rows_of(const Csr& graph, const In<int64_t>& ids, const In<int64_t>& members,
                         int64_t num_nodes, bool with_edges, bool disjoint,
                         const std::optional<In<int32_t>>& trees,
                         const std::optional<In<int64_t>>& times,
                         const std::optional<PairArrays>& excluded) {
  const cpu::RowSet rows = row_set(ids, trees, times);
  cpu::PairSet pairs;
  fill_pairs(excluded, pairs);
  cpu::InducedRows found;
  {
    nb::gil_scoped_release release;
    cpu::NodeSet set(num_nodes, disjoint);
    // Keys come from elsewhere: whatever they are, they are told apart in full.
    if (disjoint) set.set_num_trees(set.max_trees());
    check_trees(rows, static_cast<int64_t>(ids.shape(0)), disjoint ? set.max_trees() : 1);
    set.add_seeds(members.data(), static_cast<int64_t>(members.shape(0)));
    graph.visit([&](const auto& view) {
      cpu::induce_rows(view, rows, static_cast<int64_t>(ids.shape(0)), set,
                       pairs.empty() ? nullptr : &pairs, with_edges, found);
    });
  }
  nb::object edges = nb::none();
  if (with_edges) edges = nb::cast(to_numpy(std::move(found.edges)));
  return nb::make_tuple(to_numpy(std::move(found.counts)), to_numpy(std::move(found.sources)),
                        edges);
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("sample_rows", &sample_rows_of, nb::arg("graph"), nb::arg("ids").noconvert(),
        nb::arg("options"), nb::arg("trees").noconvert().none() = nb::none(),
        nb::arg("times").noconvert().none() = nb::none(),
        nb::arg("excluded").noconvert().none() = nb::none(),
        "Draws neighbours of rows: (counts int32, neighbors, edges int64 or None).");
  m.def("induce_rows", &induce_rows_of, nb::arg("graph"), nb::arg("ids").noconvert(),
        nb::arg("members").noconvert(), nb::arg("num_nodes"), nb::arg("with_edges"),
        nb::arg("disjoint") = false, nb::arg("trees").noconvert().none() = nb::none(),
        nb::arg("times").noconvert().none() = nb::none(),
        nb::arg("excluded").noconvert().none() = nb::none(),
        "Finds neighbours of rows among a batch's members, given by their keys: (counts int32, "
        "numbers of the members int32, edges int64 or None).");
}

}  // namespace khop::bindings
