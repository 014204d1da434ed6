// A hop, or induced edges, put together from what the owners of rows replied.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/cpu/edge_list.hpp"
#include "khop/cpu/induce.hpp"
#include "khop/cpu/node_table.hpp"

namespace khop::cpu {

// Neighbours that one owner drew for its share of a frontier, in frontier order.
template <class Col>
struct OwnerReply {
  const int32_t* counts;
  int64_t num_rows;
  const Col* neighbors;
  int64_t num_neighbors;
  const int64_t* edges;  // null unless asked for
};

// As sample_hop, with the neighbours drawn elsewhere: owners[i] names the reply that holds the i-th
// destination's neighbours. Throws std::invalid_argument if the replies do not cover the frontier.
template <class Col>
void merge_hop(const int32_t* owners, const std::vector<OwnerReply<Col>>& replies,
               const Frontier& frontier, bool with_edges, NodeSet& sources, EdgeList& out);

// As induce_rows of all rows, scanned elsewhere: owners[i] names the reply that holds row i's
// members, numbers below `num_members`. Appends to `merged`. Throws std::invalid_argument if the
// replies do not cover the rows.
void merge_induced_rows(const int32_t* owners, const std::vector<OwnerReply<int32_t>>& replies,
                        int64_t num_rows, int64_t num_members, bool with_edges,
                        InducedRows& merged);

}  // namespace khop::cpu
