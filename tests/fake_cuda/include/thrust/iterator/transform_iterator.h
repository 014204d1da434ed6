// As Thrust's, for the tests' CUDA runtime.
#pragma once

#include <cstdint>

namespace thrust {

template <class Iterator, class F>
struct transform_iterator {
  Iterator values;
  F f;
  auto operator[](int64_t i) const { return f(values[i]); }
};

template <class Iterator, class F>
transform_iterator<Iterator, F> make_transform_iterator(Iterator values, F f) {
  return {values, f};
}

}  // namespace thrust
