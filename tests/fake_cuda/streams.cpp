#include "streams.hpp"

#include <algorithm>
#include <map>

#include "device_pages.hpp"

namespace fake_cuda {

bool Position::is_reached() const { return stream == nullptr || stream->has_done(number); }

bool Position::is_last() const { return stream == nullptr || stream->now().number == number; }

void Position::wait() const {
  if (stream != nullptr) stream->wait_until(number);
}

void Stream::start() {
  if (mode_ != kThreads) return;
  std::thread([self = shared_from_this()] { self->work_off(); }).detach();
}

void Stream::submit(Work work) {
  if (capture != nullptr) {
    capture->work.push_back(std::move(work));
  } else {
    push({std::move(work), std::nullopt});
  }
}

void Stream::submit_wait(Position position) {
  push({[] {}, std::move(position)});
}

void Stream::push(Operation operation) {
  uint64_t number;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(operation));
    number = ++asked_;
  }
  changed_.notify_all();
  if (mode_ == kEager) wait_until(number);
}

Position Stream::now() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {shared_from_this(), asked_};
}

bool Stream::is_idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_.load() == asked_;
}

void Stream::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

void Stream::wait_until(uint64_t number) {
  if (mode_ == kThreads) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done_.load() >= number; });
    return;
  }
  if (has_done(number)) return;
  const AtWork at_work;
  while (!has_done(number)) do_next();
}

// One operation, if no other thread has done it meanwhile. Whoever waits for another stream holds
// nothing: that one may have to wait for this.
void Stream::do_next() {
  std::optional<Position> after;
  {
    const std::lock_guard<std::mutex> turn(turn_);
    Operation* next;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (queue_.empty()) return;
      next = &queue_.front();
    }
    if (!next->after.has_value() || next->after->is_reached()) {
      const AtWork at_work;
      next->work();
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.pop_front();
      ++done_;
      return;
    }
    after = next->after;
  }
  after->wait();
}

void Stream::work_off() {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty() || is_closed_; });
      if (queue_.empty()) return;
    }
    do_next();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
    }  // so that nobody misses it
    changed_.notify_all();
  }
}

namespace {

// All streams of the process.
struct Streams {
  std::mutex mutex;
  std::map<cudaStream_t, std::shared_ptr<Stream>> open;
  std::map<int, std::shared_ptr<Stream>> legacy;   // by device
  std::vector<std::shared_ptr<Stream>> destroyed;  // that may have work left
};

Streams& streams() {
  static Streams* const all = new Streams;
  return *all;
}

cudaStream_t add_stream(int device, int64_t mode, bool is_emulated = false) {
  auto stream = std::make_shared<Stream>(device, mode, is_emulated);
  stream->start();
  const auto handle = reinterpret_cast<cudaStream_t>(stream.get());
  const std::lock_guard<std::mutex> lock(streams().mutex);
  streams().open.emplace(handle, std::move(stream));
  return handle;
}

// The device goes on with them although nobody can ask for it.
void finish_destroyed() {
  std::vector<std::shared_ptr<Stream>> left;
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    left.swap(streams().destroyed);
  }
  for (const auto& stream : left) stream->now().wait();
}

}  // namespace

std::shared_ptr<Stream> find_stream(cudaStream_t stream) {
  const int64_t mode = option("mode");
  const std::lock_guard<std::mutex> lock(streams().mutex);
  if (stream == nullptr) {
    auto& legacy = streams().legacy[this_thread().device];
    if (legacy == nullptr) {
      legacy = std::make_shared<Stream>(this_thread().device, mode);
      legacy->start();
    }
    return legacy;
  }
  const auto found = streams().open.find(stream);
  return found == streams().open.end() ? nullptr : found->second;
}

cudaError_t open_for_work(cudaStream_t stream, std::shared_ptr<Stream>& found) {
  found = find_stream(stream);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  const auto& captures = this_thread().captures;
  if (stream == nullptr && !captures.empty()) {  // the legacy stream waits for all others
    for (const auto& capture : captures) capture->is_invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  if (found->capture != nullptr && found->capture->is_invalid) {
    return cudaErrorStreamCaptureInvalidated;
  }
  return cudaSuccess;
}

void wait_for_device(int device) {
  std::vector<std::shared_ptr<Stream>> all;
  {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    for (const auto& [handle, stream] : streams().open) all.push_back(stream);
    for (const auto& [number, stream] : streams().legacy) all.push_back(stream);
  }
  for (const auto& stream : all) {
    if (stream->device() == device) stream->now().wait();
  }
  finish_destroyed();
}

cudaStream_t create_emulated_stream(int device) { return add_stream(device, kEager, true); }

}  // namespace fake_cuda

using namespace fake_cuda;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return call("cudaStreamCreateWithFlags", kContext, [&] {
    *stream = add_stream(this_thread().device, option("mode"));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  return call("cudaStreamCreateWithPriority", kContext, [&] {
    *stream = add_stream(this_thread().device, option("mode"));
    find_stream(*stream)->priority = priority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call("cudaStreamGetPriority", kContext, [&] {
    const auto found = find_stream(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    *priority = found->priority;
    return cudaSuccess;
  });
}

// "In case the device is still doing work in the stream when cudaStreamDestroy() is called, the
// function will return immediately."
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", kContext, [&] {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    const auto found = streams().open.find(stream);
    if (found == streams().open.end()) return cudaErrorInvalidResourceHandle;
    found->second->close();
    streams().destroyed.push_back(found->second);
    streams().open.erase(found);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", kContext, [&] {
    const auto found = find_stream(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found->capture != nullptr) {
      found->capture->is_invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    count("waits");
    count("waits_alone");
    finish_destroyed();
    found->now().wait();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call("cudaStreamQuery", kContext, [&] {
    const auto found = find_stream(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found->capture != nullptr) {
      found->capture->is_invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    return found->is_idle() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", kContext | kNotInCapture, [] {
    count("waits");
    count("waits_alone");
    wait_for_device(this_thread().device);
    return cudaSuccess;
  });
}
