// A batch as the steps see it that draw it: tables of its node types and edge types.
//
// A hop draws over all edge types at once. Its rows lie one behind the other, edge type after edge
// type, and so do the edges that they contribute. Edge types are in the order of the node types
// that their neighbours have (and, of the same one, in the graph's): what a hop appends to a node
// type's buffer is then one stretch of the hop's edges, in the order in which the CPU appends it.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/core/eligible.hpp"
#include "khop/core/hop_options.hpp"
#include "khop/device/steps/backend.hpp"
#include "khop/device/steps/node_table.hpp"

namespace khop::device {

// What is known of a node type while a batch is drawn.
struct TypeState {
  int64_t positions;  // length of the buffer
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

// What there should have been room for. A batch that exceeds it stops, and is drawn again.
struct Needs {
  int64_t exceeded;
  int64_t rows;  // of a hop
  int64_t picks;
  int64_t edges;
  int64_t candidates;
  int64_t scratch;
  int64_t unfit;      // a batch that is padded does not fit the sizes of its sections
  int64_t negatives;  // strict ones that need more rounds of draws

  KHOP_HD static void note(int64_t& most, int64_t needed) {
    if (needed > most) most = needed;
  }
};

// The buffer of a node type: all that is drawn, by position; and its nodes, by number.
struct SampleBuffer {
  int64_t* keys;
  int32_t* numbers;
  int64_t* edges;         // positions in the whole graph; null: not wanted
  int32_t* destinations;  // numbers
  int64_t* nodes;         // key of each number
  float* values;          // of edges, by position; null: they have none
  int64_t capacity;
  int64_t num_ids;  // ids are below this
  int id_bits;
  bool disjoint;
  NodeTable table;
  int64_t first_relation;  // edge types whose neighbours are of this type: in the batch's order
  int64_t end_relation;
  const int64_t* times = nullptr;  // of nodes, by number; null: those of their trees

  KHOP_HD int64_t key(int64_t tree, int64_t id) const {
    if (!disjoint) return id;
    return static_cast<int64_t>(static_cast<uint64_t>(tree) << id_bits | static_cast<uint64_t>(id));
  }
};

// The nodes of one type as a step sees them: keys by number, the frontier among them.
struct FrontierView {
  const int64_t* keys;
  const int64_t* begin;       // first number, on the device
  const int64_t* tree_times;  // null: no times
  int id_bits;
  bool disjoint;
  const int64_t* times = nullptr;  // by number; null: those of trees

  // The time of a node, or null.
  KHOP_HD const int64_t* time_of(int64_t number, int64_t tree) const {
    if (times != nullptr) return times + number;
    return tree_times == nullptr ? nullptr : tree_times + tree;
  }
  KHOP_HD int64_t id_of(int64_t key) const {
    return disjoint ? key & static_cast<int64_t>((uint64_t{1} << id_bits) - 1) : key;
  }
  KHOP_HD int64_t tree_of(int64_t key) const {
    return disjoint ? static_cast<int64_t>(static_cast<uint64_t>(key) >> id_bits) : 0;
  }
};

// All excluded edges of an edge type, ascending; rows are stretches of them.
struct ExcludedList {
  const int64_t* edges;  // null: none
  const int64_t* count;  // on the device

  KHOP_HD ExcludedPositions of(const Row& row) const {
    if (edges == nullptr) return {nullptr, 0};
    const int64_t first = first_not_below(edges, *count, row.begin);
    return {edges + first, first_not_below(edges, *count, row.end) - first};
  }
  KHOP_HD bool contains(int64_t edge) const {
    return edges != nullptr && ExcludedPositions{edges, *count}.contains(edge);
  }
};

struct RelationView {
  DeviceCsr graph;
  ExcludedList excluded;
  int64_t source;       // node type of the neighbours
  int64_t destination;  // whose neighbours are drawn
  int64_t index;        // in the graph's order
};

enum class RowMode : int32_t {
  kPicked,    // so many edges of each row
  kWhole,     // all of them
  kFiltered,  // all that are not excluded and have a weight
  kListed,    // nodes that need not be neighbours
};

// How a hop draws over one edge type.
struct HopStep {
  HopOptions options;  // fan-out 0 of kPicked: the edge type has no rows in this hop
  RowMode mode;
  uint32_t padding;

