// Flag by which one thread ends the kernel that another runs: a server that ends does not wait for
// rows of any length. Kernels that read rows whole look at it every some thousand entries.
#pragma once

#include <atomic>
#include <stdexcept>

namespace khop::cpu {

class Stopped : public std::runtime_error {
 public:
  Stopped() : std::runtime_error("a kernel was stopped") {}
};

class StopFlag {
 public:
  void set() { set_.store(true, std::memory_order_relaxed); }
  bool is_set() const { return set_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> set_{false};
};

// Throws Stopped if there is a flag and it is set.
inline void check_stop(const StopFlag* stop) {
  if (stop != nullptr && stop->is_set()) throw Stopped();
}

}  // namespace khop::cpu
