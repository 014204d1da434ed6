// Host memory that is registered with a driver, so that devices read it in place.
//
// A driver registers memory, but locks whole pages and refuses a page that it has locked already;
// and it refuses to copy memory that is registered in part. So an array is registered only if no
// other one is on any of its pages; views of what is registered use that. What is registered keeps
// alive the array that it was registered for: else its pages might become other memory while a view
// is still read, and a device would read what was there before.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace khop::device {

// What keeps an array of the host alive, with all memory of which the array may be a part. Other
// code copies the whole, which a driver refuses where a part of it is registered.
struct HostOwner {
  std::shared_ptr<const void> keeps;
  uintptr_t begin;
  std::size_t bytes;
};

class HostPages {
 public:
  // Makes [memory, memory + bytes), with all of its owner's memory, registered and returns whether
  // it could: false if it shares pages with what is registered and is not a part of it, or if
  // `add(start, bytes)`, which registers without throwing, returns false.
  template <class Add>
  bool acquire(const void* memory, std::size_t bytes, const HostOwner& owner, Add add) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    auto piece = first_with(begin, bytes);
    if (piece == pieces_.end()) {
      if (first_with(owner.begin, owner.bytes) != pieces_.end()) return false;
      if (!add(owner.begin, owner.bytes)) return false;
      piece = pieces_.emplace(owner.begin, Piece{owner.begin + owner.bytes, 0, owner.keeps}).first;
    } else if (begin < piece->first || piece->second.end < begin + bytes) {
      return false;
    }
    ++piece->second.users;
    ++mappings_[{begin, bytes}];
    return true;
  }

  // Ends one mapping, if there is such; `remove(start)` takes back what `add` did.
  template <class Remove>
  void release(const void* memory, std::size_t bytes, Remove remove) {
    // Given up when nothing is locked any more: it may belong to Python, which runs what it likes
    // then, also in other threads that come here.
    std::shared_ptr<const void> owner;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    const auto mapping = mappings_.find({begin, bytes});
    if (mapping == mappings_.end()) return;
    if (--mapping->second == 0) mappings_.erase(mapping);
    const auto piece = first_with(begin, bytes);
    if (--piece->second.users > 0) return;
    remove(piece->first);
    owner = std::move(piece->second.owner);
    pieces_.erase(piece);
  }

  // Whether anything is registered on pages of [memory, memory + bytes).
  bool touches(const void* memory, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return first_with(reinterpret_cast<uintptr_t>(memory), bytes) != pieces_.end();
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

  // The first piece that has a page in common with this memory. Pieces share no pages.
  Pieces::iterator first_with(uintptr_t begin, std::size_t bytes) {
    auto piece = pieces_.lower_bound(page_of(begin));
    if (piece != pieces_.begin()) {
      const auto before = std::prev(piece);
      if (page_after(before->second.end) > page_of(begin)) return before;
    }
    const bool is_common =
        piece != pieces_.end() && page_of(piece->first) < page_after(begin + bytes);
    return is_common ? piece : pieces_.end();
  }

  std::mutex mutex_;
  Pieces pieces_;
  std::map<std::pair<uintptr_t, std::size_t>, int64_t> mappings_;
};

}  // namespace khop::device
