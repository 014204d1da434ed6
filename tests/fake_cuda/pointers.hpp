// Pointers that kernels get, in their arguments or in tables that were uploaded: whether a device
// may follow them. It can read its own memory, that of peers that were enabled, and memory of the
// host that is page-locked or registered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "streams.hpp"

namespace fake_cuda {

// Whether a device reads what another's memory is.
bool reaches(int device, const void* memory, int owner);

// The pointers of a kernel, from its launch to when it runs. Both report violations.
class Pointers {
 public:
  // `bytes`: its arguments.
  Pointers(const void* bytes, std::size_t size, const Stream& stream);
  // What they lead to, and what the tables say that they lead to, must be there.
  void check_when_it_runs() const;

 private:
  int device_;
  bool is_checked_;  // not on emulated devices
  std::vector<uintptr_t> words_;
};

// An upload has arrived: pointers in it are followed by kernels that get the memory it lies in.
void note_upload(const void* to, std::size_t bytes);
// That memory is free: nothing is in it any more.
void forget_uploads(uintptr_t begin);

}  // namespace fake_cuda
