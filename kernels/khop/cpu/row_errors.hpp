// Errors for rows that do not exist, or whose row pointers are corrupt.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace khop::cpu {

[[noreturn]] inline void throw_no_such_row(int64_t id, int64_t first_row, int64_t num_rows) {
  throw std::out_of_range("node " + std::to_string(id) + " is not one of the graph's rows " +
                          std::to_string(first_row) + " to " +
                          std::to_string(first_row + num_rows - 1));
}

[[noreturn]] inline void throw_corrupt_row(int64_t row, int64_t begin, int64_t end,
                                           int64_t num_edges) {
  throw std::runtime_error("row pointers are corrupt: row " + std::to_string(row) +
                           " spans edges " + std::to_string(begin) + " to " + std::to_string(end) +
                           " of " + std::to_string(num_edges));
}

}  // namespace khop::cpu
