// Which host memory is registered with a driver, so that devices read it in place.
//
// A driver registers memory, but locks whole pages and refuses a page that it has locked already.
// Arrays share pages: views of one array, arrays of one mapped file, neighbours on the heap. So
// what is registered is kept here in pieces with the number of mappings that use each; a mapping
// registers only the pages that no piece covers. A piece keeps alive the array that it was
// registered for: else its pages might become other memory while a mapping of a neighbour still
// needs the one that they share, and a device would read what was there before.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace khop {

class HostPages {
 public:
  // Makes [memory, memory + bytes) registered. `add(start, bytes)` registers a piece and says
  // whether it could, without throwing; `remove(start)` takes that back. Returns where the pieces
  // start, or nothing if the driver refused one.
  template <class Add, class Remove>
  std::vector<uintptr_t> acquire(const void* memory, std::size_t bytes,
                                 const std::shared_ptr<const void>& owner, Add add, Remove remove) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    std::vector<uintptr_t> added;
    bool complete = true;
    for (const auto& [start, end] : uncovered(begin, begin + bytes)) {
      complete = add(start, end - start);
      if (!complete) break;
      pieces_.emplace(start, Piece{end, 0, owner});
      added.push_back(start);
    }
    if (!complete) {
      for (const uintptr_t piece : added) drop(piece, remove);
      return {};
    }
    std::vector<uintptr_t> used;
    visit(begin, begin + bytes, [&](auto piece) {
      ++piece->second.users;
      used.push_back(piece->first);
    });
    ++mappings_[{begin, bytes}];
    return used;
  }

  // Ends one mapping; those that were never acquired are none of ours.
  template <class Remove>
  void release(const void* memory, std::size_t bytes, Remove remove) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    const auto mapping = mappings_.find({begin, bytes});
    if (mapping == mappings_.end()) return;
    if (--mapping->second == 0) mappings_.erase(mapping);
    std::vector<uintptr_t> unused;
    visit(begin, begin + bytes, [&](auto piece) {
      if (--piece->second.users == 0) unused.push_back(piece->first);
    });
    for (const uintptr_t piece : unused) drop(piece, remove);
  }

  static uintptr_t page_of(uintptr_t address) { return address & ~(page_bytes() - 1); }
  static uintptr_t page_after(uintptr_t address) { return page_of(address + page_bytes() - 1); }

 private:
  struct Piece {
    uintptr_t end;
    int64_t users;
    std::shared_ptr<const void> owner;
  };
  using Pieces = std::map<uintptr_t, Piece>;

  static uintptr_t page_bytes() {
    static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    return bytes;
  }

  // Calls f with each piece that has a page in common with [begin, end), in order.
  template <class F>
  void visit(uintptr_t begin, uintptr_t end, F f) {
    auto piece = pieces_.lower_bound(page_of(begin));
    if (piece != pieces_.begin()) {
      const auto before = std::prev(piece);
      if (page_after(before->second.end) > page_of(begin)) piece = before;
    }
    for (; piece != pieces_.end() && page_of(piece->first) < page_after(end); ++piece) f(piece);
  }

  // The stretches of [begin, end) on pages without a piece. Alone they keep their bounds, so that
  // nobody else's memory counts as registered; next to a piece they begin or end with a page.
  std::vector<std::pair<uintptr_t, uintptr_t>> uncovered(uintptr_t begin, uintptr_t end) {
    std::vector<std::pair<uintptr_t, uintptr_t>> stretches;
    visit(begin, end, [&](auto piece) {
      const uintptr_t first = page_of(piece->first);
      if (begin < first) stretches.emplace_back(begin, first);
      begin = page_after(piece->second.end);
    });
    if (begin < end) stretches.emplace_back(begin, end);
    return stretches;
  }

  template <class Remove>
  void drop(uintptr_t start, Remove remove) {
    remove(start);
    pieces_.erase(start);
  }

  std::mutex mutex_;
  Pieces pieces_;
  std::map<std::pair<uintptr_t, std::size_t>, int64_t> mappings_;
};

}  // namespace khop
