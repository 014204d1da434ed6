// Sizes of memory. Counts come from callers and files: their sums and products may not fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <new>

namespace khop {

// More memory than there is, or than there can be; the text has how much. Python gets a
// MemoryError.
class OutOfMemory final : public std::bad_alloc {
 public:
  OutOfMemory(std::size_t count, std::size_t width) {
    std::snprintf(text_, sizeof(text_), "out of memory: no room for %zu entries of %zu byte%s",
                  count, width, width == 1 ? "" : "s");
  }
  const char* what() const noexcept override { return text_; }

 private:
  char text_[96];
};

// Bytes of `count` entries. Throws OutOfMemory if no address space holds as many.
inline std::size_t bytes_of(int64_t count, std::size_t width) {
  constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  const auto entries = static_cast<std::size_t>(count);  // of a negative one, more than kMost
  if (entries > kMost / width) throw OutOfMemory(entries, width);
  return entries * width;
}

// `count` + `more`, neither negative. Throws OutOfMemory if that is beyond 2^63 - 1.
inline int64_t count_with(int64_t count, int64_t more) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (count > kMost - more) throw OutOfMemory(static_cast<std::size_t>(count), 1);
  return count + more;
}

}  // namespace khop
