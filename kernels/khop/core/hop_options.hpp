// Options of one hop over one edge type: bindings, engines, the CPU and devices pass them whole.
//
// An option of a sampling method is a field here, and is read where rows are drawn (`RowDrawer` on
// the CPU, `RowPicker` on a device); nothing between passes fields one by one.
#pragma once

#include <cstdint>

#include "khop/core/labor.hpp"
#include "khop/core/rng.hpp"

namespace khop {

// How neighbours of a row are chosen.
enum class HopMethod : int32_t {
  kNeighbor,  // independently of other rows
  kLabor,     // by numbers that rows share (labor.hpp)
};

// Where in a batch a hop is.
struct HopPlace {
  uint64_t run;
  uint64_t batch;
  uint32_t hop;
  uint32_t relation;  // index of the edge type
  uint32_t source;    // index of the neighbours' node type
};

struct HopOptions {
  int64_t fanout = -1;  // < 0: all neighbours
  uint64_t key = 0;     // of the hop's draws, see at()
  HopMethod method = HopMethod::kNeighbor;
  bool replace = false;
  bool with_edge = false;  // record which edges were drawn
  bool weighted = false;
  bool last = false;              // the latest `fanout` neighbours instead of random ones
  bool layer_dependency = false;  // of LABOR: all hops share the numbers, too
  uint8_t padding[7] = {};        // zeros: devices get these bytes, too

  // The same with the key of a hop.
  KHOP_HD HopOptions at(const HopPlace& place) const {
    HopOptions keyed = *this;
    keyed.key =
        method == HopMethod::kLabor
            ? labor_key(place.run, place.batch, place.source, layer_dependency ? 0 : place.hop)
            : step_key(place.run, place.batch, place.hop, place.relation);
    return keyed;
  }
};

}  // namespace khop
