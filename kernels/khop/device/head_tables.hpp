// The tables of a batch's head that say what hops draw from and where the batch is written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "khop/core/subgraph.hpp"
#include "khop/device/batch_head.hpp"
#include "khop/device/exclude.hpp"
#include "khop/device/sample_plan.hpp"
#include "khop/device/type_memory.hpp"

namespace khop::device {

template <class Backend>
void write_buffers(BatchHead<Backend>& head, const std::vector<TypeMemory<Backend>>& types,
                   const RelationOrder& order) {
  for (std::size_t t = 0; t < types.size(); ++t) {
    SampleBuffer& buffer = head.buffers.host[t] = types[t].buffer();
    buffer.first_relation = order.first[t];
    buffer.end_relation = order.first[t + 1];
  }
}

// steps: of each hop, an edge type each; no keys yet.
template <class Backend>
void write_hops(BatchHead<Backend>& head, const SamplePlan& plan,
                const std::vector<Relation>& relations, const RelationOrder& order,
                const std::vector<ExcludedEdges<Backend>>& excluded,
                const std::vector<std::vector<HopStep>>& steps) {
  for (std::size_t k = 0; k < order.relations.size(); ++k) {
    const std::size_t r = order.relations[k];
    const GraphArrays& graph = plan.graphs[r];
    head.relations.host[k] = {graph.view(), excluded[r].list(), relations[r].source,
                              relations[r].destination, static_cast<int64_t>(r)};
    for (std::size_t h = 0; h < plan.num_hops(); ++h) {
      HopStep& step = head.steps.host[h * order.relations.size() + k] = steps[h][r];
      step.options =
          step.options.at({plan.run_key, plan.batch, static_cast<uint32_t>(h),
                           static_cast<uint32_t>(r), static_cast<uint32_t>(relations[r].source)});
      step.options.last &= graph.times != nullptr;
    }
  }
}

// Of a padded batch: see steps/write_padded.hpp.
template <class Backend>
void write_sections(BatchHead<Backend>& head, const BatchBlock& block,
                    const std::vector<Relation>& relations, bool disjoint) {
  const PadSizes& sizes = block.padding;
  const std::vector<int64_t> lengths = padded_lengths(sizes, disjoint, block.edges);
  const auto types = static_cast<std::size_t>(head.sizes().types);
  PadSection* section = head.sections.host;
  int64_t item = 0;
  std::vector<int64_t> starts(lengths.size(), 0);
  std::partial_sum(lengths.begin(), lengths.end() - 1, starts.begin() + 1);
  std::size_t other = types;                                     // trees
  std::size_t mask = lengths.size() - types - relations.size();  // of nodes, then of edges
  const auto place = [&](std::size_t k, std::size_t at, bool has_other, const auto& of_type) {
    PadPart& part = head.pad_parts.host[k];
    part.first = item;
    part.at = starts[at];
    if (has_other) part.other_at = starts[other++];
    part.mask_at = starts[mask++];
    for (const int64_t size : of_type) {
      *section++ = {item, size, size - (sizes.leaves_room && size > 0 ? 1 : 0)};
      item += size;
    }
    part.rows = item - part.first;
  };
  for (std::size_t t = 0; t < types; ++t) place(t, t, disjoint, sizes.nodes[t]);
  const std::size_t ends = other;
  other += relations.size();
  for (std::size_t r = 0; r < relations.size(); ++r) {
    place(types + r, ends + r, block.edges[r].is_named != 0, sizes.edges[r]);
    head.pad_parts.host[types + r].source = relations[r].source;
    head.pad_parts.host[types + r].destination = relations[r].destination;
  }
}

// Of a batch that is written when it is drawn.
template <class Backend>
void write_target(BatchHead<Backend>& head, const BatchBlock& block,
                  const std::vector<Relation>& relations, bool disjoint) {
  *head.target.host = {block.words, block.capacity, block.backward ? 1 : 0, 0};
  std::copy(block.edges.begin(), block.edges.end(), head.edge_targets.host);
  if (head.sizes().pads) write_sections(head, block, relations, disjoint);
}

}  // namespace khop::device
