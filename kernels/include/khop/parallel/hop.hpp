// The steps of a hop over one edge type, after its rows were drawn: from picks to numbered edges.
//
// Everything that is drawn lies in the stream of its node type: for each position the key, the
// number, the edge and the destination. A hop appends to it:
//   1. PickRows, or for rows that are taken whole SpanRows (and, where not all of a row counts,
//      KeepEdges and a sum), say which edges;
//   2. a sum over the rows' counts says where each row's edges stand;
//   3. AppendEdges reads the neighbours and inserts them into the node table (wide keys: in a step
//      of its own, InsertKeys);
//   4. a sum over the positions that came first, FirstOfNode, numbers the new nodes;
//   5. NumberEdges gives each position its number and writes the new nodes;
//   6. EndHop adds up how far the stream and the nodes reach.
#pragma once

#include <cstdint>

#include "khop/csr.hpp"
#include "khop/eligible.hpp"
#include "khop/parallel/backend.hpp"
#include "khop/parallel/node_table.hpp"
#include "khop/parallel/pick_rows.hpp"

namespace khop::parallel {

// What is known on the device of a node type while a batch is drawn.
struct TypeState {
  int64_t positions;  // length of the stream
  int64_t nodes;      // numbered so far
  int64_t frontier;   // first number of the frontier
  int64_t frontier_size;
  int64_t needed;  // positions that there should have been room for
  uint32_t stamp;
  uint32_t padding;
};

// What became of one hop over one edge type.
struct HopRecord {
  int64_t first_position;
  int64_t num_edges;
};

// What there should have been room for, of memory to work in.
struct Needs {
  int64_t candidates;
  int64_t scratch;
};

// The stream of a node type.
struct Stream {
  int64_t* keys;
  int32_t* numbers;
  int64_t* edges;         // positions in the whole graph; null: not wanted
  int32_t* destinations;  // numbers
  int64_t* nodes;         // key of each number
  int64_t capacity;
  int64_t num_ids;  // ids are below this
  int id_bits;
  bool disjoint;
  NodeTable table;
  TypeState* state;

  KHOP_HD int64_t key(int64_t tree, int64_t id) const {
    if (!disjoint) return id;
    return static_cast<int64_t>(static_cast<uint64_t>(tree) << id_bits | static_cast<uint64_t>(id));
  }
};

// Seeds lie at the head of the stream, each with a number of its own.
struct PlaceSeeds {
  Stream stream;
  KHOP_HD void operator()(int64_t i) const {
    stream.nodes[i] = stream.keys[i];
    stream.numbers[i] = static_cast<int32_t>(i);
    stream.table.insert(stream.keys[i], i, stream.state->stamp);
  }
};

// How many edges of a row may be drawn at most, where it is taken whole, and where they begin.
template <class Ptr, class Col>
struct SpanRows {
  CsrView<Ptr, Col> graph;
  FrontierView frontier;
  Fault* fault;
  int64_t* begins;
  int64_t* counts;

  KHOP_HD void operator()(int64_t i) const {
    const Row row = find_row(graph, frontier, i, fault);
    begins[i] = row.begin;
    counts[i] = row.end - row.begin;
  }
};

// The edges of rows, one after the other, of which only some are kept.
struct Candidates {
  const int64_t* offsets;  // a row each, and their end
  const int64_t* begins;   // first edge of each row
  const int64_t* num_rows;
  KHOP_HD int64_t row_of(int64_t c) const { return owner_of(offsets, *num_rows, c); }
  KHOP_HD int64_t edge_of(int64_t row, int64_t c) const { return begins[row] + c - offsets[row]; }
};

// Whether an edge of a row that is taken whole is drawn: no hole, and with a weight.
template <class Ptr, class Col>
struct KeepEdges {
  CsrView<Ptr, Col> graph;
  Candidates candidates;
  HoleList holes;
  bool weighted;

  KHOP_HD int64_t operator()(int64_t c) const {
    const int64_t i = candidates.row_of(c);
    const int64_t edge = candidates.edge_of(i, c);
    if (holes.edges != nullptr && Holes{holes.edges, *holes.count}.contains(edge)) return 0;
    if (!weighted) return 1;
    const uint64_t before = edge == candidates.begins[i] ? 0 : graph.weight_sums[edge - 1];
    return graph.weight_sums[edge] > before ? 1 : 0;
  }
};

// Notes for each candidate whether it is kept. To sum that up is left to code that all kinds of
// candidates share: each instance of a scan takes long to compile.
template <class Keep>
struct MarkKept {
  Keep keep;
  int64_t* marks;
  KHOP_HD void operator()(int64_t c) const { marks[c] = keep(c); }
};

// Puts those that are kept (ranks: how many are before each) one after the other.
struct CompactEdges {
  Candidates candidates;
  const int64_t* ranks;
  int64_t* kept;

