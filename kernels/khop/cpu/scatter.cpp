#include "khop/cpu/scatter.hpp"

#include <type_traits>

#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {
namespace {

// Rows whose first line is requested this far ahead: about as many as memory answers at a time.
constexpr int64_t kAhead = 12;

template <class Value>
constexpr bool kIsNarrow = std::is_same_v<Value, Bfloat16> || std::is_same_v<Value, Float16>;

template <class Value>
Value sum(Value a, Value b) {
  if constexpr (kIsNarrow<Value>) {
    Value both;
    narrow(widened(a) + widened(b), both);
    return both;
  } else if constexpr (std::is_same_v<Value, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<Value>) {
    using Bits = std::make_unsigned_t<Value>;
    return static_cast<Value>(static_cast<Bits>(static_cast<Bits>(a) + static_cast<Bits>(b)));
  } else {
    return a + b;
  }
}

template <class Value>
bool less(Value a, Value b) {
  if constexpr (kIsNarrow<Value>) {
    return widened(a) < widened(b);
  } else {
    return a < b;
  }
}

template <class Value>
bool is_nan(Value value) {
  if constexpr (kIsNarrow<Value>) {
    return is_nan(widened(value));
  } else if constexpr (std::is_floating_point_v<Value>) {
    return value != value;
  } else {
    return false;
  }
}

template <class Value, class Combine>
void combine_rows(Value* table, int64_t width, const int64_t* rows, int64_t count,
                  const Value* values, Combine combine) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) prefetch_line_to_write(table + rows[i + kAhead] * width);
    Value* to = table + rows[i] * width;
    const Value* from = values + i * width;
    for (int64_t j = 0; j < width; ++j) to[j] = combine(to[j], from[j]);
  }
}

}  // namespace

template <class Value>
void scatter_rows(Value* table, int64_t width, const int64_t* rows, int64_t count,
                  const Value* values, Reduce reduce) {
  switch (reduce) {
    case Reduce::kSet:
      return combine_rows(table, width, rows, count, values, [](Value, Value b) { return b; });
    case Reduce::kAdd:
      return combine_rows(table, width, rows, count, values, sum<Value>);
    case Reduce::kMin:
      return combine_rows(table, width, rows, count, values, [](Value a, Value b) {
        return less(b, a) || is_nan(b) ? (is_nan(a) ? a : b) : a;
      });
    case Reduce::kMax:
      return combine_rows(table, width, rows, count, values, [](Value a, Value b) {
        return less(a, b) || is_nan(b) ? (is_nan(a) ? a : b) : a;
      });
  }
}

int64_t first_outside(const int64_t* rows, int64_t count, int64_t num_rows) {
  for (int64_t i = 0; i < count; ++i) {
    if (static_cast<uint64_t>(rows[i]) >= static_cast<uint64_t>(num_rows)) return i;
  }
  return -1;
}

#define KHOP_SCATTER(Value) \
  template void scatter_rows<Value>(Value*, int64_t, const int64_t*, int64_t, const Value*, Reduce);
KHOP_SCATTER(bool)
KHOP_SCATTER(int8_t)
KHOP_SCATTER(uint8_t)
KHOP_SCATTER(int16_t)
KHOP_SCATTER(uint16_t)
KHOP_SCATTER(int32_t)
KHOP_SCATTER(uint32_t)
KHOP_SCATTER(int64_t)
KHOP_SCATTER(uint64_t)
KHOP_SCATTER(float)
KHOP_SCATTER(double)
KHOP_SCATTER(Bfloat16)
KHOP_SCATTER(Float16)
#undef KHOP_SCATTER

}  // namespace khop::cpu
