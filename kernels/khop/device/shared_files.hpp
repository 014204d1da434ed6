// Memory of emulated devices that other processes open: files without names, which their owner's
// handle leads to.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

namespace khop::device {

class SharedFiles {
 public:
  static SharedFiles& get() {  // never destroyed: devices may live until the end
    static SharedFiles* const files = new SharedFiles;
    return *files;
  }

  // Null if there is no room.
  void* allocate(std::size_t bytes) {
    const int file = memfd_create("device memory", MFD_CLOEXEC);
    if (file < 0) return nullptr;
    const std::size_t size = bytes == 0 ? 1 : bytes;
    if (ftruncate(file, static_cast<off_t>(size)) != 0) {
      close(file);
      return nullptr;
    }
    return map(file, size);
  }

  std::string handle_of(const void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = mapped_.find(memory);
    if (found == mapped_.end()) throw std::invalid_argument("no memory for peers begins there");
    const auto [file, bytes] = found->second;
    const Handle handle{getpid(), file, inode_of(file), bytes};
    return {reinterpret_cast<const char*>(&handle), sizeof(handle)};
  }

  void* open(const std::string& bytes) {
    Handle handle;
    if (bytes.size() != sizeof(handle)) {
      throw std::invalid_argument("a handle of device memory has " +
                                  std::to_string(sizeof(handle)) + " bytes (got " +
                                  std::to_string(bytes.size()) + ")");
    }
    std::memcpy(&handle, bytes.data(), sizeof(handle));
    const std::string path =
        "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file >= 0 && inode_of(file) == handle.inode) {
      if (void* const memory = map(file, handle.bytes)) return memory;
    } else if (file >= 0) {
      close(file);
    }
    throw std::runtime_error("process " + std::to_string(handle.process) +
                             " has this device memory no more");
  }

  void release(void* memory) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = mapped_.find(memory);
    if (found == mapped_.end()) return;
    munmap(memory, found->second.bytes);
    close(found->second.file);
    mapped_.erase(found);
  }

 private:
  struct Handle {
    int64_t process;
    int64_t file;
    uint64_t inode;  // tells the file from a later one of the same number
    uint64_t bytes;
  };
  struct Mapped {
    int file;
    std::size_t bytes;
  };

  static uint64_t inode_of(int file) {
    struct stat about = {};
    return fstat(file, &about) == 0 ? static_cast<uint64_t>(about.st_ino) : 0;
  }

  // Takes the file. Null if it cannot be mapped.
  void* map(int file, std::size_t bytes) {
    struct stat about = {};
    const bool fits = fstat(file, &about) == 0 && static_cast<std::size_t>(about.st_size) >= bytes;
    void* const memory =
        fits ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
      close(file);
      return nullptr;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    mapped_[memory] = {file, bytes};
    return memory;
  }

  std::mutex mutex_;
  std::map<const void*, Mapped> mapped_;
};

}  // namespace khop::device
