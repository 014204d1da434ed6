// The backend of a GPU: steps are kernels on one stream.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <cub/device/device_radix_sort.cuh>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "khop/cuda/check.hpp"
#include "khop/cuda/handles.hpp"
#include "khop/cuda/host_memory.hpp"
#include "khop/cuda/staging.hpp"
#include "khop/cuda/stream.hpp"
#include "khop/device/allocator.hpp"
#include "khop/device/steps/backend.hpp"

namespace khop::cuda {

constexpr int kThreads = 256;
constexpr int kFewThreads = 64;
constexpr int64_t kBlocksEach = 32;  // of a multiprocessor: four times what it runs at once

// Three blocks at a time: by itself ptxas goes for more, with so few registers that some spill.
constexpr int kBlocksAtATime = 3;

// Kernels are launched while the one before them in the stream still runs (programmatic dependent
// launch), where the GPU has capability 9.0: the gap between two of them goes. Each begins with
// this, before it reads any memory. From then on what the kernels before it wrote is there, and
// blocks of the next kernel may begin to wait as soon as all of this one have begun.
__device__ __forceinline__ void begin_kernel() {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
#elif !defined(__CUDACC__)
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Tells for which architecture the kernels that this GPU runs were compiled.
static __global__ void compiled_like_all() {}

template <class Step>
__global__ void __launch_bounds__(kThreads, kBlocksAtATime)
    run_step(device::Count items, Step step) {
  begin_kernel();
  const int64_t count = items.value();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  // Most threads have one item: to unroll the loop takes a division, by which the compiler counts.
#pragma unroll 1
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    step(i);
  }
}

template <class Step>
__global__ void __launch_bounds__(kThreads, kBlocksAtATime)
    run_step_on_threads(device::Count items, Step step) {
  begin_kernel();
  const int64_t count = items.value();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (int64_t i = thread; i < count; i += stride) step(i, thread);
}

template <class Step>
__global__ void __launch_bounds__(device::kBlockThreads, kBlocksAtATime) run_block_step(Step step) {
  __shared__ typename Step::Shared shared;
  begin_kernel();
#ifndef __CUDACC__
  if (threadIdx.x > 0) return;  // `Block::each` is a loop over the threads then
  device::block_order = fake_cuda::block_seed;
#endif
  step(device::Block{static_cast<int64_t>(blockIdx.x), static_cast<int64_t>(gridDim.x)}, shared);
}

class Backend {
 public:
  using Recording = cuda::Recording;
  using Mark = cuda::Mark;

  // `stream` 0: one of its own.
  Backend(int device, cudaStream_t stream, device::Allocator allocator)
      : device_(device),
        own_stream_(device, stream),
        stream_(own_stream_.get()),
        allocator_(std::move(allocator)),
        staging_(device) {
    const OnDevice on(device_);
    if (!allocator_.allocate) keep_pooled_memory();
    int multiprocessors = 0;
    KHOP_CUDA_CHECK(
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_));
    multiprocessors_ = std::max(1, multiprocessors);
    launches_ahead_ = can_launch_ahead();
    block_words_ = static_cast<device::BlockWords*>(allocate(sizeof(device::BlockWords)));
    try {
      fill(block_words_, 0, sizeof(device::BlockWords));
    } catch (...) {
      release(block_words_);
      throw;
    }
  }
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  ~Backend() {
    quietly(device_, [this] {
      release(block_words_);
      if (scratch_ != nullptr) release(scratch_);
      // The staging memory is given back at once.
      if (own_stream_.is_own() || staging_.in_use()) cudaStreamSynchronize(stream_);
    });
  }

  void* allocate(std::size_t bytes) {
    if (is_recording_) {
      throw std::logic_error(
          "memory was asked for while a batch was recorded as a CUDA graph: the graph would go on "
          "using it. Draw without cuda_graph, and please report this");
    }
    if (bytes == 0) bytes = 1;
    if (allocator_.allocate) return allocator_.allocate(bytes);
    const OnDevice on(device_);
    void* memory = nullptr;
    KHOP_CUDA_CHECK(cudaMallocAsync(&memory, bytes, stream_));
    return memory;
  }
  void release(void* memory) noexcept {
    if (allocator_.release) {
      allocator_.release(memory);
      return;
    }
    const std::lock_guard<std::mutex> lock(releasing_mutex_);
    if (is_recording_) {
      released_.push_back(memory);  // the driver would take it for the graph's
    } else {
      quietly(device_, [&] { cudaFreeAsync(memory, stream_); });
    }
  }

