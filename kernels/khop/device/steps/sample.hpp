// The steps of a hop over all edge types, after its rows were drawn: from picks to numbered edges.
//
// Everything that is drawn lies in the buffer of its node type: for each position the key, the
// number, the edge and the destination. A hop appends to it:
//   1. PickRows picks edges; where rows are taken whole but not all of their edges count,
//      SpanFilteredRows and KeepEdges have chosen among them before. In the same launch a sum over
//      the rows' counts gives where each row's edges stand;
//   2. AppendEdges reads the neighbours and inserts them into the node table (wide keys: in a step
//      of its own, InsertKeys);
//   3. a sum over the positions that came first, FirstOfNode, numbers the new nodes;
//   4. EndHop gives each position its number and writes the new nodes. The last of its blocks adds
//      up how far buffers and nodes reach, and plans the rows of the next hop.
#pragma once

#include <cstdint>

#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/pick_rows.hpp"
#include "khop/device/steps/write_ahead.hpp"
#include "khop/device/steps/write_padded.hpp"

namespace khop::device {

// Seeds, of all types one behind the other, lie at the head of their buffers, each with a number of
// its own.
struct PlaceSeeds {
  BatchView batch;
  const int64_t* seeds;   // keys
  const int64_t* starts;  // [num_types + 1]

  KHOP_HD void operator()(int64_t item) const {
    const int64_t type = owner_of(starts, batch.num_types, item);
    const SampleBuffer& buffer = batch.buffers[type];
    const int64_t i = item - starts[type];
    buffer.keys[i] = buffer.nodes[i] = seeds[item];
    buffer.numbers[i] = static_cast<int32_t>(i);
    // Others may not have written their keys yet: the table has to read them where they come from.
    NodeTable table = buffer.table;
    table.keys = seeds + starts[type];
    table.insert(seeds[item], i, batch.states[type].stamp);
  }
};

// The edges that a hop has drawn: those of its rows, one row behind the other.
struct HopEdges {
  BatchView batch;
  const HopStep* steps;
  HopRows rows;
  int64_t most;     // edges that there is room for
  uint32_t* slots;  // an edge each

