#include "khop/cpu/walk.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "khop/bindings/checks.hpp"
#include "khop/bindings/csr.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

using Chances = std::tuple<uint64_t, uint64_t, uint64_t>;
using Matrix = nb::ndarray<int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check_shape(const Matrix& out, int64_t rows, int64_t columns, const char* name) {
  if (static_cast<int64_t>(out.shape(0)) == rows && static_cast<int64_t>(out.shape(1)) == columns) {
    return;
  }
  throw nb::value_error((std::string(name) + " must have shape [" + std::to_string(rows) + ", " +
                         std::to_string(columns) + "]")
                            .c_str());
}

// The graphs of a plan, and the edge type of each step.
void fill_steps(const std::vector<const Csr*>& graphs, const std::vector<int64_t>& relations,
                cpu::WalkPlan& plan) {
  for (const Csr* graph : graphs) {
    if (graph == nullptr) throw nb::type_error("graphs must hold a Csr for each edge type");
    plan.graphs.push_back(graph->any_view());
  }
  for (const int64_t relation : relations) {
    plan.relations.push_back(checked(relation, graphs.size(), "edge type"));
  }
  check_length(static_cast<int64_t>(plan.stops.size()), plan.length(), "stops");
  const auto other = [&](int32_t relation) { return relation != plan.relations.front(); };
  if (plan.bias.is_biased() && std::any_of(plan.relations.begin(), plan.relations.end(), other)) {
    throw nb::value_error("biased walks are over one edge type");
  }
}

void random_walks_of(const std::vector<const Csr*>& graphs, const std::vector<int64_t>& relations,
                     const std::vector<uint64_t>& stops, const Chances& bias, uint64_t run_key,
                     uint64_t batch, uint32_t first_step, const In<int64_t>& starts,
                     const Matrix& nodes, const std::optional<Matrix>& edges, int num_threads) {
  const auto [back, near, far] = bias;
  if (std::min({back, near, far}) == 0 || std::max({back, near, far}) > uint64_t{1} << 32) {
    throw nb::value_error("chances of a bias are from 1 to 2^32");
  }
  cpu::WalkPlan plan{{}, {}, stops, {back, near, far}, {run_key, batch, first_step}, nullptr};
  fill_steps(graphs, relations, plan);
  const auto count = static_cast<int64_t>(starts.shape(0));
  const int64_t length = plan.length();
  check_shape(nodes, count, length + 1, "nodes");
  if (edges.has_value()) check_shape(*edges, count, length, "edges");
  nb::gil_scoped_release release;
  if (plan.bias.is_biased() && length > 1) {
    plan.tables = &graphs[static_cast<std::size_t>(plan.relations.front())]->row_tables();
  }
  const cpu::WalkRecord record{nodes.data(), edges.has_value() ? edges->data() : nullptr, length};
  cpu::random_walks(plan, starts.data(), count, record, num_threads);
}

}  // namespace

void bind_walk(nb::module_& m) {
  m.def("random_walks", &random_walks_of, nb::arg("graphs"), nb::arg("relations"), nb::arg("stops"),
        nb::arg("bias"), nb::arg("run_key"), nb::arg("batch"), nb::arg("first_step"),
        nb::arg("starts").noconvert(), nb::arg("nodes").noconvert(),
        nb::arg("edges").noconvert().none(), nb::arg("num_threads") = 1,
        R"(Walks over whole graphs, as khop.sampler.methods.walk does step by step.

Args:
    graphs: the rows of each edge type.
    relations: index of the edge type of each step.
    stops: chance that a walk ends before each step, of 2^32.
    bias: chances to accept the previous node, a neighbour of it and any other node, of 2^32.
    run_key, batch, first_step: what numbers are keyed by.
    starts: [n] int64.
    nodes, edges: [n, L + 1] and [n, L] int64 to write; edges may be None.
    num_threads: threads to use, if there is enough to do.)");
}

}  // namespace khop::bindings
