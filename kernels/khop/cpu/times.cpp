#include "khop/cpu/times.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace khop::cpu {
namespace {

// Up to this many entries insertion beats a sort with its temporary memory.
constexpr int64_t kShortRow = 24;

template <class Place>
void insert_in_order(const int64_t* times, int64_t begin, int64_t end, Place* order) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t time = times[i];
    int64_t place = i;
    while (place > begin && times[order[place - 1]] > time) {
      order[place] = order[place - 1];
      --place;
    }
    order[place] = static_cast<Place>(i);
  }
}

struct Timed {
  int64_t time;
  int64_t entry;
  bool operator<(const Timed& other) const {
    return time != other.time ? time < other.time : entry < other.entry;
  }
};

}  // namespace

template <class Ptr>
int64_t first_row_out_of_order(const Ptr* indptr, int64_t num_rows, const int64_t* times,
                               int64_t num_edges) {
  int64_t disordered = num_rows;
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto begin = static_cast<int64_t>(indptr[row]);
    const auto end = static_cast<int64_t>(indptr[row + 1]);
    if (begin < 0 || begin > end || end > num_edges) return -1;
    if (disordered == num_rows && !std::is_sorted(times + begin, times + end)) disordered = row;
  }
  return disordered;
}

template <class Ptr, class Place>
void order_by_time(const Ptr* indptr, int64_t num_rows, const int64_t* times, Place* order) {
  std::vector<Timed> row_entries;
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto begin = static_cast<int64_t>(indptr[row]);
    const auto end = static_cast<int64_t>(indptr[row + 1]);
    if (end - begin <= kShortRow) {
      insert_in_order(times, begin, end, order);
      continue;
    }
    if (std::is_sorted(times + begin, times + end)) {
      std::iota(order + begin, order + end, static_cast<Place>(begin));
      continue;
    }
    row_entries.clear();
    for (int64_t e = begin; e < end; ++e) row_entries.push_back({times[e], e});
    std::sort(row_entries.begin(), row_entries.end());
    for (int64_t e = begin; e < end; ++e) {
      order[e] = static_cast<Place>(row_entries[static_cast<std::size_t>(e - begin)].entry);
    }
  }
}

#define KHOP_INSTANTIATE(Ptr)                                                                 \
  template int64_t first_row_out_of_order<Ptr>(const Ptr*, int64_t, const int64_t*, int64_t); \
  template void order_by_time<Ptr, int32_t>(const Ptr*, int64_t, const int64_t*, int32_t*);   \
  template void order_by_time<Ptr, int64_t>(const Ptr*, int64_t, const int64_t*, int64_t*);
KHOP_INSTANTIATE(int32_t)
KHOP_INSTANTIATE(int64_t)
#undef KHOP_INSTANTIATE

}  // namespace khop::cpu
