// Updates of rows by their gradients: optimisers for embeddings that few rows of are used at a
// time.
#pragma once

#include <cstdint>

#include "khop/cpu/node_table.hpp"
#include "khop/cpu/scatter.hpp"

namespace khop::cpu {

enum class Rule { kSgd, kAdagrad, kRowwiseAdagrad, kAdam };

// Values that all rows of a step share. `rate` has the corrections of the step in it.
struct Rates {
  float rate;
  float epsilon;
  float beta1;
  float beta2;
  float scale;  // of the gradients
};

// The rows to update, each once, and what belongs to them, row by row of the table.
template <class Value>
struct Updated {
  Value* table;
  float* first;   // Adagrad: sums of squares; Adam: mean of gradients; else null
  float* second;  // Adam: mean of squared gradients; else null
  int64_t width;
  const int64_t* rows;
  const float* gradients;  // [count, width]
  int64_t count;
};

// The formulas of torch.optim (SGD, Adagrad, SparseAdam); kRowwiseAdagrad has one sum for each row,
// of the mean of its squared gradients. Sums run from left to right, in float32.
template <class Value>
void update_rows(const Updated<Value>& updated, Rule rule, const Rates& rates);

// Numbers the rows of a step in the order of their first appearance, in several calls.
class DistinctRows {
 public:
  explicit DistinctRows(int64_t num_rows) : set_(num_rows, false) {}

  // Writes the number of each row. Throws std::out_of_range for a row that does not exist.
  void add(const int64_t* rows, int64_t count, int64_t* numbers);

  int64_t size() const { return set_.size(); }
  const int64_t* rows() const { return set_.keys(); }  // by number

 private:
  NodeSet set_;
  Buffer<int32_t> numbers_;
};

}  // namespace khop::cpu
