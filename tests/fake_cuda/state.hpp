// What the runtime knows of the process and of each thread, and what every call of it begins and
// ends with.
#pragma once

#include <cuda_runtime.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fake_cuda {

struct Capture;

constexpr int kMostDevices = 8;

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
  std::map<int, cudaError_t> faults;  // by device: of the next kernel that runs
  std::map<int, cudaError_t> lost;    // by device: what all calls answer since a kernel failed
  pid_t process = 0;                  // that has contexts; its children can use none
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
// Lets the thread's device reach what cudaMalloc gave on another.
cudaError_t enable_peer(int peer);
// The error that a device is lost by; cudaSuccess: it is not.
cudaError_t error_of_lost(int device);
// Whether a kernel that runs now does not: its device is lost, or is from now on.
bool takes_fault(int device);

// Everything that a program may call goes through this. What it takes is the runtime's time: all
// else is the program's.
template <class Body>
cudaError_t call(const char* name, unsigned rules, Body body) {
  const auto begin = std::chrono::steady_clock::now();
  cudaError_t error = begin_call(name, rules);
  if (error == cudaSuccess) error = body();
  // Also of work that was done meanwhile.
  if (error == cudaSuccess && (rules & kContext) != 0) error = error_of_lost(this_thread().device);
  error = end_call(error);
  const auto took = std::chrono::steady_clock::now() - begin;
  count("nanoseconds_in_calls", std::chrono::nanoseconds(took).count());
  return error;
}

}  // namespace fake_cuda
