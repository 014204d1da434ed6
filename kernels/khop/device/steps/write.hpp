// Writes a drawn batch to the arrays that users get: int64, of all node or edge types at once.
//
// Where things are is known to the host by then, and travels with the launch: as many pieces as
// fit the arguments of a kernel.
#pragma once

#include <cstdint>

#include "khop/core/csr.hpp"
#include "khop/device/steps/backend.hpp"

namespace khop::device {

// Nodes of a type, by number.
struct NodePiece {
  const int64_t* keys;
  int64_t* ids;    // null: not wanted
  int64_t* trees;  // null: not wanted
  int id_bits;
  bool disjoint;

  KHOP_HD void write(int64_t i) const {
    const auto key = static_cast<uint64_t>(keys[i]);
    const uint64_t mask = (uint64_t{1} << id_bits) - 1;
    if (ids != nullptr) ids[i] = static_cast<int64_t>(disjoint ? key & mask : key);
    if (trees != nullptr) trees[i] = disjoint ? static_cast<int64_t>(key >> id_bits) : 0;
  }
};

// Edges that lie in one stretch: their ends, their names by their positions in the graph, and their
// values.
struct EdgePiece {
  const int32_t* sources;
  const int32_t* destinations;
  int64_t* row;  // null: ends are not wanted
  int64_t* col;
  const int64_t* edges;
  AnyInts names;   // without data: an edge's position is its name
  int64_t* named;  // null: names are not wanted
  const float* values;
  float* valued;  // null: they have none

  KHOP_HD void write(int64_t j) const {
    if (row != nullptr) {
      row[j] = sources[j];
      col[j] = destinations[j];
    }
    if (named != nullptr) named[j] = names.data == nullptr ? edges[j] : names[edges[j]];
    if (valued != nullptr) valued[j] = values[j];
  }
};

// Nodes of a type, or edges.
struct Piece {
  int64_t first;
  bool of_nodes;
  union {
    NodePiece nodes;
    EdgePiece edges;
  };

  KHOP_HD void write(int64_t i) const {
    if (of_nodes) {
      nodes.write(i);
    } else {
      edges.write(i);
    }
  }
};

// Writes an item of pieces that lie one behind the other: each begins at its `first`.
KHOP_HD void write_item(const Piece* pieces, int64_t count, int64_t item) {
  int64_t low = 0;
  int64_t high = count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (pieces[middle].first <= item) {
      low = middle;
    } else {
      high = middle;
    }
  }
  pieces[low].write(item - pieces[low].first);
}

struct Pieces {
  static constexpr int kMost = 3584 / static_cast<int>(sizeof(Piece));
  Piece pieces[kMost];
  int count;
};

struct WritePieces {
  Pieces pieces;

  KHOP_HD void operator()(int64_t item) const { write_item(pieces.pieces, pieces.count, item); }
};

// Collects pieces, and has them written: in one launch, unless they are very many.
template <class Backend>
class PieceWriter {
 public:
  explicit PieceWriter(Backend& backend) : backend_(backend) {}

  void add(const NodePiece& nodes, int64_t count) {
    if (Piece* const piece = next(count)) {
      piece->of_nodes = true;
      piece->nodes = nodes;
    }
  }
  void add(const EdgePiece& edges, int64_t count) {
    if (Piece* const piece = next(count)) {
      piece->of_nodes = false;
      piece->edges = edges;
    }
  }
  void write() {
    if (items_ > 0) backend_.run(Count{items_}, step_);
    items_ = 0;
    step_.pieces.count = 0;
  }

 private:
  // Null where there is nothing to write.
  Piece* next(int64_t count) {
    if (count == 0) return nullptr;
    if (step_.pieces.count == Pieces::kMost) write();
    Piece* const piece = &step_.pieces.pieces[step_.pieces.count++];
    piece->first = items_;
    items_ += count;
    return piece;
  }

  Backend& backend_;
  WritePieces step_{};  // what no piece fills is not left to chance: it travels along
  int64_t items_ = 0;
};

}  // namespace khop::device