  // Where the edges of an edge type begin; of num_relations: how many there are.
  KHOP_HD int64_t start_of(int64_t relation) const {
    return batch.num_rows() == 0 ? 0 : rows.offsets[batch.row_starts[relation]];
  }
  KHOP_HD int64_t row_of(int64_t e) const { return owner_of(rows.offsets, batch.num_rows(), e); }
  KHOP_HD int64_t relation_of(int64_t e) const {
    int64_t low = 0;
    int64_t high = batch.num_relations;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (start_of(middle) <= e) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

struct DrawnEdge {
  int64_t neighbor;
  int64_t edge;  // in the whole graph
};

// What PickRows has picked.
struct PickedEdges {
  KHOP_HD DrawnEdge operator()(const HopEdges& edges, int64_t k, int64_t row, int64_t j) const {
    const DeviceCsr& graph = edges.batch.relations[k].graph;
    const RowMode mode = edges.steps[k].mode;
    const int64_t edge = edges.rows.edge(mode, row, j);
    return {mode == RowMode::kListed ? edge : graph.indices[edge], graph.first_edge + edge};
  }
};

// An edge's place in the buffer that it is appended to.
struct Appended {
  const SampleBuffer& buffer;
  const TypeState& state;
  int64_t start;     // the first of the hop's edges that this buffer gets
  int64_t position;  // of this edge

  KHOP_HD Appended(const HopEdges& edges, int64_t relation, int64_t e)
      : buffer(edges.batch.buffers[edges.batch.relations[relation].source]),
        state(edges.batch.states[edges.batch.relations[relation].source]),
        start(edges.start_of(buffer.first_relation)),
        position(state.positions + e - start) {}

  KHOP_HD bool fits() const { return position < buffer.capacity; }
};

// `Drawn` has the neighbours and edges: drawn_by(edges, k, row, j) are those of the j-th edge of a
// row.
template <class Drawn>
struct AppendEdges {
  HopEdges edges;
  Drawn drawn_by;

  KHOP_HD void operator()(int64_t e) const {
    const BatchView& batch = edges.batch;
    const int64_t row = edges.row_of(e);
    const int64_t k = batch.relation_of_row(row);
    const Appended to(edges, k, e);
    if (!to.fits()) return;
    auto [id, edge] = drawn_by(edges, k, row, e - edges.rows.offsets[row]);
    const FrontierView frontier = batch.frontier_of(batch.relations[k]);
    const int64_t number = *frontier.begin + row - batch.row_starts[k];
    if (id < 0 || id >= to.buffer.num_ids) {
      batch.error->report(DeviceError::kNoSuchNeighbor, id);
      id = 0;
    }
    const int64_t key = to.buffer.key(frontier.tree_of(frontier.keys[number]), id);
    to.buffer.keys[to.position] = key;
    if (to.buffer.edges != nullptr) to.buffer.edges[to.position] = edge;
    to.buffer.destinations[to.position] = static_cast<int32_t>(number);
    if (to.buffer.values != nullptr) {
      const int64_t place = edges.rows.begins[row] + e - edges.rows.offsets[row];
      to.buffer.values[to.position] = edges.rows.values[place];
    }
    if (to.buffer.table.narrow) {
      edges.slots[e] =
          static_cast<uint32_t>(to.buffer.table.insert(key, to.position, to.state.stamp));
    }
  }
};

// Of buffers with wide keys.
struct InsertKeys {
  HopEdges edges;

  KHOP_HD void operator()(int64_t e) const {
    const Appended to(edges, edges.relation_of(e), e);
    if (!to.fits() || to.buffer.table.narrow) return;
    edges.slots[e] = static_cast<uint32_t>(
        to.buffer.table.insert(to.buffer.keys[to.position], to.position, to.state.stamp));
  }
};

// 1 for the position at which a node appears first.
struct FirstOfNode {
  HopEdges edges;

  KHOP_HD int64_t operator()(int64_t e) const {
    const Appended to(edges, edges.relation_of(e), e);
    if (!to.fits()) return 0;
    return to.buffer.table.first_in(edges.slots[e], to.state.stamp) == to.position ? 1 : 0;
  }
};

// Numbers all edges of a hop. Then, in the block that ends last, buffers and nodes have grown by
// the hop, and what was found is the next frontier. Notes where there was no room.
struct EndHop {
  struct Shared {
    bool is_last;
  };
  HopEdges edges;
  Count count;                    // of the edges
  const int64_t* ranks;           // new nodes, of all types, before each edge
  const int64_t* num_candidates;  // null: there were none
  int64_t most_candidates;
  Scratch scratch;
  HopRecord* records;  // of this hop, by edge type
  int64_t* sizes;      // of this hop, by node type
  PlanRows next;
  PlanWrite write;     // after the last hop
  PaddedBatch padded;  // the same, for a batch that is padded
  bool layer_wise;     // all nodes are the next frontier, not the new ones alone
  BlockWords* words;

  KHOP_HD void operator()(const Block& block, Shared& shared) const {
    block.each([&](int t) {
      const int64_t stride = block.count * kBlockThreads;
      for (int64_t e = block.index * kBlockThreads + t; e < count.value(); e += stride) number(e);
    });
    block.each([&](int t) {
      if (t == 0) shared.is_last = block.count == 1 || words->is_last(block.count);
    });
    if (!shared.is_last) return;
    const BatchView& batch = edges.batch;
    const auto for_each = [&](int64_t count, auto&& f) {
      block.each([&](int t) {
        for (int64_t i = t; i < count; i += kBlockThreads) f(i);
      });
    };
    block.each([&](int t) {
      if (t == 0) note_needs();
    });
    for_each(batch.num_relations, [&](int64_t k) { write_record(k); });
    for_each(batch.num_types, [&](int64_t type) { grow(type); });
    for_each(batch.num_types, [&](int64_t type) {
      if (batch.states[type].needed > batch.buffers[type].capacity) batch.needs->exceeded = 1;
    });
    for_each(batch.num_relations, [&](int64_t k) { next.count(k); });
    block.each([&](int t) {
      if (t == 0) next.add_up();
    });
    if (padded.target != nullptr) {
      for_each(padded.num_sections(), [&](int64_t k) { padded.check(k); });
    }
    if (write.target == nullptr) return;
    for_each(write.num_parts(), [&](int64_t k) { write.count(k); });
    block.each([&](int t) {
      if (t == 0) write.add_up();
    });
    for_each(write.num_parts(), [&](int64_t k) { write.place(k); });
  }

 private:
  KHOP_HD void number(int64_t e) const {
    const Appended to(edges, edges.relation_of(e), e);
    if (!to.fits()) return;
    const int64_t begin = to.state.positions;
    const int64_t first = to.buffer.table.first_in(edges.slots[e], to.state.stamp);
    const int64_t number = first < begin
                               ? to.buffer.numbers[first]
                               : to.state.nodes + ranks[first - begin + to.start] - ranks[to.start];
    to.buffer.numbers[to.position] = static_cast<int32_t>(number);
    if (first == to.position) to.buffer.nodes[number] = to.buffer.keys[first];
  }

  KHOP_HD void note_needs() const {
    Needs& needs = *edges.batch.needs;
    const int64_t total = edges.start_of(edges.batch.num_relations);
    Needs::note(needs.edges, total);
    bool fits = total <= edges.most;
    if (num_candidates != nullptr) {
      Needs::note(needs.candidates, *num_candidates);
      fits = fits && *num_candidates <= most_candidates;
    }
    const int64_t words = scratch.shared + *scratch.used;
    *scratch.used = 0;
    Needs::note(needs.scratch, words);
    if (!fits || words > scratch.capacity) needs.exceeded = 1;
  }

  KHOP_HD void write_record(int64_t k) const {
    const RelationView& relation = edges.batch.relations[k];
    const Appended first(edges, k, edges.start_of(k));
    records[relation.index] = {first.position, edges.start_of(k + 1) - edges.start_of(k)};
  }

  KHOP_HD void grow(int64_t type) const {
    const SampleBuffer& buffer = edges.batch.buffers[type];
    TypeState& state = edges.batch.states[type];
    const int64_t begin = edges.start_of(buffer.first_relation);
    const int64_t end = edges.start_of(buffer.end_relation);
    // Sums of what found no room were not made.
    const bool is_numbered = end > begin && edges.batch.needs->exceeded == 0;
    const int64_t found = is_numbered ? ranks[end] - ranks[begin] : 0;
    state.positions += end - begin;
    Needs::note(state.needed, state.positions);
    state.nodes += found;
    state.frontier = layer_wise ? 0 : state.frontier + state.frontier_size;
    state.frontier_size = layer_wise ? state.nodes : found;
    sizes[type] = found;
  }
};

}  // namespace khop::device
