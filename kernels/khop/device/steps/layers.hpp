// Layers of nodes that are drawn by importance for all rows together (LADIES, PLADIES, FastGCN).
//
// The entries of a layer are all neighbours of its rows, row by row. Sorted by node, those of one
// node are a run. Importance is an integer, so that sums of it are the same in any order. Chances
// and weights are computed in the order of operations of src/khop/sampler/methods/ladies.py.
#pragma once

#include <cstdint>

#include "khop/core/real.hpp"
#include "khop/core/search.hpp"
#include "khop/core/walk.hpp"
#include "khop/device/steps/candidates.hpp"
#include "khop/device/steps/runs.hpp"

namespace khop::device {

KHOP_HD int bit_length(int64_t value) {
  int bits = 0;
  for (; value > 0; value >>= 1) ++bits;
  return bits;
}

// Bits by which masses are scaled: no sum over so many entries leaves 63 bits.
KHOP_HD int scale_bits(int64_t num_entries) {
  const int left = 62 - bit_length(num_entries);
  return left < 40 ? left : 40;
}

struct KeyEntries {
  BatchView batch;
  Candidates entries;
  uint64_t none;
  uint64_t* keys;
  int64_t* values;
  int64_t* degrees;  // of each entry's row

  KHOP_HD void operator()(int64_t c) const {
    const RelationView& relation = batch.relations[0];
    const int64_t i = entries.row_of(c);
    const int64_t begin = entries.begins[i];
    const int64_t end = begin + entries.offsets[i + 1] - entries.offsets[i];
    const ExcludedPositions excluded = relation.excluded.of(Row{0, 0, 0, begin, end, end});
    const int64_t edge = entries.edge_of(i, c);
    values[c] = c;
    degrees[c] = end - begin - excluded.count;
    keys[c] = none;
    if (excluded.contains(edge)) return;
    const int64_t id = relation.graph.indices[edge];
    if (id < 0 || id >= static_cast<int64_t>(none)) {
      batch.error->report(DeviceError::kNoSuchNeighbor, id);
    } else {
      keys[c] = static_cast<uint64_t>(id);
    }
  }
};

// What each entry adds to the importance of its node: 0 for nodes that are always drawn.
struct EntryMasses {
  BatchView batch;
  Runs runs;
  const int64_t* entries;
  const int64_t* degrees;
  bool skips;
  int64_t* masses;

  KHOP_HD void operator()(int64_t i) const {
    masses[i] = 0;
    if (!runs.has(i) || (skips && is_row(static_cast<int64_t>(runs.keys[i])))) return;
    // Entries without a key are those of excluded edges.
    const int64_t num_entries = first_not_below(runs.keys, runs.count, runs.none);
    const auto degree = static_cast<uint64_t>(degrees[entries[i]]);
    const auto squared = static_cast<int64_t>(degree * degree);
    const int64_t scale = int64_t{1} << scale_bits(num_entries);
    const int64_t share = squared > 1 ? scale / squared : scale;
    masses[i] = share > 1 ? share : 1;
  }

 private:
  KHOP_HD bool is_row(int64_t id) const {
    const int64_t type = batch.relations[0].source;
    return batch.buffers[type].table.find(id, batch.states[type].stamp) >= 0;
  }
};

// Importance of the nodes of runs: sums over entries before each.
struct Importance {
  Runs runs;
  const int64_t* sums;  // [count + 1]

  KHOP_HD int64_t of(int64_t run) const {
    return sums[runs.begins[run + 1]] - sums[runs.begins[run]];
  }
  KHOP_HD int64_t total() const { return sums[runs.count]; }
};

// To sort nodes by falling importance. Entries that begin no run come last.
struct KeyByImportance {
  Importance importance;
  uint64_t none;
  uint64_t* keys;
  int64_t* values;

  KHOP_HD void operator()(int64_t i) const {
    const Runs& runs = importance.runs;
    values[i] = i;
    keys[i] = none;
    if (runs.begins_at(i)) keys[i] -= static_cast<uint64_t>(importance.of(runs.run_of(i)));
  }
};

// The most important nodes, in falling order.
struct Largest {
  const uint64_t* keys;
  int64_t count;
  uint64_t none;
  int64_t* sums;  // of those before each

  KHOP_HD int64_t mass(int64_t c) const { return static_cast<int64_t>(none - keys[c]); }
};

struct LargestMasses {
  Largest largest;
  KHOP_HD void operator()(int64_t c) const { largest.sums[c] = largest.mass(c); }
};

// Finds how many nodes are certain, as cpu::common_chances: a node is certain as long as its
// importance is no less than its share of what is left.
struct FindCertain {
  Importance importance;
  Largest largest;
  int64_t nodes;      // of the layer
  uint64_t* certain;  // lowered to the first that is not