  void upload(void* to, const void* from, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t part = std::min(bytes - done, Staging::kMost);
      char* const staged = stage(part);
      std::memcpy(staged, static_cast<const char*>(from) + done, part);
      copy(static_cast<char*>(to) + done, staged, part, cudaMemcpyHostToDevice);
      done += part;
    }
  }
  void upload_pinned(void* to, const void* from, std::size_t bytes) {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  // Large copies go straight to where they are wanted if the driver agrees. Few bytes are there
  // sooner through page-locked memory.
  void download(void* to, const void* from, std::size_t bytes) {
    if (bytes > kFewBytes && download_directly(to, from, bytes)) return;
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t part = std::min(bytes - done, Staging::kMost);
      char* const staged = stage(part);
      copy(staged, static_cast<const char*>(from) + done, part, cudaMemcpyDeviceToHost);
      wait_for_copies();
      std::memcpy(static_cast<char*>(to) + done, staged, part);
      done += part;
    }
  }
  void download_pinned(void* to, const void* from, std::size_t bytes) {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  void fill(void* memory, int byte, std::size_t bytes) {
    const OnDevice on(device_);
    if (bytes > 0) KHOP_CUDA_CHECK(cudaMemsetAsync(memory, byte, bytes, stream_));
  }

  void mark(Mark& mark) {
    const OnDevice on(device_);
    KHOP_CUDA_CHECK(cudaEventRecord(mark.get(), stream_));
  }
  // Unlike `synchronize`, not for what was asked for after it.
  void wait(Mark& mark) {
    const OnDevice on(device_);
    KHOP_CUDA_CHECK(cudaEventSynchronize(mark.get()));
  }
  void synchronize() {
    const OnDevice on(device_);
    KHOP_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  // Not while another thread records: that would end its recording.
  void wait_quietly() noexcept {
    const std::lock_guard<std::mutex> lock(recording_mutex_);
    quietly(device_, [this] { cudaStreamSynchronize(stream_); });
  }

  const void* map_host(const void* memory, std::size_t bytes, const device::HostOwner& owner) {
    const OnDevice on(device_);
    return cuda::map_host(device_, memory, bytes, owner);
  }
  void unmap_host(const void* memory, std::size_t bytes) noexcept {
    cuda::unmap_host(device_, memory, bytes);
  }
  // With unified addressing, which all 64-bit systems have, devices see it at the same address.
  void* allocate_host(std::size_t bytes) {
    const OnDevice on(device_);
    void* memory = nullptr;
    KHOP_CUDA_CHECK(cudaHostAlloc(&memory, bytes == 0 ? 1 : bytes,
                                  cudaHostAllocPortable | cudaHostAllocMapped));
    return memory;
  }
  void release_host(void* memory) noexcept {
    quietly(device_, [=] { cudaFreeHost(memory); });
  }

  bool reach(const Backend& peer) {
    const OnDevice on(device_);
    return enable_peer(device_, peer.device_);
  }
  // Enabling peers opens what cudaMalloc gives. Memory of the stream-ordered pool stays closed
  // (it follows cudaMemPoolSetAccess alone), and that of other allocators may come from there.
  void* allocate_for_peers(std::size_t bytes) {
    const OnDevice on(device_);
    void* memory = nullptr;
    KHOP_CUDA_CHECK(cudaMalloc(&memory, bytes == 0 ? 1 : bytes));
    return memory;
  }
  void release_for_peers(void* memory) noexcept {
    quietly(device_, [=] { cudaFree(memory); });
  }

  std::string handle_of(void* memory) const {
    const OnDevice on(device_);
    cudaIpcMemHandle_t handle;
    KHOP_CUDA_CHECK(cudaIpcGetMemHandle(&handle, memory));
    return {handle.reserved, sizeof(handle.reserved)};
  }
  void* open_handle(const std::string& bytes) const {
    cudaIpcMemHandle_t handle;
    if (bytes.size() != sizeof(handle.reserved)) {
      throw std::invalid_argument("a handle of device memory has " +
                                  std::to_string(sizeof(handle.reserved)) + " bytes (got " +
                                  std::to_string(bytes.size()) + ")");
    }
    std::copy(bytes.begin(), bytes.end(), handle.reserved);
    const OnDevice on(device_);
    void* memory = nullptr;
    KHOP_CUDA_CHECK(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
    return memory;
  }
  void close_handle(void* memory) const noexcept {
    quietly(device_, [=] { cudaIpcCloseMemHandle(memory); });
  }

  // Not through `map_host`, which locks pages as read-only where it can.
  bool lock_pages(void* memory, std::size_t bytes) const noexcept {
    bool is_locked = false;
    quietly(device_, [&] {
      is_locked = cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess;
    });
    return is_locked;
  }
  void unlock_pages(void* memory) const noexcept {
    quietly(device_, [=] { cudaHostUnregister(memory); });
  }

  // What is recorded must find its memory there: it may allocate nothing.
  template <class Steps>
  Recording record(Steps&& steps) {
    const OnDevice on(device_);
    const std::lock_guard<std::mutex> lock(recording_mutex_);
    cudaGraph_t graph = nullptr;
    {
      const std::lock_guard<std::mutex> releasing(releasing_mutex_);
      KHOP_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
      is_recording_ = true;
    }
    const int64_t launched = num_launches_;
    try {
      steps();
    } catch (...) {
      if (end_recording(&graph, launched) == cudaSuccess) cudaGraphDestroy(graph);
      forget_error();
      throw;
    }
    KHOP_CUDA_CHECK(end_recording(&graph, launched));
    return Recording(device_, graph);
  }
  void launch(const Recording& recording) {
    const OnDevice on(device_);
    KHOP_CUDA_CHECK(cudaGraphLaunch(recording.get(), stream_));
    ++num_launches_;
  }

  template <class Step>
  void run(device::Count items, Step step) {
    if (items.most <= 0) return;
    const unsigned threads = threads_of(items.most);
    launch_kernel(blocks_of(items.most, threads), threads, &run_step<Step>, items, step);
  }
  template <class Step>
  void run_on_threads(device::Count items, int64_t most_threads, Step step) {
    if (items.most <= 0) return;
    const int64_t wanted = std::min(items.most, most_threads);
    const auto threads = static_cast<unsigned>(std::min<int64_t>(wanted, threads_of(wanted)));
    const int64_t blocks = std::min(blocks_of(wanted, threads), most_threads / threads);
    launch_kernel(blocks, threads, &run_step_on_threads<Step>, items, step);
  }
  template <class Step>
  void run_blocks(int64_t count, Step step) {
    launch_kernel(count, device::kBlockThreads, &run_block_step<Step>, step);
  }
  device::BlockWords* block_words() { return block_words_; }

  void sort(int64_t count, device::SortPairs pairs, int bits) {
    if (count == 0) return;
    const OnDevice on(device_);
    cub::DoubleBuffer<uint64_t> keys(pairs.keys, pairs.other_keys);
    cub::DoubleBuffer<int64_t> values(pairs.values, pairs.other_values);
    std::size_t bytes = 0;
    KHOP_CUDA_CHECK(
        cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, values, count, 0, bits, stream_));
    void* const scratch = scratch_of(bytes);
    KHOP_CUDA_CHECK(
        cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, values, count, 0, bits, stream_));
    num_launches_ += 1 + (bits + 7) / 8;
    keep(pairs.keys, keys.Current(), count);
    keep(pairs.values, values.Current(), count);
  }

  OnDevice on_device() const { return OnDevice(device_); }

  int64_t num_launches() const { return num_launches_; }
  cudaStream_t stream() const { return stream_; }
  int device() const { return device_; }

 private:
  static constexpr std::size_t kFewBytes = std::size_t{64} << 10;

  // The driver's pool would give what is free back to the system whenever the host waits, which is
  // once a batch.
  void keep_pooled_memory() {
    cudaMemPool_t pool = nullptr;
    KHOP_CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, device_));
    uint64_t threshold = ~uint64_t{0};
    KHOP_CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  }

  // Not where the driver compiled the kernels from code for older GPUs: that does not wait. The
  // variable is for measurements, and for drivers that fail at it.
  bool can_launch_ahead() const {
    const char* const wish = std::getenv("KHOP_DEPENDENT_LAUNCH");
    if (wish != nullptr && std::strcmp(wish, "0") == 0) return false;
    int major = 0;
    KHOP_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_));
    if (major < 9) return false;
    cudaFuncAttributes attributes{};
    KHOP_CUDA_CHECK(cudaFuncGetAttributes(&attributes, compiled_like_all));
    return attributes.ptxVersion >= 90;
  }

  // Steps stride over their items, of which there may be far fewer than bounds say: more blocks
  // than fill the device would have nothing to do.
  int64_t blocks_of(int64_t items, unsigned threads) const {
    return std::min((items + threads - 1) / threads, multiprocessors_ * kBlocksEach);
  }
  // Few items in small blocks: there are more of them to be spread over multiprocessors.
  unsigned threads_of(int64_t items) const {
    return items < multiprocessors_ * kThreads ? kFewThreads : kThreads;
  }

  template <class... Params, class... Args>
  void launch_kernel(int64_t blocks, unsigned threads, void (*kernel)(Params...), Args&&... args) {
    const OnDevice on(device_);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(threads);
    config.stream = stream_;
    cudaLaunchAttribute ahead{};
    if (launches_ahead_) {
      ahead.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      ahead.val.programmaticStreamSerializationAllowed = 1;
      config.attrs = &ahead;
      config.numAttrs = 1;
    }
    KHOP_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
    ++num_launches_;
  }

  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    const OnDevice on(device_);
    if (bytes > 0) KHOP_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, stream_));
  }

  char* stage(std::size_t bytes) {
    return staging_.take(bytes, [this] { wait_for_copies(); });
  }
  void wait_for_copies() {
    synchronize();
    staging_.clear();
  }

  // False if the driver refuses memory that is registered in part.
  bool download_directly(void* to, const void* from, std::size_t bytes) {
    const OnDevice on(device_);
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_);
    if (error == cudaErrorInvalidValue) {
      forget_error();
      return false;
    }
    check(error, "cudaMemcpyAsync");
    wait_for_copies();
    return true;
  }

  // What was recorded has not been launched.
  cudaError_t end_recording(cudaGraph_t* graph, int64_t launched_before) {
    num_launches_ = launched_before;
    const std::lock_guard<std::mutex> lock(releasing_mutex_);
    const cudaError_t error = cudaStreamEndCapture(stream_, graph);
    is_recording_ = false;
    quietly(device_, [this] {
      for (void* memory : released_) cudaFreeAsync(memory, stream_);
    });
    released_.clear();
    return error;
  }

  template <class T>
  void keep(T* wanted, const T* sorted, int64_t count) {
    if (sorted == wanted) return;
    copy(wanted, sorted, static_cast<std::size_t>(count) * sizeof(T), cudaMemcpyDeviceToDevice);
  }

  // Memory for sorts: all are on one stream, so they share it. No recording has one.
  void* scratch_of(std::size_t bytes) {
    if (bytes > scratch_bytes_) {
      if (scratch_ != nullptr) release(std::exchange(scratch_, nullptr));
      scratch_bytes_ = 0;
      scratch_ = allocate(bytes);
      scratch_bytes_ = bytes;
    }
    return scratch_;
  }

  int device_;
  BackendStream own_stream_;
  cudaStream_t stream_;
  device::Allocator allocator_;
  Staging staging_;
  std::mutex recording_mutex_;
  std::mutex releasing_mutex_;  // of what follows: destructors run in any thread
  bool is_recording_ = false;
  std::vector<void*> released_;  // while recording
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  device::BlockWords* block_words_ = nullptr;
  int64_t multiprocessors_ = 1;
  bool launches_ahead_ = false;
  int64_t num_launches_ = 0;
};

}  // namespace khop::cuda
