#include "khop/cpu/decode.hpp"

#ifdef KHOP_X86
#include <cpuid.h>
#endif

#include "khop/cpu/decode_range.hpp"
#include "khop/cpu/gather_threads.hpp"

namespace khop::cpu {

#ifdef KHOP_X86
int64_t decode_avx2(const RowTable&, const int32_t*, int64_t, int64_t, const RowTarget&,
                    const Codec&);
int64_t decode_avx2(const RowTable&, const int64_t*, int64_t, int64_t, const RowTarget&,
                    const Codec&);
int64_t decode_avx512(const RowTable&, const int32_t*, int64_t, int64_t, const RowTarget&,
                      const Codec&);
int64_t decode_avx512(const RowTable&, const int64_t*, int64_t, int64_t, const RowTarget&,
                      const Codec&);
#endif

namespace {

// The numbers of all 256 codes of float8.
struct Float8Table {
  float values[256];
  Float8Table() {
    for (int code = 0; code < 256; ++code) values[code] = from_float8(static_cast<uint8_t>(code));
  }
};

// For machines whose vector units we do not know.
struct OneLane {
  static constexpr int64_t kCount = 1;

  template <Encoding kEncoding>
  static void decode(char* to, const char* from, int64_t at, const Codec& codec) {
    static const Float8Table table;
    float value;
    if constexpr (kEncoding == Encoding::kFloat8) {
      value = table.values[static_cast<uint8_t>(from[at])];
    } else {
      value = decode_one<kEncoding>(from, at, codec);
    }
    std::memcpy(to + 4 * at, &value, sizeof value);
  }
};

#ifdef KHOP_X86
// Not every compiler's __builtin_cpu_supports knows it.
bool has_f16c() {
  unsigned int a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

std::vector<RowDecoder> find_decoders() {
  std::vector<RowDecoder> found;
#ifdef KHOP_X86
  if (__builtin_cpu_supports("avx512f")) {
    found.push_back({"avx512", decode_avx512, decode_avx512});
  }
  if (__builtin_cpu_supports("avx2") && has_f16c()) {
    found.push_back({"avx2", decode_avx2, decode_avx2});
  }
#endif
  found.push_back({"portable", decode_range<OneLane, int32_t>, decode_range<OneLane, int64_t>});
  return found;
}

}  // namespace

const std::vector<RowDecoder>& row_decoders() {
  static const std::vector<RowDecoder> decoders = find_decoders();
  return decoders;
}

template <class Index>
int64_t decode_rows(const RowDecoder& decoder, const RowTable& table, const Index* rows,
                    int64_t count, const RowTarget& target, const Codec& codec, int num_threads) {
  DecodeFunction<Index> decode;
  if constexpr (sizeof(Index) == sizeof(int32_t)) {
    decode = decoder.by_int32;
  } else {
    decode = decoder.by_int64;
  }
  return in_threads(count, table.row_bytes, num_threads, [&](int64_t begin, int64_t end) {
    return decode(table, rows, begin, end, target, codec);
  });
}

template int64_t decode_rows<int32_t>(const RowDecoder&, const RowTable&, const int32_t*, int64_t,
                                      const RowTarget&, const Codec&, int);
template int64_t decode_rows<int64_t>(const RowDecoder&, const RowTable&, const int64_t*, int64_t,
                                      const RowTarget&, const Codec&, int);

}  // namespace khop::cpu