  KHOP_HD void operator()(int64_t c) const {
    const int64_t left = importance.total() - largest.sums[c];
    const double share = static_cast<double>(left) / static_cast<double>(nodes - c);
    if (static_cast<double>(largest.mass(c)) < share) {
      atomic_min(certain, static_cast<uint64_t>(c));
    }
  }
};

// The weight of a run's edges: 1 / chance of nodes that are drawn, 0 of others.
struct PoissonWeights {
  Importance importance;
  Largest largest;
  int64_t nodes;
  const uint64_t* certain;
  uint64_t key;
  double* weights;

  KHOP_HD void operator()(int64_t run) const {
    const double chance = chance_of(importance.of(run));
    const auto word = static_cast<double>(walk_word64(key, importance.runs.key_of(run)));
    weights[run] = word < khop::product(chance, 0x1p64) || chance == 1.0 ? 1.0 / chance : 0.0;
  }

 private:
  KHOP_HD double chance_of(int64_t mass) const {
    const bool takes_all = nodes >= largest.count || largest.mass(nodes) == 0;
    if (mass == 0 || takes_all) return 1.0;
    const auto found = static_cast<int64_t>(*certain);
    const int64_t sure = *certain < static_cast<uint64_t>(nodes - 1) ? found : nodes - 1;
    const int64_t left = importance.total() - largest.sums[sure];
    const double factor = static_cast<double>(nodes - sure) / static_cast<double>(left);
    const double chance = khop::product(static_cast<double>(mass), factor);
    return chance < 1.0 ? chance : 1.0;
  }
};

// What draws with replacement are made from: running sums of the importance of runs' entries, or of
// all nodes of the graph.
struct Urn {
  Importance importance;
  const int64_t* column_sums;  // null: the runs'
  int64_t num_ids;

  KHOP_HD int64_t total() const {
    return column_sums == nullptr ? importance.total() : column_sums[num_ids - 1];
  }
  KHOP_HD int64_t mass(int64_t run) const {
    if (column_sums == nullptr) return importance.of(run);
    const int64_t id = importance.runs.key_of(run);
    return column_sums[id] - (id > 0 ? column_sums[id - 1] : 0);
  }
  // The run that a point falls into, or -1.
  KHOP_HD int64_t run_at(int64_t point) const {
    const Runs& runs = importance.runs;
    if (column_sums == nullptr) {
      return runs.run_of(first_above(importance.sums + 1, runs.count, point));
    }
    const auto id = static_cast<uint64_t>(first_above(column_sums, num_ids, point));
    const int64_t i = first_not_below(runs.keys, runs.count, id);
    return i < runs.count && runs.keys[i] == id ? runs.run_of(i) : -1;
  }
};

struct DrawFromUrn {
  Urn urn;
  uint64_t key;
  int64_t* times;  // that each run was drawn; zero before

  KHOP_HD void operator()(int64_t draw) const {
    const int64_t total = urn.total();
    if (total == 0) return;
    const uint64_t word = walk_word64(key, draw);
    const auto point = static_cast<int64_t>(bounded64(word, static_cast<uint64_t>(total)));
    const int64_t run = urn.run_at(point);
    if (run >= 0) atomic_add(&times[run], 1);
  }
};

struct UrnWeights {
  Urn urn;
  int64_t draws;
  const int64_t* times;
  double* weights;

  KHOP_HD void operator()(int64_t run) const {
    const int64_t mass = urn.mass(run);
    weights[run] = 0.0;
    if (mass == 0) {
      weights[run] = 1.0;  // always drawn
    } else if (times[run] > 0) {
      const double each = static_cast<double>(urn.total()) / static_cast<double>(draws);
      weights[run] =
          khop::product(static_cast<double>(times[run]), each) / static_cast<double>(mass);
    }
  }
};

// Weights of entries, in the order of rows, from those of runs.
struct SpreadWeights {
  Runs runs;
  const int64_t* entries;
  const double* of_run;
  double* of_entry;

  KHOP_HD void operator()(int64_t i) const {
    of_entry[entries[i]] = runs.has(i) ? of_run[runs.run_of(i)] : 0.0;
  }
};

struct HasWeight {
  const double* weights;
  KHOP_HD int64_t operator()(int64_t c) const { return weights[c] > 0.0 ? 1 : 0; }
};

struct CompactWeights {
  const int64_t* ranks;
  const double* weights;
  double* kept;

  KHOP_HD void operator()(int64_t c) const {
    if (ranks[c + 1] > ranks[c]) kept[ranks[c]] = weights[c];
  }
};

// Values of a row's edges: their weights, perhaps scaled. A row's weights are added one after the
// other, as on the CPU.
struct LayerValues {
  FilteredRows filtered;
  const double* kept;
  bool scales_rows;
  float* values;

  KHOP_HD void operator()(int64_t row) const {
    const int64_t begin = filtered.first_kept(row);
    const int64_t end = filtered.first_kept(row + 1);
    double sum = 0.0;
    for (int64_t k = begin; k < end && scales_rows; ++k) sum += kept[k];
    const double scale = scales_rows && end > begin ? static_cast<double>(end - begin) / sum : 1.0;
    for (int64_t k = begin; k < end; ++k)
      values[k] = static_cast<float>(khop::product(kept[k], scale));
  }
};

}  // namespace khop::device
