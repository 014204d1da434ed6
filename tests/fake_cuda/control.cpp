// What tests set and ask, through ctypes (control.py).
#include <algorithm>
#include <cstring>
#include <string>

#include "khop/device/steps/gather.hpp"
#include "memory.hpp"
#include "streams.hpp"

namespace fake_cuda {
namespace {

std::string quoted(const std::string& text) { return '"' + text + '"'; }

template <class Map, class Key, class Value>
std::string object_of(const Map& map, Key key, Value value) {
  std::string text;
  for (const auto& entry : map) {
    text += (text.empty() ? "" : ",") + quoted(key(entry.first)) + ":" + value(entry.second);
  }
  return "{" + text + "}";
}

std::string report() {
  const auto number = [](int64_t value) { return std::to_string(value); };
  const auto name = [](const std::string& key) { return key; };
  std::string used;
  for (int device = 0; device < kMostDevices; ++device) {
    used += (used.empty() ? "" : ",") + number(memory().used(device));
  }
  const std::lock_guard<std::mutex> lock(state().mutex);
  std::string violations;
  for (const std::string& what : state().violations) {
    violations += (violations.empty() ? "" : ",") + quoted(what);
  }
  return "{\"contexts\":" + object_of(state().contexts, number, quoted) +
         ",\"calls\":" + object_of(state().calls, name, number) +
         ",\"counters\":" + object_of(state().counters, name, number) + ",\"used\":[" + used + "]" +
         ",\"violations\":[" + violations + "]}";
}

std::vector<unsigned>& turns() {
  static std::vector<unsigned> all;
  return all;
}
// Of rows that gathers read.
void count_read(const void* from, std::size_t bytes) {
  int owner = running_device;
  const Place place = memory().place_of(from, bytes, &owner);
  const bool is_own = place == Place::kDevice && owner == running_device;
  const char* const counter = is_own                    ? "row_bytes_of_device"
                              : place == Place::kDevice ? "row_bytes_of_peers"
                                                        : "row_bytes_of_host";
  count(counter, static_cast<int64_t>(bytes));
}

void take_turn(int) { turns().push_back(blockIdx.x * blockDim.x + threadIdx.x); }

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

#pragma GCC visibility push(default)
extern "C" {

// As if the process had begun, but for memory and streams that somebody has; of the calling thread
// alone, as to its device, its last error and its captures.
void fake_cuda_reset() {
  for (int device = 0; device < kMostDevices; ++device) wait_for_device(device);
  khop::device::note_row_read = nullptr;
  this_thread().device = 0;
  this_thread().last_error = cudaSuccess;
  this_thread().captures.clear();
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().options.clear();
  state().contexts.clear();
  state().calls.clear();
  state().counters.clear();
  state().failures.clear();
  state().violations.clear();
  state().peers.clear();
  state().faults.clear();
  state().lost.clear();
}

void fake_cuda_set(const char* name, int64_t value) {
  option(name);  // throws for what is no option, which ends the process
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().options[name] = value;
  if (std::string(name) == "count_reads") {
    khop::device::note_row_read = value != 0 ? &count_read : nullptr;
  }
}

void fake_cuda_fail(const char* function, int64_t nth, int error) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().failures[function] = {nth - 1, static_cast<cudaError_t>(error)};
}

// Runs a kernel of so many blocks and threads: out[i] is the number of the thread that was i-th.
void fake_cuda_order(unsigned blocks, unsigned threads, unsigned* out) {
  turns().clear();
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  cudaLaunchKernelEx(&config, &take_turn, 0);
  cudaDeviceSynchronize();
  std::copy(turns().begin(), turns().end(), out);
}

// The next kernel that a device runs fails, and all that comes after it.
void fake_cuda_lose(int device, int error) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().faults[device] = static_cast<cudaError_t>(error);
}

// Everything that was counted, as JSON. Returns how long it is; `text` gets what fits.
std::size_t fake_cuda_report(char* text, std::size_t size) {
  const std::string all = report();
  if (size > 0) {
    const std::size_t written = std::min(size - 1, all.size());
    std::memcpy(text, all.data(), written);
    text[written] = '\0';
  }
  return all.size();
}

// Does what streams of a device were asked for.
void fake_cuda_finish(int device) {
  wait_for_device(device);
  memory().check_free();
}
}
#pragma GCC visibility pop
