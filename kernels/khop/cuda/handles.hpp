// Objects of the runtime that batches keep: recorded graphs and moments in a stream.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "khop/cuda/check.hpp"
#include "khop/cuda/on_device.hpp"

namespace khop::cuda {

// A graph of kernels, ready to be launched.
class Recording {
 public:
  Recording() = default;
  // Of a graph, which is not needed any more then; `device` is the current one.
  Recording(int device, cudaGraph_t graph) : device_(device) {
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "cudaGraphInstantiate");
  }
  Recording(Recording&& other) noexcept
      : device_(other.device_), graph_(std::exchange(other.graph_, nullptr)) {}
  Recording& operator=(Recording&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(graph_, other.graph_);
    return *this;
  }
  ~Recording() {
    if (graph_ != nullptr) quietly(device_, [this] { cudaGraphExecDestroy(graph_); });
  }
  cudaGraphExec_t get() const { return graph_; }

 private:
  int device_ = 0;
  cudaGraphExec_t graph_ = nullptr;
};

// A moment in a stream of a backend, which the host may wait for.
class Mark {
 public:
  template <class Backend>
  explicit Mark(const Backend& backend) : device_(backend.device()) {}
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() {
    if (event_ != nullptr) quietly(device_, [this] { cudaEventDestroy(event_); });
  }
  // `device` is the current one.
  cudaEvent_t get() {
    if (event_ == nullptr) {
      KHOP_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    }
    return event_;
  }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace khop::cuda
