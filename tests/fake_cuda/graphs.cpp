// Capture of streams into graphs.
#include <algorithm>
#include <map>
#include <mutex>

#include "streams.hpp"

namespace fake_cuda {
namespace {

using Graph = std::shared_ptr<const std::vector<Work>>;

struct Graphs {
  std::mutex mutex;
  std::map<uintptr_t, Graph> graphs;
  std::map<uintptr_t, Graph> executables;
  uintptr_t last = 0;
};

Graphs& graphs() {
  static Graphs* const all = new Graphs;
  return *all;
}

// Nothing is left of a capture afterwards.
cudaError_t end_capture(Stream& stream, Graph& graph) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
  auto& own = this_thread().captures;
  own.erase(std::remove(own.begin(), own.end(), capture), own.end());
  stream.capture = nullptr;
  if (capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  graph = std::make_shared<const std::vector<Work>>(std::move(capture->work));
  return cudaSuccess;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", kContext, [&] {
    if (handle == nullptr) return cudaErrorStreamCaptureUnsupported;
    const auto stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (mode != cudaStreamCaptureModeThreadLocal) return cudaErrorNotSupported;  // by these tests
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    stream->capture = std::make_shared<Capture>();
    stream->capture->thread = std::this_thread::get_id();
    this_thread().captures.push_back(stream->capture);
    return cudaSuccess;
  });
}

// The capture ends, whatever comes of it.
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  const cudaError_t planned = begin_call("cudaStreamEndCapture", kContext);
  const auto stream = find_stream(handle);
  if (stream == nullptr) return end_call(cudaErrorInvalidResourceHandle);
  Graph captured;
  const cudaError_t error = end_capture(*stream, captured);
  if (planned != cudaSuccess || error != cudaSuccess) {
    return end_call(planned != cudaSuccess ? planned : error);
  }
  const std::lock_guard<std::mutex> lock(graphs().mutex);
  graphs().graphs[++graphs().last] = captured;
  *graph = reinterpret_cast<cudaGraph_t>(graphs().last);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", kContext, [&] {
    const auto stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    *status = stream->capture == nullptr    ? cudaStreamCaptureStatusNone
              : stream->capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                            : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  return call("cudaGraphInstantiate", kContext, [&] {
    const std::lock_guard<std::mutex> lock(graphs().mutex);
    const auto found = graphs().graphs.find(reinterpret_cast<uintptr_t>(graph));
    if (found == graphs().graphs.end()) return cudaErrorInvalidValue;
    graphs().executables[++graphs().last] = found->second;
    *executable = reinterpret_cast<cudaGraphExec_t>(graphs().last);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return call("cudaGraphLaunch", kContext, [&] {
    std::shared_ptr<Stream> stream;
    const cudaError_t error = open_for_work(handle, stream);
    if (error != cudaSuccess) return error;
    if (stream->capture != nullptr) return cudaErrorNotSupported;  // by these tests
    Graph graph;
    {
      const std::lock_guard<std::mutex> lock(graphs().mutex);
      const auto found = graphs().executables.find(reinterpret_cast<uintptr_t>(executable));
      if (found == graphs().executables.end()) return cudaErrorInvalidValue;
      graph = found->second;
    }
    count("launches");
    stream->submit([graph] {
      for (const Work& work : *graph) work();
    });
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call("cudaGraphDestroy", kPlain, [&] {
    const std::lock_guard<std::mutex> lock(graphs().mutex);
    const auto found = graphs().graphs.erase(reinterpret_cast<uintptr_t>(graph));
    return found == 1 ? cudaSuccess : cudaErrorInvalidValue;
  });
}

// It may be in flight: what was launched keeps what it runs.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call("cudaGraphExecDestroy", kPlain, [&] {
    const std::lock_guard<std::mutex> lock(graphs().mutex);
    const auto found = graphs().executables.erase(reinterpret_cast<uintptr_t>(executable));
    return found == 1 ? cudaSuccess : cudaErrorInvalidValue;
  });
}
