// Addresses of devices' memory. The host can touch none of it but while a device works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace fake_cuda {

class DevicePages {
 public:
  // Whole pages at addresses that nothing had before, of a file or (-1) of their own, and held.
  // Null if there is no room.
  void* map(std::size_t bytes, int file);
  void unmap(uintptr_t begin);
  bool contains(uintptr_t address) const { return address - base_ < kReserved; }

  // One piece of memory is open as long as somebody holds it.
  void hold(uintptr_t begin);
  void let_go(uintptr_t begin);
  // All of it is open as long as a device works. To open and close it takes 40 us a MiB: where it
  // is much, it stays open until the next work, more often the more it is.
  void begin_work();
  void end_work();

 private:
  static constexpr std::size_t kReserved = std::size_t{1} << 40;

  static constexpr std::size_t kOften = std::size_t{2} << 20;

  struct Piece {
    std::size_t bytes;
    int holders;
  };
  void protect_all(int rights) const;

  std::mutex mutex_;
  uintptr_t base_ = 0;
  uintptr_t next_ = 0;
  std::map<uintptr_t, Piece> pieces_;
  std::size_t written_ = 0;  // bytes, but of each piece no more than what comes filled
  int num_working_ = 0;
  bool is_open_ = false;
  std::size_t num_ends_ = 0;  // of work, since it was opened
};

DevicePages& device_pages();  // never destroyed

// As long as it lives a device works: on a stream's work.
class AtWork {
 public:
  AtWork() { device_pages().begin_work(); }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
  ~AtWork() { device_pages().end_work(); }
};

}  // namespace fake_cuda
