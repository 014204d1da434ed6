// Memory of a device for a hop that a program draws.
#pragma once

#include <algorithm>
#include <cstdint>

#include "khop/device/steps/memory.hpp"
#include "khop/device/steps/runs.hpp"

namespace khop::device {

template <class Backend>
struct ProgramMemory {
  explicit ProgramMemory(Backend& backend)
      : sorted(backend),
        ranked(backend),
        ranks(backend),
        begins(backend),
        sums(backend),
        largest(backend),
        words(backend),
        degrees(backend),
        of_run(backend),
        of_entry(backend),
        kept(backend),
        starts(backend),
        nodes(backend),
        values(backend) {}

  // For so many entries of a layer's rows. Hops differ: a quarter is left over for the next.
  void reserve_layer(int64_t count, int64_t most_drawn, bool is_poisson) {
    reserve_runs(count, sorted.capacity());
    const int64_t room = sorted.capacity();
    if (is_poisson) ranked.reserve(room);
    sums.reserve(room + 1);
    largest.reserve(most_drawn + 1);
    words.reserve(std::max<int64_t>(room, 1));
    degrees.reserve(room);
    of_run.reserve(room);
    of_entry.reserve(room);
    kept.reserve(room);
    values.reserve(room);
  }
  void reserve_visits(int64_t num_walks, int64_t length) {
    const int64_t count = num_walks * length;
    reserve_runs(count, sorted.capacity());
    const int64_t room = sorted.capacity();
    ranked.reserve(room);
    starts.reserve(num_walks);
    nodes.reserve(count + num_walks);
    degrees.reserve(room);
    values.reserve(room);
  }

  Runs runs(int64_t count, uint64_t none) const {
    return {sorted.pairs().keys, count, none, ranks.data(), begins.data()};
  }

  SortMemory<Backend> sorted;  // entries by node, or visits by row and node
  SortMemory<Backend> ranked;  // nodes by importance, or by visits
  DeviceArray<Backend, int64_t> ranks, begins;
  DeviceArray<Backend, int64_t> sums, largest;
  DeviceArray<Backend, int64_t> words;    // how often each node was drawn, or the first uncertain
  DeviceArray<Backend, int64_t> degrees;  // of entries' rows; of visits the nodes, in order
  DeviceArray<Backend, double> of_run, of_entry, kept;
  DeviceArray<Backend, int64_t> starts, nodes;  // of walks
  DeviceArray<Backend, float> values;

 private:
  void reserve_runs(int64_t count, int64_t room) {
    if (count > room) sorted.reserve(count + count / 4);
    ranks.reserve(sorted.capacity() + 1);
    begins.reserve(sorted.capacity() + 1);
  }
};

}  // namespace khop::device
