#include "khop/cpu/gather.hpp"

#include <cstring>

#include "khop/cpu/gather_range.hpp"
#include "khop/cpu/gather_threads.hpp"

namespace khop::cpu {

#ifdef KHOP_X86
template <class Index>
int64_t gather_lines_avx512(const RowTable& table, const Index* rows, int64_t begin, int64_t end,
                            const RowTarget& target);
#endif

namespace {

// A fixed width lets the compiler turn the copy into a move. Such rows are aligned by it.
template <int64_t kBytes>
struct FixedCopy {
  static constexpr bool kInOneLine = true;
  static constexpr int64_t kWidens = 1;
  void operator()(char* to, const char* from, int64_t) const { std::memcpy(to, from, kBytes); }
};
struct WideningCopy {
  static constexpr bool kInOneLine = true;
  static constexpr int64_t kWidens = sizeof(int64_t) / sizeof(int32_t);
  void operator()(char* to, const char* from, int64_t) const {
    int32_t value;
    std::memcpy(&value, from, sizeof value);
    const int64_t wide = value;
    std::memcpy(to, &wide, sizeof wide);
  }
};
struct AnyCopy {
  static constexpr bool kInOneLine = false;
  static constexpr int64_t kWidens = 1;
  void operator()(char* to, const char* from, int64_t bytes) const {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
};

}  // namespace

template <class Index>
int64_t gather_rows(const RowTable& table, const Index* rows, int64_t count,
                    const RowTarget& target, int num_threads) {
  const auto run = [&](auto copy) {
    return in_threads(count, table.row_bytes, num_threads, [&](int64_t begin, int64_t end) {
      return gather_range(table, rows, begin, end, target, copy);
    });
  };
  switch (table.row_bytes) {
    case 1:
      return run(FixedCopy<1>{});
    case 2:
      return run(FixedCopy<2>{});
    case 4:
      return run(FixedCopy<4>{});
    case 8:
      return run(FixedCopy<8>{});
    case 16:
      return run(FixedCopy<16>{});
    default:
      break;
  }
#ifdef KHOP_X86
  if (table.row_bytes >= kLine && __builtin_cpu_supports("avx512f")) {
    return in_threads(count, table.row_bytes, num_threads, [&](int64_t begin, int64_t end) {
      return gather_lines_avx512(table, rows, begin, end, target);
    });
  }
#endif
  return run(AnyCopy{});
}

template <class Index>
int64_t gather_widened(const RowTable& table, const Index* rows, int64_t count,
                       const RowTarget& target, int num_threads) {
  return in_threads(count, table.row_bytes, num_threads, [&](int64_t begin, int64_t end) {
    return gather_range(table, rows, begin, end, target, WideningCopy{});
  });
}

#define KHOP_INSTANTIATE(Index)                                                                    \
  template int64_t gather_rows<Index>(const RowTable&, const Index*, int64_t, const RowTarget&,    \
                                      int);                                                        \
  template int64_t gather_widened<Index>(const RowTable&, const Index*, int64_t, const RowTarget&, \
                                         int);
KHOP_INSTANTIATE(int32_t)
KHOP_INSTANTIATE(int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
