// The loop of decode.cpp, for a set of instructions. Each file that includes it compiles one of its
// own: two of them use instructions that not every machine has.
#pragma once

#include "khop/cpu/decode.hpp"
#include "khop/cpu/gather_range.hpp"

namespace khop::cpu {
namespace {

template <Encoding kEncoding>
float decode_one(const char* from, int64_t at, const Codec& codec) {
  if constexpr (kEncoding == Encoding::kBfloat16 || kEncoding == Encoding::kFloat16) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * at, sizeof bits);
    return kEncoding == Encoding::kBfloat16 ? from_bfloat16(bits) : from_float16(bits);
  } else if constexpr (kEncoding == Encoding::kFloat8) {
    return from_float8(static_cast<uint8_t>(from[at]));
  } else {
    return from_int8(static_cast<int8_t>(from[at]), codec.scale[at], codec.zero[at]);
  }
}

// Lanes::decode<encoding>(to, from, at, codec) decodes Lanes::kCount values from the at-th on.
// Whole vectors, then the last values once more, as gather_avx512.cpp copies lines.
template <class Lanes, Encoding kEncoding>
struct DecodeCopy {
  static constexpr bool kInOneLine = false;
  static constexpr int64_t kWidens = static_cast<int64_t>(sizeof(float)) / stored_bytes(kEncoding);

  const Codec& codec;

  void operator()(char* to, const char* from, int64_t bytes) const {
    const int64_t count = bytes / stored_bytes(kEncoding);
    int64_t at = 0;
    for (; at + Lanes::kCount <= count; at += Lanes::kCount) {
      Lanes::template decode<kEncoding>(to, from, at, codec);
    }
    if (at < count && count >= Lanes::kCount) {
      Lanes::template decode<kEncoding>(to, from, count - Lanes::kCount, codec);
      return;
    }
    for (; at < count; ++at) {
      const float value = decode_one<kEncoding>(from, at, codec);
      std::memcpy(to + 4 * at, &value, sizeof value);
    }
  }
};

template <class Lanes, class Index>
int64_t decode_range(const RowTable& table, const Index* rows, int64_t begin, int64_t end,
                     const RowTarget& target, const Codec& codec) {
  const auto run = [&](auto copy) { return gather_range(table, rows, begin, end, target, copy); };
  switch (codec.encoding) {
    case Encoding::kBfloat16:
      return run(DecodeCopy<Lanes, Encoding::kBfloat16>{codec});
    case Encoding::kFloat16:
      return run(DecodeCopy<Lanes, Encoding::kFloat16>{codec});
    case Encoding::kFloat8:
      return run(DecodeCopy<Lanes, Encoding::kFloat8>{codec});
    default:
      return run(DecodeCopy<Lanes, Encoding::kInt8>{codec});
  }
}

}  // namespace
}  // namespace khop::cpu
