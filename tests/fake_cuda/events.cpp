// Events: positions in streams.
#include <map>
#include <mutex>

#include "streams.hpp"

namespace fake_cuda {
namespace {

struct Event {
  int device;
  Position position;
};

struct Events {
  std::mutex mutex;
  std::map<cudaEvent_t, Event> all;
  uintptr_t last = 0;
};

Events& events() {
  static Events* const all = new Events;
  return *all;
}

// Calls f with a copy of the event.
template <class F>
cudaError_t with_event(cudaEvent_t event, F f) {
  Event found;
  {
    const std::lock_guard<std::mutex> lock(events().mutex);
    const auto place = events().all.find(event);
    if (place == events().all.end()) return cudaErrorInvalidResourceHandle;
    found = place->second;
  }
  return f(found);
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return call("cudaEventCreateWithFlags", kContext, [&] {
    const std::lock_guard<std::mutex> lock(events().mutex);
    *event = reinterpret_cast<cudaEvent_t>(++events().last);
    events().all.emplace(*event, Event{this_thread().device, {}});
    return cudaSuccess;
  });
}

// "cudaEventRecord() will fail if the event and the stream are on different devices."
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", kContext, [&] {
    const auto found = find_stream(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found->capture != nullptr) return cudaErrorNotSupported;  // not needed by any test
    const std::lock_guard<std::mutex> lock(events().mutex);
    const auto place = events().all.find(event);
    if (place == events().all.end() || place->second.device != found->device()) {
      return cudaErrorInvalidResourceHandle;
    }
    place->second.position = found->now();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", kContext, [&] {
    const auto found = find_stream(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found->capture != nullptr) {  // an event of outside
      found->capture->is_invalid = true;
      return cudaErrorStreamCaptureIsolation;
    }
    return with_event(event, [&](const Event& known) {
      found->submit_wait(known.position);
      return cudaSuccess;
    });
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", kContext, [&] {
    return with_event(event, [](const Event& known) {
      count("waits");
      if (known.position.is_last()) count("waits_alone");
      known.position.wait();
      return cudaSuccess;
    });
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", kContext | kNotInCapture, [&] {
    return with_event(event, [](const Event& known) {
      return known.position.is_reached() ? cudaSuccess : cudaErrorNotReady;
    });
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", kContext, [&] {
    const std::lock_guard<std::mutex> lock(events().mutex);
    return events().all.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}
