// Copies and fills: what may be copied, when it is read, and who waits for it.
#include <cstring>
#include <memory>
#include <vector>

#include "memory.hpp"
#include "pointers.hpp"
#include "streams.hpp"

namespace fake_cuda {
namespace {

struct End {
  const void* memory;
  std::size_t bytes;
  Place place = Place::kRefused;

  cudaError_t check(bool of_device, const Stream& stream) {
    int owner = stream.device();
    place = fake_cuda::memory().place_of(memory, bytes, &owner);
    if (place == Place::kRefused) return cudaErrorInvalidValue;
    if (!of_device) return place == Place::kDevice ? cudaErrorInvalidValue : cudaSuccess;
    if (place != Place::kDevice) {
      return stream.is_emulated() ? cudaSuccess : cudaErrorInvalidValue;
    }
    return reaches(stream.device(), memory, owner) ? cudaSuccess : cudaErrorInvalidValue;
  }

  // When the stream has come so far.
  bool is_still_there() const {
    int owner = 0;
    return fake_cuda::memory().place_of(memory, bytes, &owner) == place;
  }
};

const char* kind_of_copy(const End& to, const End& from) {
  if (to.place == Place::kDevice && from.place == Place::kDevice) return "copies_on_device";
  if (to.place == Place::kDevice) {
    return from.place == Place::kPinned ? "uploads_pinned" : "uploads_pageable";
  }
  return to.place == Place::kPinned ? "downloads_pinned" : "downloads_pageable";
}

Work copying(const End& to, const End& from) {
  return [to, from] {
    if (!to.is_still_there() || !from.is_still_there()) {
      report_violation(std::string("a queued copy uses memory that is gone: ") +
                       (to.is_still_there() ? "its source" : "its destination"));
      return;
    }
    std::memcpy(const_cast<void*>(to.memory), from.memory, to.bytes);
    if (to.place == Place::kDevice) note_upload(to.memory, to.bytes);
  };
}

// Of pageable memory, which is read before the call returns.
Work copying_staged(const End& to, const End& from) {
  const auto* const begin = static_cast<const char*>(from.memory);
  auto staged = std::make_shared<std::vector<char>>(begin, begin + from.bytes);
  return [to, staged] {
    if (!to.is_still_there()) {
      report_violation("a queued copy uses memory that is gone: its destination");
      return;
    }
    std::memcpy(const_cast<void*>(to.memory), staged->data(), to.bytes);
    note_upload(to.memory, to.bytes);
  };
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  cudaError_t error = open_for_work(handle, stream);
  if (error != cudaSuccess || bytes == 0) return error;
  End target{to, bytes}, source{from, bytes};
  error = target.check(kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice, *stream);
  if (error != cudaSuccess) return error;
  error = source.check(kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice, *stream);
  if (error != cudaSuccess) return error;
  count(kind_of_copy(target, source));
  count("bytes_copied", static_cast<int64_t>(bytes));
  const bool staged = kind == cudaMemcpyHostToDevice && source.place == Place::kPageable &&
                      stream->capture == nullptr && option("pageable_reads_late") == 0;
  stream->submit(staged ? copying_staged(target, source) : copying(target, source));
  if (kind == cudaMemcpyDeviceToHost && target.place == Place::kPageable &&
      stream->capture == nullptr) {
    count("waits");
    stream->now().wait();
  }
  return cudaSuccess;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync", kContext, [&] {
    if (kind < cudaMemcpyHostToDevice || kind > cudaMemcpyDeviceToDevice) {
      return cudaErrorNotSupported;  // by these tests
    }
    return copy(to, from, bytes, kind, stream);
  });
}

cudaError_t cudaMemsetAsync(void* memory, int byte, std::size_t bytes, cudaStream_t handle) {
  return call("cudaMemsetAsync", kContext, [&] {
    std::shared_ptr<Stream> stream;
    cudaError_t error = open_for_work(handle, stream);
    if (error != cudaSuccess || bytes == 0) return error;
    End target{memory, bytes};
    error = target.check(true, *stream);
    if (error != cudaSuccess) return error;
    count("fills");
    stream->submit([target, byte] {
      if (target.is_still_there()) {
        std::memset(const_cast<void*>(target.memory), byte, target.bytes);
      } else {
        report_violation("a queued fill uses memory that is gone");
      }
    });
    return cudaSuccess;
  });
}
