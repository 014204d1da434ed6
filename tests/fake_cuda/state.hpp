// What the runtime knows of the process and of each thread, and what every call of it begins and
// ends with.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fake_cuda {

struct Capture;

// Of one thread.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  std::vector<std::shared_ptr<Capture>> captures;  // that it began and has not ended
};
ThreadState& this_thread();

// "The n-th call of a function from now on fails."
struct PlannedFailure {
  int64_t calls_before;
  cudaError_t error;
};

struct State {
  std::mutex mutex;  // of all below
  std::map<std::string, int64_t> options;
  std::map<int, std::string> contexts;  // by device: the call that created it
  std::map<std::string, int64_t> calls;
  std::map<std::string, int64_t> counters;
  std::map<std::string, PlannedFailure> failures;
  std::vector<std::string> violations;  // of rules that no call could report
  std::map<int, std::vector<int>> peers;
};
State& state();  // never destroyed: devices may live until the end

int64_t option(const char* name);
void count(const char* counter, int64_t more = 1);
void report_violation(const std::string& what);

enum Rule : unsigned {
  kPlain = 0,
  kContext = 1,       // creates the context of the current device
  kNotInCapture = 2,  // refused, and ends the capture, while the thread captures
};

cudaError_t begin_call(const char* name, unsigned rules);
cudaError_t end_call(cudaError_t error);
void create_context(int device, const char* call);
bool is_device(int device);

// Everything that a program may call goes through this.
template <class Body>
cudaError_t call(const char* name, unsigned rules, Body body) {
  cudaError_t error = begin_call(name, rules);
  if (error == cudaSuccess) error = body();
  return end_call(error);
}

}  // namespace fake_cuda
