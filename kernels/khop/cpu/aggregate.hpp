// Reduces the rows of each node's neighbours to one row: the product of a sparse and a dense
// matrix.
#pragma once

#include <cstdint>

#include "khop/cpu/gather_parts.hpp"

namespace khop::cpu {

enum class Aggregate { kSum, kMin, kMax };

// Entries of row i are first[i] to first[i + 1]. An entry has a neighbour, a row of a table, and
// may have a weight.
template <class Index>
struct WeightedRows {
  const int64_t* first;
  int64_t num_rows;
  const Index* neighbors;
  const float* weights;  // of each entry, or null
};

// out[i] = the sum over the row's entries of weight * the neighbour's row of the table, from the
// first entry to the last, each product rounded before its sum. Or the smallest or largest of these
// products, column by column. Rows without entries get zeros. The table has rows of float, and all
// neighbours must exist.
template <class Index>
void aggregate_rows(const WeightedRows<Index>& rows, const PartTables& table, Aggregate how,
                    float* out);

}  // namespace khop::cpu
