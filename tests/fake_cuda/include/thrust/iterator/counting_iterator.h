// As Thrust's, for the tests' CUDA runtime.
#pragma once

#include <cstdint>

namespace thrust {

template <class T>
struct counting_iterator {
  T first;
  explicit counting_iterator(T value) : first(value) {}
  T operator[](int64_t i) const { return first + i; }
};

}  // namespace thrust
