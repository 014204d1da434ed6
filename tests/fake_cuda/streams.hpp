// Streams: queues of work that is done when somebody waits for it, or by a thread of their own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "state.hpp"

namespace fake_cuda {

// When the work of a stream is done; the option "mode".
enum Mode : int64_t {
  kLazy = 0,     // when somebody waits for it
  kThreads = 1,  // as soon as a thread of the stream's own can
  kEager = 2,    // before the call returns
};

class Stream;

// All that a stream was asked for up to some moment.
struct Position {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;

  bool is_reached() const;
  bool is_last() const;  // nothing was asked for after it
  void wait() const;
};

using Work = std::function<void()>;

extern thread_local int running_device;  // of the kernel that a thread runs

// What calls in a capturing stream become.
struct Capture {
  std::thread::id thread;
  std::vector<Work> work;
  bool is_invalid = false;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, int64_t mode, bool is_emulated = false)
      : device_(device), mode_(mode), is_emulated_(is_emulated) {}
  void start();  // its thread, where it has one

  int device() const { return device_; }
  bool is_emulated() const { return is_emulated_; }

  int priority = 0;  // kept for who asks: nothing runs earlier for it

  // In the order of the calls; into the graph while it is captured.
  void submit(Work work);
  void submit_wait(Position position);
  Position now();
  void wait_until(uint64_t number);
  bool has_done(uint64_t number) const { return done_.load() >= number; }
  bool is_idle();
  void close();  // its thread ends when everything is done

  std::shared_ptr<Capture> capture;  // set by the capturing thread alone

 private:
  struct Operation {
    Work work;
    std::optional<Position> after;  // where another stream must be first
  };

  void push(Operation operation);
  void do_next();
  void work_off();

  const int device_;
  const int64_t mode_;
  const bool is_emulated_;
  std::mutex turn_;   // of the thread that does the next operation
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  uint64_t asked_ = 0;
  bool is_closed_ = false;
  std::atomic<uint64_t> done_{0};
};

// The stream of a handle, which is null for the legacy stream of the current device. Null if there
// is no such stream.
std::shared_ptr<Stream> find_stream(cudaStream_t stream);

// The stream that a call wants to put work on, or why it cannot.
cudaError_t open_for_work(cudaStream_t stream, std::shared_ptr<Stream>& found);

// Everything that streams were asked for, those that were destroyed, too.
void wait_for_device(int device);

// A stream of an emulated device: what it is asked for is done when the call returns, whatever the
// mode, and memory of the host counts as the device's.
cudaStream_t create_emulated_stream(int device);

}  // namespace fake_cuda
