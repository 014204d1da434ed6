// Handles by which another process opens memory: of its file, at the process that allocated it.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "memory.hpp"

namespace fake_cuda {
namespace {

struct Handle {
  uint64_t magic;
  int64_t process;
  int64_t file;
  uint64_t inode;  // tells the file from a later one of the same number
  uint64_t bytes;
  int64_t device;
};
constexpr uint64_t kMagic = 0x6661'6b65'6375'6461;
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

uint64_t inode_of(int file) {
  struct stat about = {};
  return fstat(file, &about) == 0 ? static_cast<uint64_t>(about.st_ino) : 0;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  return call("cudaIpcGetMemHandle", kContext, [&] {
    Range range;
    if (!fake_cuda::memory().find(memory, range, Origin::kMalloc)) return cudaErrorInvalidValue;
    const Handle told{kMagic,      getpid(),    range.file, inode_of(range.file),
                      range.bytes, range.device};
    *handle = {};
    std::memcpy(handle->reserved, &told, sizeof(told));
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags) {
  return call("cudaIpcOpenMemHandle", kContext | kNotInCapture, [&] {
    Handle told;
    std::memcpy(&told, handle.reserved, sizeof(told));
    if (told.magic != kMagic) return cudaErrorInvalidValue;
    if (told.process == getpid()) return cudaErrorDeviceUninitialized;
    if (flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    const auto device = static_cast<int>(told.device);
    const cudaError_t error = device == this_thread().device ? cudaSuccess : enable_peer(device);
    if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) return error;
    const std::string path =
        "/proc/" + std::to_string(told.process) + "/fd/" + std::to_string(told.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return cudaErrorInvalidValue;
    *memory =
        inode_of(file) == told.inode ? fake_cuda::memory().open(device, file, told.bytes) : nullptr;
    if (*memory == nullptr) close(file);
    return *memory == nullptr ? cudaErrorMapBufferObjectFailed : cudaSuccess;
  });
}

cudaError_t cudaIpcCloseMemHandle(void* memory) {
  return call("cudaIpcCloseMemHandle", kContext | kNotInCapture, [&] {
    return fake_cuda::memory().release(memory, Origin::kOpened) ? cudaSuccess
                                                                : cudaErrorInvalidValue;
  });
}
