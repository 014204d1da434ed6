#include "khop/bindings/walk.hpp"

#include "khop/bindings/csr.hpp"
#include "khop/bindings/module.hpp"
#include "khop/cpu/walk.hpp"

namespace khop::bindings {
namespace {

void random_walks_of(const std::vector<const Csr*>& graphs, const std::vector<int64_t>& relations,
                     const std::vector<uint64_t>& stops, const Chances& bias, uint64_t run_key,
                     uint64_t batch, uint32_t first_step, const In<int64_t>& starts,
                     const Matrix& nodes, const std::optional<Matrix>& edges, int num_threads) {
  cpu::WalkPlan plan{{}, {}, stops, checked_bias(bias), {run_key, batch, first_step}, nullptr};
  for (const Csr* graph : graphs) {
    if (graph == nullptr) throw nb::type_error("graphs must hold a Csr for each edge type");
    plan.graphs.push_back(graph->any_view());
  }
  plan.relations = checked_relations(relations, graphs.size(), stops.size(), plan.bias);
  int64_t* const passed = checked_outputs(starts.shape(0), relations.size(), nodes, edges);
  nb::gil_scoped_release release;
  if (plan.bias.is_biased() && plan.length() > 1) {
    plan.tables = &graphs[static_cast<std::size_t>(plan.relations.front())]->row_tables();
  }
  const cpu::WalkRecord record{nodes.data(), passed, plan.length()};
  cpu::random_walks(plan, starts.data(), static_cast<int64_t>(starts.shape(0)), record,
                    num_threads);
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
