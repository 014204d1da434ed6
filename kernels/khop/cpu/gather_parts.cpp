#include "khop/cpu/gather_parts.hpp"

#include "khop/cpu/gather_parts_range.hpp"

namespace khop::cpu {

#ifdef KHOP_X86
int64_t gather_parts_avx512(const PartTables& table, const int64_t* rows, int64_t count, char* out);
#endif

namespace {

// Copies a row of a known width, which becomes a move.
template <int64_t kBytes>
struct FixedCopy {
  static constexpr int64_t kWidens = 1;
  void operator()(char* to, const char* from, int64_t) const { std::memcpy(to, from, kBytes); }
};

struct AnyCopy {
  static constexpr int64_t kWidens = 1;
  void operator()(char* to, const char* from, int64_t bytes) const {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
};

struct WideningCopy {
  static constexpr int64_t kWidens = sizeof(int64_t) / sizeof(int32_t);
  void operator()(char* to, const char* from, int64_t) const {
    int32_t value;
    std::memcpy(&value, from, sizeof value);
    const int64_t wide = value;
    std::memcpy(to, &wide, sizeof wide);
  }
};

}  // namespace

int64_t gather_parts(const PartTables& table, const int64_t* rows, int64_t count, char* out) {
  switch (table.row_bytes) {
    case 1:
      return gather_parts_range(table, rows, count, out, FixedCopy<1>{});
    case 4:
      return gather_parts_range(table, rows, count, out, FixedCopy<4>{});
    case 8:
      return gather_parts_range(table, rows, count, out, FixedCopy<8>{});
    default:
      break;
  }
  if (table.row_bytes < kLine) return gather_parts_range(table, rows, count, out, AnyCopy{});
#ifdef KHOP_X86
  if (__builtin_cpu_supports("avx512f")) return gather_parts_avx512(table, rows, count, out);
#endif
  return gather_parts_range(table, rows, count, out, LineCopy{});
}

int64_t gather_parts_widened(const PartTables& table, const int64_t* rows, int64_t count,
                             char* out) {
  return gather_parts_range(table, rows, count, out, WideningCopy{});
}

}  // namespace khop::cpu
