// Writes a batch to arrays of fixed lengths, whatever it has come to: its seeds and the nodes and
// edges of each hop are sections, and what is left of a section is padding. The host needs to know
// nothing of the batch then. All arrays lie in one block, one behind the other:
//   ids of each node type's nodes; their trees, in a disjoint batch;
//   ends of each edge type's edges, rows before columns; their names, where they are wanted;
//   a byte for each node, then for each edge: 0 for padding. Each of these arrays fills words
#pragma once

#include <cstdint>

#include "khop/core/divide.hpp"
#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/gather.hpp"
#include "khop/device/steps/write_ahead.hpp"

namespace khop::device {

// Nodes or edges of one type and one hop.
struct PadSection {
  int64_t first;  // item: all sections lie one behind the other
  int64_t size;   // with padding
  int64_t most;   // that may be drawn
};

// The nodes of a type, or the edges of an edge type: arrays in the block.
struct PadPart {
  int64_t first;     // item
  int64_t at;        // of ids, or of ends
  int64_t other_at;  // of trees, or of names
  int64_t mask_at;
  int64_t rows;
  int64_t source;  // node types of edges
  int64_t destination;
};

struct PaddedBatch {
  BatchView batch;
  const BlockTarget* target;  // null: batches are not padded
  const EdgeTarget* edges;    // an edge type each
  const PadSection*
      sections;          // a node type each and of these seeds and hops; then edge types, hops
  const PadPart* parts;  // node types, then edge types
  const int64_t* seed_starts;  // [num_types + 1]
  const int64_t* hop_sizes;    // a hop each, of these a node type each
  const HopRecord* records;    // a hop each, of these an edge type each
  int64_t num_hops;

  KHOP_HD int64_t num_sections() const { return node_sections() + batch.num_relations * num_hops; }

  // Notes whether a section has room for what was drawn, and padded edges a padded node.
  KHOP_HD void check(int64_t k) const {
    bool fits = drawn(k) <= sections[k].most;
    if (k >= node_sections() && drawn(k) < sections[k].size) {
      const int64_t hop = (k - node_sections()) % num_hops;
      const PadPart& part = parts[batch.num_types + (k - node_sections()) / num_hops];
      fits =
          fits && has_padding(at(part.source, hop + 1)) && has_padding(at(part.destination, hop));
    }
    if (!fits) batch.needs->unfit = 1;
  }

  // Writes an item: a node or an edge. A batch that does not fit is padding alone.
  KHOP_HD void operator()(int64_t item) const {
    const int64_t k = section_of(item);
    const int64_t j = item - sections[k].first;
    if (k < node_sections()) {
      write_node(item, k, j);
    } else {
      write_edge(item, k, j);
    }
  }

 private:
  KHOP_HD int64_t node_sections() const { return batch.num_types * (num_hops + 1); }
  // The section of a type's nodes at so many edges from the seeds.
  KHOP_HD int64_t at(int64_t type, int64_t hop) const { return type * (num_hops + 1) + hop; }
  KHOP_HD bool has_padding(int64_t k) const { return drawn(k) < sections[k].size; }

  KHOP_HD int64_t drawn(int64_t k) const {
    if (k >= node_sections()) {
      const int64_t relation = (k - node_sections()) / num_hops;
      return record((k - node_sections()) % num_hops, relation).num_edges;
    }
    const int64_t type = k / (num_hops + 1);
    const int64_t hop = k % (num_hops + 1);
    return hop == 0 ? seed_starts[type + 1] - seed_starts[type]
                    : hop_sizes[(hop - 1) * batch.num_types + type];
  }
  KHOP_HD const HopRecord& record(int64_t hop, int64_t relation) const {
    return records[hop * batch.num_relations + relation];
  }
  KHOP_HD int64_t written(int64_t k) const {
    return batch.needs->exceeded == 0 && batch.needs->unfit == 0 ? drawn(k) : 0;
  }

