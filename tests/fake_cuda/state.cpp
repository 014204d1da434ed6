#include "state.hpp"

#include <unistd.h>

#include <limits>

#include "streams.hpp"

namespace fake_cuda {

ThreadState& this_thread() {
  static thread_local ThreadState thread;
  return thread;
}

State& state() {
  static State* const all = new State;
  return *all;
}

namespace {

int64_t default_of(const std::string& name) {
  static const std::map<std::string, int64_t> defaults = {
      {"mode", 0},
      {"devices", 2},
      {"peers", 1},
      {"memory", int64_t{8} << 30},
      {"multiprocessors", 132},
      {"major", 9},
      {"minor", 0},
      {"ptx", 90},
      {"runs_kernels", 1},
      {"registers_read_only", 1},
      {"lockable", std::numeric_limits<int64_t>::max()},
      {"pageable_reads_late", 0},
      {"seed", 1},
      {"count_reads", 0},
  };
  return defaults.at(name);
}

// Whether the thread captures; such a capture is of no use any more.
bool invalidate_captures() {
  for (const auto& capture : this_thread().captures) capture->is_invalid = true;
  return !this_thread().captures.empty();
}

}  // namespace

int64_t option(const char* name) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const auto found = state().options.find(name);
  return found == state().options.end() ? default_of(name) : found->second;
}

void count(const char* counter, int64_t more) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().counters[counter] += more;
}

void report_violation(const std::string& what) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().violations.push_back(what);
}

bool is_device(int device) {
  return device >= 0 && device < kMostDevices && device < option("devices");
}

void create_context(int device, const char* call) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().contexts.emplace(device, call);
  if (state().process == 0) state().process = getpid();
}

cudaError_t error_of_lost(int device) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const auto found = state().lost.find(device);
  return found == state().lost.end() ? cudaSuccess : found->second;
}

bool takes_fault(int device) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  const auto fault = state().faults.find(device);
  if (fault != state().faults.end()) {
    state().lost.insert(*fault);
    state().faults.erase(fault);
  }
  return state().lost.count(device) == 1;
}

cudaError_t begin_call(const char* name, unsigned rules) {
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    ++state().calls[name];
    if (state().process != 0 && state().process != getpid()) return cudaErrorInitializationError;
    const auto planned = state().failures.find(name);
    if (planned != state().failures.end() && planned->second.calls_before-- == 0) {
      const cudaError_t error = planned->second.error;
      state().failures.erase(planned);
      return error;
    }
  }
  if ((rules & kContext) != 0) {
    create_context(this_thread().device, name);
    const cudaError_t error = error_of_lost(this_thread().device);
    if (error != cudaSuccess) return error;
  }
  if ((rules & kNotInCapture) != 0 && invalidate_captures()) {
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

cudaError_t end_call(cudaError_t error) {
  if (error != cudaSuccess) this_thread().last_error = error;
  return error;
}

}  // namespace fake_cuda
