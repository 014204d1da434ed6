#include "khop/cpu/smallest.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace khop::cpu {
namespace {

template <class T>
struct Entry {
  T value;
  int64_t entry;
};

constexpr int64_t kFew = 4;  // one entry of so many, or fewer, are few

template <class T>
bool precedes(const Entry<T>& a, const Entry<T>& b) {
  if (a.value < b.value) return true;
  if (b.value < a.value) return false;
  if constexpr (std::is_floating_point_v<T>) {
    const bool no_number = a.value != a.value;
    if (no_number != (b.value != b.value)) return !no_number;
  }
  return a.entry < b.entry;
}

// Moves the `taken` smallest entries to the front, if they are few: a heap of the smallest so far,
// which most entries leave alone. A later entry of the same value is larger.
template <class T>
void take_few(std::vector<Entry<T>>& entries, std::ptrdiff_t taken) {
  const auto end = entries.begin() + taken;
  std::make_heap(entries.begin(), end, precedes<T>);
  for (auto entry = end; entry != entries.end(); ++entry) {
    if (entries.front().value <= entry->value || !precedes(*entry, entries.front())) continue;
    std::pop_heap(entries.begin(), end, precedes<T>);
    *(end - 1) = *entry;
    std::push_heap(entries.begin(), end, precedes<T>);
  }
}

int64_t wanted(int64_t count, int64_t most) { return std::min(count, std::max<int64_t>(most, 0)); }

}  // namespace

template <class T>
int64_t num_smallest(const RowValues<T>& rows) {
  int64_t total = 0;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    total += wanted(rows.counts[row], rows.most[row]);
  }
  return total;
}

template <class T>
void smallest_entries(const RowValues<T>& rows, bool ascending, int64_t* out) {
  std::vector<Entry<T>> row_entries;
  int64_t begin = 0;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const int64_t count = rows.counts[row];
    const int64_t taken = wanted(count, rows.most[row]);
    if (taken == count && ascending) {
      for (int64_t i = 0; i < count; ++i) *out++ = begin + i;
    } else if (taken > 0) {
      row_entries.resize(static_cast<std::size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        row_entries[static_cast<std::size_t>(i)] = {rows.values[begin + i], begin + i};
      }
      const auto end = row_entries.begin() + taken;
      if (taken <= count / kFew) {
        take_few(row_entries, taken);
      } else {
        std::nth_element(row_entries.begin(), end, row_entries.end(), precedes<T>);
      }
      if (ascending) {
        std::sort(row_entries.begin(), end,
                  [](const Entry<T>& a, const Entry<T>& b) { return a.entry < b.entry; });
      } else {
        std::sort(row_entries.begin(), end, precedes<T>);
      }
      for (auto entry = row_entries.begin(); entry != end; ++entry) *out++ = entry->entry;
    }
    begin += count;
  }
}

template int64_t num_smallest<double>(const RowValues<double>&);
template int64_t num_smallest<int64_t>(const RowValues<int64_t>&);
template int64_t num_smallest<uint64_t>(const RowValues<uint64_t>&);
template void smallest_entries<double>(const RowValues<double>&, bool, int64_t*);
template void smallest_entries<int64_t>(const RowValues<int64_t>&, bool, int64_t*);
template void smallest_entries<uint64_t>(const RowValues<uint64_t>&, bool, int64_t*);

}  // namespace khop::cpu
