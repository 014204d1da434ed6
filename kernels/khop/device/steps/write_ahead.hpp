// Writes a batch of which the host does not know yet what it has come to: the device finds out
// where everything goes. All arrays of the batch lie in one block, one behind the other:
//   ids of each node type's nodes; their trees, in a disjoint batch;
//   ends of each edge type's edges, rows before columns; their names, where they are wanted; their
//   values, where they have any, float32 in whole words
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/write.hpp"

namespace khop::device {

struct BlockTarget {
  int64_t* words;     // null: there is no block
  int64_t capacity;   // of the block
  int64_t backward;   // 1: columns before rows
  int64_t num_items;  // nodes and edges to be written, by the device; none if they do not fit
};

// Of an edge type, in the graph's order.
struct EdgeTarget {
  AnyInts names;     // see EdgePiece
  int64_t is_named;  // 1: names are wanted
  int64_t has_values;

  KHOP_HD int64_t value_words(int64_t num_edges) const {
    return has_values != 0 ? (num_edges + 1) / 2 : 0;
  }
};

// The nodes of a type, or the edges of an edge type.
struct BlockPart {
  int64_t count;
  int64_t first_item;
  int64_t at;        // of ids, or of ends, in the block
  int64_t other_at;  // of trees, or of names
  int64_t values_at;
};

// Plans what is written and where to, for a batch that is drawn.
struct PlanWrite {
  BatchView batch;
  BlockTarget* target;       // null: nothing is written
  const EdgeTarget* edges;   // an edge type each
  const HopRecord* records;  // a hop each, of these an edge type each
  BlockPart* parts;          // node types, then edge types
  Piece* pieces;             // a node type each; then of each edge type a hop each
  int64_t num_hops;

  KHOP_HD int64_t num_parts() const { return batch.num_types + batch.num_relations; }
  KHOP_HD int64_t num_pieces() const { return batch.num_types + batch.num_relations * num_hops; }

  KHOP_HD void count(int64_t k) const {
    int64_t count = 0;
    if (k < batch.num_types) {
      count = batch.states[k].nodes;
    } else {
      for (int64_t h = 0; h < num_hops; ++h) count += record(h, k - batch.num_types).num_edges;
    }
    parts[k].count = count;
  }

  KHOP_HD void add_up() const {
    int64_t items = 0;
    int64_t at = 0;
    const int64_t types = batch.num_types;
    for (int64_t t = 0; t < types; ++t) {
      parts[t].first_item = items;
      parts[t].at = at;
      items += parts[t].count;
      at += parts[t].count;
    }
    for (int64_t t = 0; t < types; ++t) {
      parts[t].other_at = at;
      if (batch.buffers[t].disjoint) at += parts[t].count;
    }
    for (int64_t k = types; k < num_parts(); ++k) {
      parts[k].first_item = items;
      parts[k].at = at;
      items += parts[k].count;
      at += 2 * parts[k].count;
    }
    for (int64_t k = types; k < num_parts(); ++k) {
      parts[k].other_at = at;
      if (edges[k - types].is_named != 0) at += parts[k].count;
    }
    for (int64_t k = types; k < num_parts(); ++k) {
      parts[k].values_at = at;
      at += edges[k - types].value_words(parts[k].count);
    }
    const bool fits = batch.needs->exceeded == 0 && at <= target->capacity;
    target->num_items = fits && target->words != nullptr ? items : 0;
  }

  KHOP_HD void place(int64_t k) const {
    if (target->num_items == 0) return;
    if (k < batch.num_types) {
      place_nodes(k);
    } else {
      place_edges(batch.relations[k - batch.num_types]);
    }
  }

 private:
  KHOP_HD const HopRecord& record(int64_t hop, int64_t relation) const {
    return records[hop * batch.num_relations + relation];
  }

  KHOP_HD void place_nodes(int64_t t) const {
    const SampleBuffer& buffer = batch.buffers[t];
    const BlockPart& part = parts[t];
    Piece& piece = pieces[t];
    piece.first = part.first_item;
    piece.of_nodes = true;
    piece.nodes = {buffer.nodes, target->words + part.at,
                   buffer.disjoint ? target->words + part.other_at : nullptr, buffer.id_bits,
                   buffer.disjoint};
  }

  KHOP_HD void place_edges(const RelationView& relation) const {
    const SampleBuffer& buffer = batch.buffers[relation.source];
    const BlockPart& part = parts[batch.num_types + relation.index];
    const EdgeTarget& edge = edges[relation.index];
    int64_t* row = target->words + part.at;
    int64_t* col = row + part.count;
    int64_t* const named = edge.is_named != 0 ? target->words + part.other_at : nullptr;
    float* const valued =
        edge.has_values != 0 ? reinterpret_cast<float*>(target->words + part.values_at) : nullptr;
    if (target->backward != 0) {
      int64_t* const first = row;
      row = col;
      col = first;
    }
    int64_t done = 0;
    for (int64_t h = 0; h < num_hops; ++h) {
      const HopRecord& hop = record(h, relation.index);
      Piece& piece = pieces[batch.num_types + relation.index * num_hops + h];
      piece.first = part.first_item + done;
      piece.of_nodes = false;
      piece.edges = {buffer.numbers + hop.first_position,
                     buffer.destinations + hop.first_position,
                     row + done,
                     col + done,
                     buffer.edges == nullptr ? nullptr : buffer.edges + hop.first_position,
                     edge.names,
                     named == nullptr ? nullptr : named + done,
                     valued == nullptr ? nullptr : buffer.values + hop.first_position,
                     valued == nullptr ? nullptr : valued + done};
      done += hop.num_edges;
    }
  }
};

struct WriteAhead {
  const Piece* pieces;
  int64_t count;

  KHOP_HD void operator()(int64_t item) const { write_item(pieces, count, item); }
};

}  // namespace khop::device