  KHOP_HD int64_t section_of(int64_t item) const {
    int64_t low = 0;
    int64_t high = num_sections();
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      if (sections[middle].first <= item) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  KHOP_HD void mark(const PadPart& part, int64_t row, bool is_drawn) const {
    reinterpret_cast<uint8_t*>(target->words + part.mask_at)[row] = is_drawn ? 1 : 0;
  }

  KHOP_HD void write_node(int64_t item, int64_t k, int64_t j) const {
    const int64_t type = k / (num_hops + 1);
    const SampleBuffer& buffer = batch.buffers[type];
    const PadPart& part = parts[type];
    const int64_t row = item - part.first;
    const bool is_drawn = j < written(k);
    int64_t id = 0;
    int64_t tree = seed_starts[batch.num_types];  // padding is a further tree
    if (is_drawn) {
      int64_t number = j;
      for (int64_t before = at(type, 0); before < k; ++before) number += drawn(before);
      const auto key = static_cast<uint64_t>(buffer.nodes[number]);
      id =
          static_cast<int64_t>(buffer.disjoint ? key & ((uint64_t{1} << buffer.id_bits) - 1) : key);
      if (buffer.disjoint) tree = static_cast<int64_t>(key >> buffer.id_bits);
    }
    target->words[part.at + row] = id;
    if (buffer.disjoint) target->words[part.other_at + row] = tree;
    mark(part, row, is_drawn);
  }

  KHOP_HD void write_edge(int64_t item, int64_t k, int64_t j) const {
    const int64_t relation = (k - node_sections()) / num_hops;
    const int64_t hop = (k - node_sections()) % num_hops;
    const PadPart& part = parts[batch.num_types + relation];
    const int64_t row = item - part.first;
    const int64_t count = written(k);
    const bool is_drawn = j < count;
    int64_t source, destination;
    int64_t name = 0;
    const EdgeTarget& edge = edges[relation];
    if (is_drawn) {
      const SampleBuffer& buffer = batch.buffers[part.source];
      const int64_t position = record(hop, relation).first_position + j;
      source = padded(part.source, buffer.numbers[position]);
      destination = padded(part.destination, buffer.destinations[position]);
      if (edge.is_named != 0) {
        name = buffer.edges[position];
        if (edge.names.data != nullptr) name = edge.names[name];
      }
    } else {
      const int64_t num_padded = sections[k].size - count;
      source = padding(at(part.source, hop + 1), j - count, num_padded, part.source);
      destination = padding(at(part.destination, hop), j - count, num_padded, part.destination);
    }
    target->words[part.at + row] = source;
    target->words[part.at + part.rows + row] = destination;
    if (edge.is_named != 0) target->words[part.other_at + row] = name;
    mark(part, row, is_drawn);
  }

  // The row of a type's node, by its number in the batch.
  KHOP_HD int64_t padded(int64_t type, int64_t number) const {
    int64_t k = at(type, 0);
    for (; k < at(type, num_hops) && number >= drawn(k); ++k) number -= drawn(k);
    return sections[k].first - parts[type].first + number;
  }

  // The row of a padded node of a section: padded edge j of so many. They are spread evenly.
  KHOP_HD int64_t padding(int64_t k, int64_t j, int64_t num_edges, int64_t type) const {
    const int64_t begin = sections[k].first - parts[type].first;
    const int64_t room = sections[k].size - written(k);
    return room <= 0 ? begin : begin + written(k) + j * room / num_edges;
  }
};

// Sets the rows of padding to zero: an item a word.
template <class Word>
struct BlankRows {
  Divider words;  // a row
  const uint8_t* mask;
  Word* rows;

  KHOP_HD void operator()(int64_t item) const {
    if (mask[words.quotient(item)] == 0) rows[item] = Word{};
  }
};

template <class Backend>
void blank_rows(Backend& backend, void* rows, int64_t row_bytes, const uint8_t* mask,
                int64_t count) {
  if (row_bytes == 0) return;
  const uint64_t alignment = static_cast<uint64_t>(row_bytes) | reinterpret_cast<uintptr_t>(rows);
  with_widest_word(alignment, [&](auto word) {
    using Word = decltype(word);
    const Divider words(row_bytes / static_cast<int64_t>(sizeof(Word)));
    backend.run(Count{count * words.divisor()},
                BlankRows<Word>{words, mask, static_cast<Word*>(rows)});
  });
}

}  // namespace khop::device