  KHOP_HD bool is_empty() const { return mode == RowMode::kPicked && options.fanout == 0; }
};

// The tables, in the memory of their reader.
struct BatchView {
  const SampleBuffer* buffers;
  const RelationView* relations;
  TypeState* states;
  Needs* needs;
  DeviceError* error;
  const int64_t* tree_times;  // null: no times
  int64_t num_types;
  int64_t num_relations;
  int64_t* row_starts;   // [num_relations + 1] of the present hop, where each edge type's begin
  int64_t* pick_starts;  // [num_relations + 1]

  KHOP_HD int64_t relation_of_row(int64_t row) const {
    return owner_of(row_starts, num_relations, row);
  }
  KHOP_HD int64_t num_rows() const { return row_starts[num_relations]; }
  KHOP_HD FrontierView frontier_of(const RelationView& relation) const {
    const SampleBuffer& of = buffers[relation.destination];
    return {of.nodes, &states[relation.destination].frontier, tree_times, of.id_bits, of.disjoint,
            of.times};
  }
};

// Finds the i-th row of a frontier. A row that cannot be used is reported, and empty.
KHOP_HD Row find_row(const DeviceCsr& graph, const FrontierView& frontier, int64_t i,
                     DeviceError* error) {
  const int64_t number = *frontier.begin + i;
  const int64_t key = frontier.keys[number];
  const int64_t id = frontier.id_of(key);
  const int64_t tree = frontier.tree_of(key);
  Row row{id, 0, static_cast<uint32_t>(tree), 0, 0, 0};
  const int64_t place = graph.row_of(id);
  if (place < 0 || place >= graph.num_rows) {
    error->report(DeviceError::kNoSuchRow, id);
    return row;
  }
  const int64_t begin = graph.indptr[place];
  const int64_t end = graph.indptr[place + 1];
  if (!graph.row_is_sound(begin, end)) {
    error->report(DeviceError::kCorruptRow, place);
    return row;
  }
  row.row = place;
  row.begin = begin;
  row.end = row.row_end = end;
  const int64_t* const time = frontier.time_of(number, tree);
  if (graph.times != nullptr && time != nullptr) row.end = graph.visible_end(begin, end, *time);
  return row;
}

// The rows of a hop: counts those of each edge type, then writes where each begins. By the host for
// the first hop, by the device for the others.
struct PlanRows {
  BatchView batch;
  const HopStep* steps;  // null: there is no such hop
  int64_t most_rows;
  int64_t most_picks;

  KHOP_HD void count(int64_t k) const {
    if (steps == nullptr) return;
    const HopStep& step = steps[k];
    const int64_t rows =
        step.is_empty() ? 0 : batch.states[batch.relations[k].destination].frontier_size;
    batch.row_starts[k + 1] = rows;
    batch.pick_starts[k + 1] =
        step.mode == RowMode::kPicked ? saturated(rows, step.options.fanout) : 0;
  }

  KHOP_HD void add_up() const {
    if (steps == nullptr) return;
    int64_t rows = 0, picks = 0;
    batch.row_starts[0] = batch.pick_starts[0] = 0;
    for (int64_t k = 0; k < batch.num_relations; ++k) {
      batch.row_starts[k + 1] = rows += batch.row_starts[k + 1];
      picks += batch.pick_starts[k + 1];
      if (picks > kEnough) picks = kEnough;
      batch.pick_starts[k + 1] = picks;
    }
    Needs& needs = *batch.needs;
    Needs::note(needs.rows, rows);
    Needs::note(needs.picks, picks);
    if (rows > most_rows || picks > most_picks) needs.exceeded = 1;
    if (needs.exceeded == 0) return;
    for (int64_t k = 0; k < batch.num_relations; ++k) batch.row_starts[k + 1] = 0;
  }

 private:
  static constexpr int64_t kEnough = int64_t{1} << 60;

  static KHOP_HD int64_t saturated(int64_t rows, int64_t fanout) {
    return rows > 0 && fanout > kEnough / rows ? kEnough : rows * fanout;
  }
};

}  // namespace khop::device
