// Memory of the host: page-locked, registered, or neither.
#include "memory.hpp"

using namespace fake_cuda;

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return call("cudaHostAlloc", kContext | kNotInCapture, [&] {
    if (memory == nullptr || bytes == 0) return cudaErrorInvalidValue;
    *memory = fake_cuda::memory().allocate(Origin::kHost, this_thread().device, bytes, false);
    return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return call("cudaFreeHost", kContext | kNotInCapture, [&] {
    if (memory == nullptr) return cudaSuccess;
    return fake_cuda::memory().release(memory, Origin::kHost) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned flags) {
  return call("cudaHostRegister", kContext | kNotInCapture, [&] {
    const bool read_only = (flags & cudaHostRegisterReadOnly) != 0;
    if (read_only && option("registers_read_only") == 0) return cudaErrorNotSupported;
    return fake_cuda::memory().register_pages(reinterpret_cast<uintptr_t>(memory), bytes,
                                              read_only);
  });
}

// Nothing is said of work that still reads there: it is not waited for.
cudaError_t cudaHostUnregister(void* memory) {
  return call("cudaHostUnregister", kContext | kNotInCapture, [&] {
    return fake_cuda::memory().unregister(reinterpret_cast<uintptr_t>(memory))
               ? cudaSuccess
               : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  return call("cudaPointerGetAttributes", kPlain, [&] {
    *attributes = fake_cuda::memory().attributes_of(memory);
    return cudaSuccess;
  });
}
