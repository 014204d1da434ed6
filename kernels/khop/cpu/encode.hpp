// Stores float32 in fewer bits; see khop/core/encoding.hpp.
#pragma once

#include <cstdint>

#include "khop/cpu/decode.hpp"

namespace khop::cpu {

// Writes count * width values, the stored ones of each row of `width`. Returns -1, or the position
// of the first value that cannot be stored: a finite one beyond the largest of the encoding, an
// infinity as float8, and an infinity or NaN as int8. All others are written even then.
int64_t encode_rows(const float* values, int64_t count, int64_t width, const Codec& codec,
                    char* out);

}  // namespace khop::cpu
