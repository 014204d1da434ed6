// Negatives of links on a device: numbers and nodes drawn under a key, and strict negatives.
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "khop/bindings/device_arguments.hpp"

namespace khop::bindings {
namespace {

// The candidates of one end of a negative: their number, inclusive sums of weights, order.
using PyCandidates =
    std::tuple<int64_t, std::optional<DeviceIn<int64_t>>, std::optional<DeviceIn<int64_t>>>;

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
  check_length(entries_of(bounds), entries_of(out), "bounds");
  int64_t bad;
  {
    nb::gil_scoped_release release;
    bad = self->draw_below(key, {0, bounds.data()}, entries_of(out), out.data());
  }
  if (bad >= 0) throw nb::value_error("bounds must not be negative");
}

device::NodeCandidates candidates_of(const PyDevice& self, const PyCandidates& candidates) {
  const auto& [num_nodes, sums, order] = candidates;
  if (num_nodes < 0) throw nb::value_error("there cannot be a negative number of candidates");
  return {num_nodes, data_of(self, sums, num_nodes, "the sums of candidates"),
          data_of(self, order, num_nodes, "the order of candidates")};
}

device::Bounds limits_of(const PyDevice& self, const device::NodeCandidates& candidates,
                         const std::optional<DeviceIn<int64_t>>& limits, int64_t count,
                         const char* name) {
  return {candidates.num_nodes, data_of(self, limits, count, name)};
}

void check_limit(int64_t bad, const device::NodeCandidates& candidates) {
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
  const device::NodeCandidates from = candidates_of(self, candidates);
  const device::NodeDraw draw{key, from, limits_of(self, from, limits, count, "limits"), nullptr,
                              device::Count{count}};
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
  const device::GraphArrays graph = graph_of(self, indptr, indices, first_row);
  const int64_t count = entries_of(dst);
  if (num_rounds < 1) throw nb::value_error("num_rounds must be at least 1");
  check_draws(count);
  self.check_place(src, "src");
  self.check_place(dst, "dst");
  self.check_place(left, "left");
  check_length(entries_of(src), count, "src");
  check_length(entries_of(left), count, "left");
  const auto end_of = [&](const PyCandidates& candidates, const auto& limits, int64_t* nodes,
                          const char* name) {
    const device::NodeCandidates from = candidates_of(self, candidates);
    return device::NegativeEnd{from, limits_of(self, from, limits, count, name), nodes, true};
  };
  device::NegativeSpec spec{run_key, batch, count, num_rounds, {}, {}, rows_are_sources};
  spec.dst = end_of(dst_from, dst_limits, dst.data(), "dst_limits");
  spec.src.nodes = src.data();
  if (src_from.has_value()) spec.src = end_of(*src_from, src_limits, src.data(), "src_limits");
  device::NegativeError error;
  int64_t num_left = 0;
  {
    nb::gil_scoped_release release;
    error = self->draw_strict_negatives(graph, spec, left.data(), &num_left);
  }
  check_limit(error.src_limit, spec.src.candidates);
  check_limit(error.dst_limit, spec.dst.candidates);
  if (error.no_row) {
    throw nb::index_error(rows_are_sources
                              ? "a source has no row in the graph, or a corrupt one"
                              : "a destination has no row in the graph, or a corrupt one");
  }
  return num_left;
}

}  // namespace

void bind_device_negatives(nb::class_<PyDevice>& device) {
  device.def("draw_ids", &draw_ids, nb::arg("key"), nb::arg("bound"), nb::arg("out").noconvert(),
             "As `_native.draw_ids`, into an int64 array in the device's memory.");
  device.def("draw_below", &draw_below, nb::arg("key"), nb::arg("bounds").noconvert(),
             nb::arg("out").noconvert(),
             "As `_native.draw_below`, from and into int64 arrays in the device's memory.");
  device.def("draw_nodes", &draw_nodes, nb::arg("key"), nb::arg("candidates"),
             nb::arg("limits").noconvert().none(), nb::arg("out").noconvert(),
             R"(Nodes that the words of a key draw, as `sampler.drawing.negative.Candidates.draw`.

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

The rounds of `sampler.drawing.negative.NegativeSampler` with its keys, hence its nodes.

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
