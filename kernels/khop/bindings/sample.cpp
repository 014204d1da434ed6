#include "khop/cpu/sample.hpp"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/csr.hpp"
#include "khop/bindings/hop_options.hpp"
#include "khop/bindings/row_requests.hpp"
#include "khop/cpu/induce.hpp"
#include "khop/cpu/stop.hpp"

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

nb::tuple sample_pieces_of(const Csr& graph, const In<int64_t>& ids, const HopOptions& options,
                           const std::optional<In<int32_t>>& trees,
                           const std::optional<In<int64_t>>& times, const ExcludedPairs* excluded,
                           const cpu::StopFlag* stop) {
  const cpu::RowSet rows = row_set(ids, trees, times);
  const bool excludes = excluded != nullptr && !excluded->pairs.empty();
  const cpu::HopSpec spec(options, excludes ? &excluded->pairs : nullptr, stop);
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

nb::tuple sample_rows_of(const Csr& graph, const In<int64_t>& ids, const HopOptions& options,
                         const std::optional<In<int32_t>>& trees,
                         const std::optional<In<int64_t>>& times,
                         const std::optional<PairArrays>& excluded) {
  ExcludedPairs pairs;
  fill_pairs(excluded, pairs.pairs);
  return sample_pieces_of(graph, ids, options, trees, times, &pairs, nullptr);
}

nb::tuple pick_positions_of(const Csr& graph, const In<int64_t>& ids, const HopOptions& options,
                            const std::optional<In<int32_t>>& trees) {
  const cpu::RowSet rows = row_set(ids, trees, std::nullopt);
  const cpu::HopSpec spec(options, nullptr);
  return graph.visit([&](const auto& view) {
    using Col = std::remove_const_t<std::remove_pointer_t<decltype(view.indices)>>;
    cpu::DrawnRows<Col> drawn;
    {
      nb::gil_scoped_release release;
      cpu::pick_positions(view, rows, static_cast<int64_t>(ids.shape(0)), spec, drawn);
    }
    return nb::make_tuple(to_numpy(std::move(drawn.counts)), to_numpy(std::move(drawn.edges)));
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

nb::tuple induce_pieces_of(const Csr& graph, const In<int64_t>& ids, const Members& members,
                           bool with_edges, const std::optional<In<int32_t>>& trees,
                           const std::optional<In<int64_t>>& times, const ExcludedPairs* excluded,
                           const cpu::StopFlag* stop) {
  const cpu::RowSet rows = row_set(ids, trees, times);
  const bool excludes = excluded != nullptr && !excluded->pairs.empty();
  const auto count = static_cast<int64_t>(ids.shape(0));
  cpu::InducedRows found;
  {
    nb::gil_scoped_release release;
    check_trees(rows, count, members.disjoint ? members.set.max_trees() : 1);
    graph.visit([&](const auto& view) {
      cpu::induce_rows(view, rows, count, members.set, excludes ? &excluded->pairs : nullptr,
                       with_edges, found, stop);
    });
  }
  nb::object edges = nb::none();
  if (with_edges) edges = nb::cast(to_numpy(std::move(found.edges)));
  return nb::make_tuple(to_numpy(std::move(found.counts)), to_numpy(std::move(found.sources)),
                        edges);
}

void add_members(Members& members, const In<int64_t>& keys) {
  nb::gil_scoped_release release;
  members.set.add_seeds(keys.data(), static_cast<int64_t>(keys.shape(0)));
}

nb::tuple induce_rows_of(const Csr& graph, const In<int64_t>& ids, const In<int64_t>& keys,
                         int64_t num_nodes, bool with_edges, bool disjoint,
                         const std::optional<In<int32_t>>& trees,
                         const std::optional<In<int64_t>>& times,
                         const std::optional<PairArrays>& excluded) {
  ExcludedPairs pairs;
  fill_pairs(excluded, pairs.pairs);
  Members members(num_nodes, disjoint);
  add_members(members, keys);
  return induce_pieces_of(graph, ids, members, with_edges, trees, times, &pairs, nullptr);
}

NumpyArray<int64_t> excluded_counts(const ExcludedPairs& excluded, const In<int64_t>& rows) {
  const auto count = static_cast<int64_t>(rows.shape(0));
  cpu::Buffer<int64_t> counts(count);
  {
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < count; ++i) counts[i] = excluded.pairs.of(rows.data()[i]).size();
  }
  return to_numpy(std::move(counts));
}

}  // namespace

void bind_sample(nb::module_& m) {
  nb::class_<cpu::StopFlag>(m, "StopFlag", "Ends kernels that other threads run, once it is set.")
      .def(nb::init<>())
      .def("set", &cpu::StopFlag::set, "Ends them, and those to come: they raise RuntimeError.");
  nb::class_<ExcludedPairs>(m, "ExcludedPairs", "Edges not to be drawn, by row and neighbour.")
      .def(
          "__init__",
          [](ExcludedPairs* self, const In<int64_t>& rows, const In<int64_t>& neighbors) {
            new (self) ExcludedPairs();
            nb::gil_scoped_release release;
            fill_pairs(PairArrays(rows, neighbors), self->pairs);
          },
          nb::arg("rows").noconvert(), nb::arg("neighbors").noconvert())
      .def("counts", &excluded_counts, nb::arg("rows").noconvert(),
           "How many pairs there are of each row.");
  nb::class_<Members>(m, "Members", "Nodes of a batch, numbered in the order of their keys.")
      .def(nb::init<int64_t, bool>(), nb::arg("num_nodes"), nb::arg("disjoint"))
      .def("add", &add_members, nb::arg("keys").noconvert());
  m.def("sample_rows", &sample_rows_of, nb::arg("graph"), nb::arg("ids").noconvert(),
        nb::arg("options"), nb::arg("trees").noconvert().none() = nb::none(),
        nb::arg("times").noconvert().none() = nb::none(),
        nb::arg("excluded").noconvert().none() = nb::none(),
        "Draws neighbours of rows: (counts int32, neighbors, edges int64 or None).");
  m.def("sample_rows", &sample_pieces_of, nb::arg("graph"), nb::arg("ids").noconvert(),
        nb::arg("options"), nb::arg("trees").noconvert().none(),
        nb::arg("times").noconvert().none(), nb::arg("excluded").none(), nb::arg("stop").none());
  m.def("pick_positions", &pick_positions_of, nb::arg("graph"), nb::arg("ids").noconvert(),
        nb::arg("options"), nb::arg("trees").noconvert().none() = nb::none(),
        "Draws positions of neighbours in the graph's arrays, and reads nothing but its row "
        "pointers: (counts int32, positions int64).");
  m.def("induce_rows", &induce_rows_of, nb::arg("graph"), nb::arg("ids").noconvert(),
        nb::arg("members").noconvert(), nb::arg("num_nodes"), nb::arg("with_edges"),
        nb::arg("disjoint") = false, nb::arg("trees").noconvert().none() = nb::none(),
        nb::arg("times").noconvert().none() = nb::none(),
        nb::arg("excluded").noconvert().none() = nb::none(),
        "Finds neighbours of rows among a batch's members, given by their keys: (counts int32, "
        "numbers of the members int32, edges int64 or None).");
  m.def("induce_rows", &induce_pieces_of, nb::arg("graph"), nb::arg("ids").noconvert(),
        nb::arg("members"), nb::arg("with_edges"), nb::arg("trees").noconvert().none(),
        nb::arg("times").noconvert().none(), nb::arg("excluded").none(), nb::arg("stop").none());
}

}  // namespace khop::bindings
