// Copies rows of a table in device memory (or pinned host memory) to a device array.
#pragma once

#include <cstdint>

namespace khop::cuda {

// out[i] = table[rows[i]] for rows of row_bytes bytes, on `stream`. All pointers must be readable
// (table, rows) or writable (out) by the device. Waits for the copy. Returns -1, or the first i
// whose row does not exist; out[i] is then left as it was.
template <class Index>
int64_t gather_rows(const void* table, int64_t num_rows, int64_t row_bytes, const Index* rows,
                    int64_t count, void* out, void* stream);

}  // namespace khop::cuda
