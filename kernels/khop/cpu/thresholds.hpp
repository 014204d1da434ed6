// Factors c that make chances min(1, c * mass) meet an equation: of each row by itself (LABOR), or
// of all nodes together (layers by importance).
//
// Sums are added one after the other, in the order of entries. So factors are the same on all
// machines, and however rows are split.
#pragma once

#include <cstdint>

namespace khop::cpu {

// Rows whose entries have masses.
struct MassRows {
  const double* masses;  // null: all are 1
  const double* shares;  // weight of each entry, 1 in sum per row; null: all entries weigh the same
  const int64_t* counts;  // of each row, not negative
  const int64_t* asked;   // entries that each row takes; negative: all
  int64_t num_rows;
};

// Writes the factor c of each row. With k = min(asked, count), rows of more than k entries have
//   sum 1 / min(1, c mass) = count^2 / k, or with shares
//   sum share^2 / min(1, c mass) = 1 / k - 1 / count + sum share^2,
// so that a row's mean has the variance of k uniform draws. Other rows have the largest 1 / mass,
// and at least asked / count (with shares: asked).
//
// c begins without certain entries, those with c mass >= 1, and rises until there are no more. A
// row takes time in proportion to its entries, times the rounds in which entries become certain.
void row_scales(const MassRows& rows, double* scales);

// Writes min(1, c mass) of each entry, and 1 of all entries of rows that take all.
void row_chances(const MassRows& rows, double* chances);

// Writes min(1, c mass) of each of n > 0 masses, which add up to `count`, from 1 to n - 1. Masses
// are above 0, and their sum is below 2^63.
void common_chances(const int64_t* masses, int64_t n, int64_t count, double* chances);

}  // namespace khop::cpu
