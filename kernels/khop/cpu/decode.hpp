// Copies rows that are stored in fewer bits, widened to float32 on the way: no further pass.
#pragma once

#include <cstdint>
#include <vector>

#include "khop/core/encoding.hpp"
#include "khop/cpu/gather.hpp"

namespace khop::cpu {

// How values are stored. int8 has a scale and a zero for each value of a row.
struct Codec {
  Encoding encoding;
  const float* scale;
  const float* zero;
};

// Decodes rows `begin` to `end` as gather_rows copies them. Rows of the target have float32.
template <class Index>
using DecodeFunction = int64_t (*)(const RowTable& table, const Index* rows, int64_t begin,
                                   int64_t end, const RowTarget& target, const Codec& codec);

struct RowDecoder {
  const char* instructions;  // "avx512", "avx2" or "portable"
  DecodeFunction<int32_t> by_int32;
  DecodeFunction<int64_t> by_int64;
};

// Those that this machine can run, the fastest first. All give the same bits.
const std::vector<RowDecoder>& row_decoders();

// As gather_rows.
template <class Index>
int64_t decode_rows(const RowDecoder& decoder, const RowTable& table, const Index* rows,
                    int64_t count, const RowTarget& target, const Codec& codec, int num_threads);

}  // namespace khop::cpu
