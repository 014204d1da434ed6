// Compiled for AVX-512; see gather_parts.cpp.
#include "khop/cpu/gather_parts_range.hpp"

namespace khop::cpu {

// Of rows that have at least 64 bytes.
int64_t gather_parts_avx512(const PartTables& table, const int64_t* rows, int64_t count,
                            char* out) {
  return gather_parts_range(table, rows, count, out, LineCopy{});
}

}  // namespace khop::cpu
