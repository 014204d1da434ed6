// What a gather does with the words of rows: copies them, or widens their values to float32.
#pragma once

#include <cstdint>

#include "khop/core/encoding.hpp"
#include "khop/device/steps/gather.hpp"

namespace khop::device {

// How the values of a table are stored, if gathers widen them. The pointers are the device's.
struct TableCodec {
  int64_t stored_bytes = 0;  // of a value; 0: rows are delivered as they are stored
  Encoding encoding = Encoding::kBfloat16;
  const float* scale = nullptr;  // [values of a row], as is zero: of int8
  const float* zero = nullptr;
};

template <class W>
struct CopyWord {
  using Word = W;
  Word* out;

  // `at`: which word of the output; `word`: which word of its row.
  KHOP_HD void operator()(int64_t at, int64_t /*word*/, Word value) const {
    store_streaming(&out[at], value);
  }
};

template <int kCount>
struct Floats {
  alignas(4 * kCount) float values[kCount];
};

KHOP_HD void store_streaming(Floats<1>* to, Floats<1> wide) {
  store_streaming(&to->values[0], wide.values[0]);
}
KHOP_HD void store_streaming(Floats<4>* to, Floats<4> wide) {
#ifdef __CUDA_ARCH__
  const float* const v = wide.values;
  __stcs(reinterpret_cast<float4*>(to), make_float4(v[0], v[1], v[2], v[3]));
#else
  *to = wide;
#endif
}

// Widens a word of values of kStored bytes, the first of which has the lowest bits. Which encoding
// of this width it is, is asked at run time: the same for all threads, and half as many kernels.
template <int kStored, class W>
struct WidenWord {
  using Word = W;
  static constexpr int kCount = static_cast<int>(sizeof(Word)) / kStored;
  TableCodec codec;
  Floats<kCount>* out;

  KHOP_HD void operator()(int64_t at, int64_t word, Word bits) const {
    Floats<kCount> wide;
    for (int i = 0; i < kCount; ++i) {
      wide.values[i] = widened(static_cast<uint32_t>(bits >> (8 * kStored * i)), word * kCount + i);
    }
    store_streaming(&out[at], wide);
  }

 private:
  // `column`: which value of the row.
  KHOP_HD float widened(uint32_t code, int64_t column) const {
    if constexpr (kStored == 2) {
      const auto half = static_cast<uint16_t>(code);
      return codec.encoding == Encoding::kBfloat16 ? from_bfloat16(half) : from_float16(half);
    } else {
      if (codec.encoding == Encoding::kFloat8) return from_float8(static_cast<uint8_t>(code));
      return from_int8(static_cast<int8_t>(code), codec.scale[column], codec.zero[column]);
    }
  }
};

// Calls f with a WidenWord of four values, or of one where rows do not begin at multiples of four.
// `alignment`: the bytes of rows and their addresses, or-ed. `out` has float32.
template <class F>
void with_widening(const TableCodec& codec, uint64_t alignment, void* out, F&& f) {
  const auto four = static_cast<uint64_t>(4 * codec.stored_bytes);
  const bool by_fours = alignment % four == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  auto* const fours = static_cast<Floats<4>*>(out);
  auto* const ones = static_cast<Floats<1>*>(out);
  if (codec.stored_bytes == 2) {
    by_fours ? f(WidenWord<2, uint64_t>{codec, fours}) : f(WidenWord<2, uint16_t>{codec, ones});
  } else {
    by_fours ? f(WidenWord<1, uint32_t>{codec, fours}) : f(WidenWord<1, uint8_t>{codec, ones});
  }
}

}  // namespace khop::device
