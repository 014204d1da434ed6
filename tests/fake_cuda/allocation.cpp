// Memory of devices: at once, or in a stream's order.
#include "memory.hpp"
#include "streams.hpp"

using namespace fake_cuda;

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return call("cudaMalloc", kContext | kNotInCapture, [&] {
    if (memory == nullptr) return cudaErrorInvalidValue;
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    *memory = fake_cuda::memory().allocate(Origin::kMalloc, this_thread().device, bytes, true);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    count("allocations");
    return cudaSuccess;
  });
}

// CUDA's may wait for the device or not; this one does not.
cudaError_t cudaFree(void* memory) {
  return call("cudaFree", kContext | kNotInCapture, [&] {
    if (memory == nullptr) return cudaSuccess;
    auto& all = fake_cuda::memory();
    return all.release(memory, Origin::kMalloc) || all.release(memory, Origin::kPool)
               ? cudaSuccess
               : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t handle) {
  return call("cudaMallocAsync", kContext, [&] {
    std::shared_ptr<Stream> stream;
    const cudaError_t error = open_for_work(handle, stream);
    if (error != cudaSuccess) return error;
    if (memory == nullptr) return cudaErrorInvalidValue;
    if (stream->capture != nullptr) {  // CUDA's would belong to the graph
      stream->capture->is_invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    *memory = nullptr;
    if (bytes == 0) return cudaSuccess;
    const bool is_closed = !stream->is_emulated();
    *memory = fake_cuda::memory().allocate(Origin::kPool, stream->device(), bytes, is_closed);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    count("allocations");
    return cudaSuccess;
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t handle) {
  return call("cudaFreeAsync", kContext, [&] {
    std::shared_ptr<Stream> stream;
    const cudaError_t error = open_for_work(handle, stream);
    if (error != cudaSuccess) return error;
    if (stream->capture != nullptr) {  // only a graph's own memory can be freed by it
      stream->capture->is_invalid = true;
      return cudaErrorInvalidValue;
    }
    if (!fake_cuda::memory().ask_free(memory)) return cudaErrorInvalidValue;
    stream->submit([memory] { fake_cuda::memory().release(memory, Origin::kPool); });
    return cudaSuccess;
  });
}
