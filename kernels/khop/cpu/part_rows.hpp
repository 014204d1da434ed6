// Draws from rows of several parts of a graph, as if they were one.
//
// Each part draws its rows of a block, and the draws are put back in the order of the rows. A drawn
// position has the part in its upper bits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "khop/core/csr.hpp"
#include "khop/cpu/buffer.hpp"
#include "khop/cpu/part_of.hpp"
#include "khop/cpu/pick_rows.hpp"
#include "khop/cpu/rows.hpp"

namespace khop::cpu {

// Rows of a block: parts share it, and each draws sixteen rows at a time.
constexpr int64_t kPartRows = 4 * kBlockRows;
// Bits of an address that a process can have.
constexpr int kAddressBits = 48;

// The neighbours of parts, see `Columns`. A position is the address of the neighbour, so that
// finding it reads nothing else, with the part in the upper bits, which addresses do not use.
template <class Ptr, class Column>
struct PartColumns {
  using Col = Column;
  const CsrView<Ptr, Col>* parts;

  static int64_t position(const CsrView<Ptr, Col>& graph, std::size_t part, int64_t within) {
    const auto address = reinterpret_cast<uintptr_t>(graph.indices + within);
    return static_cast<int64_t>(address | static_cast<uintptr_t>(part) << kAddressBits);
  }
  const Col* at(int64_t position) const {
    const auto bits = static_cast<uintptr_t>(position) & ((uintptr_t{1} << kAddressBits) - 1);
    return reinterpret_cast<const Col*>(bits);
  }
  int64_t edge(int64_t position) const {
    const CsrView<Ptr, Col>& part = parts[static_cast<uintptr_t>(position) >> kAddressBits];
    return part.first_edge + (at(position) - part.indices);
  }
};

// As RowDrawer, for parts in the order of their rows. An id of no part is refused by the nearest.
template <class Ptr, class Col>
class PartsDrawer {
 public:
  PartsDrawer(const std::vector<CsrView<Ptr, Col>>& parts, const HopSpec& spec)
      : parts_(parts), shares_(parts.size()) {
    for (const CsrView<Ptr, Col>& part : parts) {
      drawers_.emplace_back(part, spec);
      firsts_.push_back(part.first_row);
    }
  }

  void prefetch_rows(const int64_t* ids, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) drawers_[holder(ids[i])].prefetch_rows(ids + i, 1);
  }

  // Appends the picked positions of at most kPartRows rows, and writes how many of each.
  void draw(const RowSet& rows, int64_t count, int32_t* counts, Buffer<int64_t>& positions) {
    for (Share& share : shares_) share.num_rows = 0;
    for (int64_t i = 0; i < count; ++i) {
      const std::size_t part = holder(rows.ids[i]);
      holders_[at(i)] = part;
      Share& share = shares_[part];
      const std::size_t place = at(share.num_rows++);
      share.ids[place] = rows.ids[i];
      if (rows.trees != nullptr) share.trees[place] = rows.trees[i];
      if (rows.times != nullptr) share.times[place] = rows.times[i];
    }
    for (std::size_t part = 0; part < shares_.size(); ++part) draw_share(part, rows);
    for (int64_t i = 0; i < count; ++i) {
      const std::size_t part = holders_[at(i)];
      Share& share = shares_[part];
      const int32_t drawn = counts[i] = share.counts[at(share.next_row++)];
      int64_t* const out = positions.extend(drawn);
      const int64_t* const from = share.positions.data() + share.next_edge;
      share.next_edge += drawn;
      for (int32_t j = 0; j < drawn; ++j) {
        out[j] = PartColumns<Ptr, Col>::position(parts_[part], part, from[j]);
      }
    }
  }

 private:
  // The rows of a block that a part has, and its draws.
  struct Share {
    int64_t num_rows = 0;
    int64_t next_row = 0;
    int64_t next_edge = 0;
    std::array<int64_t, kPartRows> ids;
    std::array<int32_t, kPartRows> trees;
    std::array<int64_t, kPartRows> times;
    std::array<int32_t, kPartRows> counts;
    Buffer<int64_t> positions;
  };

  static std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }

  std::size_t holder(int64_t id) const { return part_of(id, firsts_.data(), firsts_.size()); }

  void draw_share(std::size_t part, const RowSet& rows) {
    Share& share = shares_[part];
    share.next_row = share.next_edge = 0;
    share.positions.clear();
    const RowSet own{share.ids.data(), rows.trees == nullptr ? nullptr : share.trees.data(),
                     rows.times == nullptr ? nullptr : share.times.data()};
    for (int64_t first = 0; first < share.num_rows; first += kBlockRows) {
      drawers_[part].draw(own.from(first), std::min(kBlockRows, share.num_rows - first),
                          share.counts.data() + first, share.positions);
    }
  }

  const std::vector<CsrView<Ptr, Col>>& parts_;
  std::deque<RowDrawer<Ptr, Col>> drawers_;
  std::vector<int64_t> firsts_;
  std::vector<Share> shares_;
  std::array<std::size_t, kPartRows> holders_;
};

}  // namespace khop::cpu
