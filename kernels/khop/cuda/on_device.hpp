// Current device of a thread.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <exception>

#include "khop/cuda/check.hpp"

namespace khop::cuda {

// Whether the process has used a device. The driver knows; the runtime cannot be asked
// without making a context.
inline bool has_context(int device) noexcept {
  using GetState = CUresult (*)(CUdevice, unsigned*, int*);
  static const auto get_state = []() noexcept {
    void* function = nullptr;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 7000, 0);
#else
    cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &function, 0);
#endif
    forget_error();
    return reinterpret_cast<GetState>(function);
  }();
  unsigned flags = 0;
  int active = 1;  // if the driver does not say
  if (get_state != nullptr && get_state(device, &flags, &active) != CUDA_SUCCESS) return false;
  return active != 0;
}

// Makes a device current for as long as it lives.
//
// A thread that has never chosen a device has number 0. To go back there would create a context of
// it (since CUDA 12, cudaSetDevice does), which takes half a gigabyte, or fails where another
// process has the device for itself. So the thread stays where it is if the process has not used
// the other.
//
// Within another one for the same device it calls nothing: of a batch's calls to the runtime half
// would be such questions.
class OnDevice {
 public:
  explicit OnDevice(int device) : device_(device), outer_(entered()) {
    if (outer_ == device_) return;
    KHOP_CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ != device_) KHOP_CUDA_CHECK(cudaSetDevice(device_));
    entered() = device_;
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (outer_ == device_) return;
    entered() = outer_;
    if (before_ == device_ || !has_context(before_)) return;
    if (cudaSetDevice(before_) != cudaSuccess) forget_error();
  }

 private:
  // The device of the innermost one that lives in this thread; -1: none does.
  static int& entered() {
    thread_local int device = -1;
    return device;
  }

  int device_;
  int outer_;
  int before_ = 0;
};

// Calls f with a device as the current one, where nothing can be done about failures: in
// destructors. The process may have lost its device.
template <class F>
void quietly(int device, F f) noexcept {
  try {
    const OnDevice on(device);
    f();
  } catch (const std::exception&) {
  }
  forget_error();
}

}  // namespace khop::cuda
