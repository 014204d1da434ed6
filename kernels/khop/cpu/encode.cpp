#include "khop/cpu/encode.hpp"

#include <cmath>
#include <cstring>

namespace khop::cpu {
namespace {

// Whether a value became one that it is not: finite ones stay finite, infinities and NaN as well.
template <Encoding kEncoding>
bool is_lost(float value, float stored) {
  if constexpr (kEncoding == Encoding::kInt8) {
    return !std::isfinite(value);
  } else {
    return !std::isnan(value) && !std::isfinite(stored) && stored != value;
  }
}

template <Encoding kEncoding, class Stored, class Encode, class Decode>
int64_t encode_all(const float* values, int64_t count, int64_t width, char* out, Encode encode,
                   Decode decode) {
  int64_t bad = -1;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t column = 0; column < width; ++column) {
      const int64_t at = row * width + column;
      const Stored stored = encode(values[at], column);
      std::memcpy(out + at * static_cast<int64_t>(sizeof stored), &stored, sizeof stored);
      if (is_lost<kEncoding>(values[at], decode(stored)) && bad < 0) bad = at;
    }
  }
  return bad;
}

}  // namespace

int64_t encode_rows(const float* values, int64_t count, int64_t width, const Codec& codec,
                    char* out) {
  switch (codec.encoding) {
    case Encoding::kBfloat16:
      return encode_all<Encoding::kBfloat16, uint16_t>(
          values, count, width, out, [](float value, int64_t) { return to_bfloat16(value); },
          from_bfloat16);
    case Encoding::kFloat16:
      return encode_all<Encoding::kFloat16, uint16_t>(
          values, count, width, out, [](float value, int64_t) { return to_float16(value); },
          from_float16);
    case Encoding::kFloat8:
      return encode_all<Encoding::kFloat8, uint8_t>(
          values, count, width, out, [](float value, int64_t) { return to_float8(value); },
          from_float8);
    default:
      return encode_all<Encoding::kInt8, int8_t>(
          values, count, width, out,
          [&](float value, int64_t column) {
            return to_int8(value, codec.scale[column], codec.zero[column]);
          },
          [](int8_t) { return 0.0f; });
  }
}

}  // namespace khop::cpu