  KHOP_HD void operator()(int64_t c) const {
    if (ranks[c + 1] == ranks[c]) return;
    kept[ranks[c]] = candidates.edge_of(candidates.row_of(c), c);
  }
};

// Where each row's edges begin among those that are kept.
struct CompactRows {
  const int64_t* offsets;
  int64_t most;  // candidates that there is room for
  const int64_t* ranks;
  int64_t* kept_offsets;
  KHOP_HD void operator()(int64_t i) const {
    kept_offsets[i] = ranks[offsets[i] < most ? offsets[i] : most];
  }
};

// The edges that a hop has drawn: the j-th of row i.
struct DrawnEdges {
  const int64_t* offsets;  // where each row's begin among all
  const int64_t* num_rows;
  const int64_t* edges;   // row i's from i * stride on; without a stride: one after the other...
  const int64_t* begins;  // ...or, where there is no list of them, consecutive from here on
  int64_t stride;

  KHOP_HD int64_t row_of(int64_t e) const { return owner_of(offsets, *num_rows, e); }
  KHOP_HD int64_t edge(int64_t row, int64_t e) const {
    if (edges == nullptr) return begins[row] + e - offsets[row];
    return stride == 0 ? edges[e] : edges[row * stride + e - offsets[row]];
  }
};

template <class Ptr, class Col>
struct AppendEdges {
  CsrView<Ptr, Col> graph;
  FrontierView frontier;
  DrawnEdges drawn;
  Stream stream;
  Fault* fault;
  uint32_t* slots;  // an edge each

  KHOP_HD void operator()(int64_t e) const {
    const int64_t row = drawn.row_of(e);
    const int64_t edge = drawn.edge(row, e);
    const int64_t number = *frontier.begin + row;
    const int64_t position = stream.state->positions + e;
    auto id = static_cast<int64_t>(graph.indices[edge]);
    if (id < 0 || id >= stream.num_ids) {
      fault->report(Fault::kNoSuchNeighbor, id);
      id = 0;
    }
    const int64_t key = stream.key(frontier.tree_of(frontier.keys[number]), id);
    stream.keys[position] = key;
    if (stream.edges != nullptr) stream.edges[position] = graph.first_edge + edge;
    stream.destinations[position] = static_cast<int32_t>(number);
    if (stream.table.narrow) {
      slots[e] = static_cast<uint32_t>(stream.table.insert(key, position, stream.state->stamp));
    }
  }
};

struct InsertKeys {
  Stream stream;
  uint32_t* slots;
  KHOP_HD void operator()(int64_t e) const {
    const int64_t position = stream.state->positions + e;
    slots[e] = static_cast<uint32_t>(
        stream.table.insert(stream.keys[position], position, stream.state->stamp));
  }
};

// 1 for the position at which a node appears first.
struct FirstOfNode {
  Stream stream;
  const uint32_t* slots;
  KHOP_HD int64_t operator()(int64_t e) const {
    const int64_t first = stream.table.first_in(slots[e], stream.state->stamp);
    return first == stream.state->positions + e ? 1 : 0;
  }
};

struct NumberEdges {
  Stream stream;
  const uint32_t* slots;
  const int64_t* ranks;  // new nodes before each edge
  KHOP_HD void operator()(int64_t e) const {
    const int64_t begin = stream.state->positions;
    const int64_t first = stream.table.first_in(slots[e], stream.state->stamp);
    const int64_t number =
        first < begin ? stream.numbers[first] : stream.state->nodes + ranks[first - begin];
    stream.numbers[begin + e] = static_cast<int32_t>(number);
    if (first == begin + e) stream.nodes[number] = stream.keys[first];
  }
};

// What was found becomes the next frontier, of each node type.
struct NextFrontier {
  TypeState* states;
  int64_t num_types;
  int64_t* sizes;  // of this hop, a type each

  KHOP_HD void operator()(int64_t) const {
    for (int64_t t = 0; t < num_types; ++t) {
      TypeState& state = states[t];
      state.frontier += state.frontier_size;
      state.frontier_size = state.nodes - state.frontier;
      sizes[t] = state.frontier_size;
    }
  }
};

// One item: the stream has grown by a hop over one edge type. Says so where something found no
// room; the batch is then drawn again with more.
struct EndHop {
  Count edges;
  const int64_t* total;  // edges that were drawn, also those that found no room
  const int64_t* ranks;
  const int64_t* candidates;  // null: there were none
  int64_t candidates_capacity;
  Scratch scratch;
  TypeState* state;
  HopRecord* record;
  Needs* needs;
  Fault* fault;
  NextFrontier next;  // without types: the hop goes on with another edge type

  KHOP_HD void operator()(int64_t item) const {
    const int64_t count = edges.value();
    *record = {state->positions, count};
    const int64_t positions = state->positions + *total;
    if (positions > state->needed) state->needed = positions;
    bool fits = *total <= count;
    if (candidates != nullptr) {
      if (*candidates > needs->candidates) needs->candidates = *candidates;
      fits = fits && *candidates <= candidates_capacity;
    }
    const int64_t words = scratch.shared + *scratch.used;
    if (words > needs->scratch) needs->scratch = words;
    fits = fits && words <= scratch.capacity;
    *scratch.used = 0;
    if (!fits) fault->report(Fault::kTooMany, positions);
    state->positions += count;
    state->nodes += ranks[count];
    next(item);
  }
};

}  // namespace khop::parallel
