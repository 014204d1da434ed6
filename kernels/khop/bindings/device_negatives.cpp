// What links need of a device: numbers under a key, whether edges exist, negatives.
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "khop/bindings/device_arguments.hpp"
#include "khop/cpu/row_errors.hpp"

namespace khop::bindings {
namespace {

// The candidates of one end of a negative: their number, inclusive sums of weights, order.
using PyCandidates =
    std::tuple<int64_t, std::optional<DeviceIn<int64_t>>, std::optional<DeviceIn<int64_t>>>;

[[noreturn]] void throw_bad_row(const PyDevice& self, const GraphArrays& graph, int64_t node) {
  if (node < graph.first_row || node - graph.first_row >= graph.num_rows) {
    throw_no_such_row(node, graph.first_row, graph.num_rows);
  }
  const int64_t row = node - graph.first_row;
  throw_corrupt_row(row, read_int(self, graph.indptr, graph.indptr_width, row),
                    read_int(self, graph.indptr, graph.indptr_width, row + 1), graph.num_edges);
}

void has_edges(const PyDevice& self, const AnyArray& indptr, const AnyArray& indices,
               const DeviceIn<int64_t>& rows, const DeviceIn<int64_t>& neighbors,
               const DeviceOut<bool>& exists, int64_t first_row) {
  const GraphArrays graph = graph_of(self, indptr, indices, first_row);
  self.check_place(rows, "rows");
  self.check_place(neighbors, "neighbors");
  self.check_place(exists, "exists");
  const int64_t count = entries_of(rows);
  if (entries_of(neighbors) != count || entries_of(exists) != count) {
    throw nb::value_error(("there are " + std::to_string(count) + " rows, but " +
                           std::to_string(entries_of(neighbors)) + " neighbors and room for " +
                           std::to_string(entries_of(exists)) + " answers")
                              .c_str());
  }
  int64_t bad;
  {
    nb::gil_scoped_release release;
    bad = self->has_edges(graph, rows.data(), neighbors.data(), count, exists.data());
  }
  if (bad >= 0) throw_bad_row(self, graph, read_int(self, rows.data(), 8, bad));
}

void check_draws(int64_t count) {
  if (count > kMaxDraws) throw nb::value_error("at most 2^33 numbers are drawn under one key");
}

void draw_ids(const PyDevice& self, uint64_t key, int64_t bound, const DeviceOut<int64_t>& out) {
  self.check_place(out, "out");
  check_draws(entries_of(out));
  if (bound < (out.shape(0) == 0 ? 0 : 1)) throw nb::value_error("bound must be positive");
  nb::gil_scoped_release release;
  self->draw_below(key, {bound, nullptr}, entries_of(out), out.data());
}

void draw_below(const PyDevice& self, uint64_t key, const DeviceIn<int64_t>& bounds,
                const DeviceOut<int64_t>& out) {
  self.check_place(bounds, "bounds");
  self.check_place(out, "out");
  check_draws(entries_of(out));
  check_entries(entries_of(bounds), entries_of(out), "bounds");
  int64_t bad;
  {
    nb::gil_scoped_release release;
    bad = self->draw_below(key, {0, bounds.data()}, entries_of(out), out.data());
  }
  if (bad >= 0) throw nb::value_error("bounds must not be negative");
}

parallel::NodeCandidates candidates_of(const PyDevice& self, const PyCandidates& candidates) {
  const auto& [num_nodes, sums, order] = candidates;
  if (num_nodes < 0) throw nb::value_error("there cannot be a negative number of candidates");
  return {num_nodes, data_of(self, sums, num_nodes, "the sums of candidates"),
          data_of(self, order, num_nodes, "the order of candidates")};
}

Bounds limits_of(const PyDevice& self, const parallel::NodeCandidates& candidates,
                 const std::optional<DeviceIn<int64_t>>& limits, int64_t count, const char* name) {
  return {candidates.num_nodes, data_of(self, limits, count, name)};
}

void check_limit(int64_t bad, const parallel::NodeCandidates& candidates) {
  if (bad < 0) return;
  throw nb::index_error(("the limit of negative " + std::to_string(bad) +
                         " is not between 1 and the number of candidates, " +
                         std::to_string(candidates.num_nodes))
                            .c_str());
}

void draw_nodes(const PyDevice& self, uint64_t key, const PyCandidates& candidates,
                const std::optional<DeviceIn<int64_t>>& limits, const DeviceOut<int64_t>& out) {
  self.check_place(out, "out");
  const int64_t count = entries_of(out);
  check_draws(count);
  const parallel::NodeCandidates from = candidates_of(self, candidates);
  const NodeDraw draw{key, from, limits_of(self, from, limits, count, "limits"), nullptr,
                      Count{count}};
  int64_t bad;
  {
    nb::gil_scoped_release release;
    bad = self->draw_nodes(draw, out.data());
  }
  check_limit(bad, from);
}

int64_t draw_strict_negatives(const PyDevice& self, const AnyArray& indptr, const AnyArray& indices,
                              uint64_t run_key, uint64_t batch, int num_rounds,
                              const PyCandidates& dst_from,
                              const std::optional<PyCandidates>& src_from,
                              const DeviceOut<int64_t>& src, const DeviceOut<int64_t>& dst,
                              const DeviceOut<int64_t>& left,
                              const std::optional<DeviceIn<int64_t>>& dst_limits,
                              const std::optional<DeviceIn<int64_t>>& src_limits,
                              bool rows_are_sources, int64_t first_row) {
  const GraphArrays graph = graph_of(self, indptr, indices, first_row);
  const int64_t count = entries_of(dst);
  if (num_rounds < 1) throw nb::value_error("num_rounds must be at least 1");
  check_draws(count);
  self.check_place(src, "src");
  self.check_place(dst, "dst");
  self.check_place(left, "left");
  check_entries(entries_of(src), count, "src");
  check_entries(entries_of(left), count, "left");
  const auto end_of = [&](const PyCandidates& candidates, const auto& limits, int64_t* nodes,
                          const char* name) {
    const parallel::NodeCandidates from = candidates_of(self, candidates);
    return parallel::NegativeEnd{from, limits_of(self, from, limits, count, name), nodes, true};
  };
  NegativeSpec spec{run_key, batch, count, num_rounds, {}, {}, rows_are_sources};
  spec.dst = end_of(dst_from, dst_limits, dst.data(), "dst_limits");
  spec.src.nodes = src.data();
  if (src_from.has_value()) spec.src = end_of(*src_from, src_limits, src.data(), "src_limits");
  NegativeFault fault;
  int64_t num_left = 0;
  {
    nb::gil_scoped_release release;
    fault = self->draw_strict_negatives(graph, spec, left.data(), &num_left);
  }
  check_limit(fault.src_limit, spec.src.candidates);
  check_limit(fault.dst_limit, spec.dst.candidates);
  if (fault.no_row) {
    throw nb::index_error(rows_are_sources
                              ? "a source has no row in the graph, or a corrupt one"
                              : "a destination has no row in the graph, or a corrupt one");
  }
  return num_left;
}

}  // namespace

void bind_device_links(nb::class_<PyDevice>& device) {
  device.def("has_edges", &has_edges, nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
             nb::arg("rows").noconvert(), nb::arg("neighbors").noconvert(),
             nb::arg("exists").noconvert(), nb::arg("first_row") = 0,
             R"(exists[i] = whether node rows[i], of row rows[i] - first_row, has neighbors[i].

Args:
    indptr, indices: int32 or int64, compressed rows in the device's memory.
    rows, neighbors: [count] int64.
    exists: [count] bool, written.

Raises:
    IndexError: a node has no row (names the first such node).
    RuntimeError: a row that is asked for is corrupt, or a CUDA call failed.)");
  device.def("draw_ids", &draw_ids, nb::arg("key"), nb::arg("bound"), nb::arg("out").noconvert(),
             "As `_native.draw_ids`, into an int64 array in the device's memory.");
  device.def("draw_below", &draw_below, nb::arg("key"), nb::arg("bounds").noconvert(),
             nb::arg("out").noconvert(),
             "As `_native.draw_below`, from and into int64 arrays in the device's memory.");
  device.def("draw_nodes", &draw_nodes, nb::arg("key"), nb::arg("candidates"),
             nb::arg("limits").noconvert().none(), nb::arg("out").noconvert(),
             R"(Nodes that the words of a key draw, as `sampler.negative.Candidates.draw`.

Args:
    key: number i takes 64-bit word i of it.
    candidates: their number, inclusive int64 sums of their weights (None: all weigh 1), and their
        int64 ids (None: 0, 1, ...); arrays in the device's memory.
    limits: [count] int64, how many of the candidates, in their order, may be drawn for each; None:
        all.
    out: [count] int64, written.

Raises:
    IndexError: a limit is not in [1, number of candidates] (names the first); the others are drawn.)");
  device.def("draw_strict_negatives", &draw_strict_negatives, nb::arg("indptr").noconvert(),
             nb::arg("indices").noconvert(), nb::arg("run_key"), nb::arg("batch"),
             nb::arg("num_rounds"), nb::arg("dst_from"), nb::arg("src_from").none(),
             nb::arg("src").noconvert(), nb::arg("dst").noconvert(), nb::arg("left").noconvert(),
             nb::arg("dst_limits").noconvert().none() = nb::none(),
             nb::arg("src_limits").noconvert().none() = nb::none(),
             nb::arg("rows_are_sources") = false, nb::arg("first_row") = 0,
             R"(Draws negatives until they join no edge, without leaving the device in between.

The rounds of `sampler.negative.NegativeSampler` with its keys, hence its nodes.

Args:
    indptr, indices: int32 or int64, the rows of the edge type, in the device's memory.
    run_key, batch: key of the epoch, and index of the batch.
    num_rounds: how often a negative is drawn at most.
    dst_from, src_from: candidates as in `draw_nodes`; src_from None: sources are given.
    src, dst: [count] int64, written; src is read if sources are given.
    left: [count] int64, written: the numbers of the negatives that are edges still, ascending.
    dst_limits, src_limits: limits as in `draw_nodes`.
    rows_are_sources: rows hold the destinations of a source; else the sources of a destination.
    first_row: the node that row 0 is of.

Returns:
    How many negatives are left.

Raises:
    IndexError: a limit is out of range, or a node has no row.)");
}

}  // namespace khop::bindings
