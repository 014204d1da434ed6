// Arguments of kernels for values that are stored in fewer bits.
#pragma once

#include <nanobind/stl/string.h>

#include <string>

#include "khop/bindings/arrays.hpp"
#include "khop/cpu/decode.hpp"

namespace khop::bindings {

inline Encoding encoding_of(const std::string& name) {
  if (name == "bfloat16") return Encoding::kBfloat16;
  if (name == "float16") return Encoding::kFloat16;
  if (name == "float8_e4m3fn") return Encoding::kFloat8;
  if (name == "int8") return Encoding::kInt8;
  throw nb::value_error(("there is no encoding '" + name + "'").c_str());
}

// Of rows of `width` values. int8 has a scale and a zero for each.
inline cpu::Codec codec_of(const std::string& name, const std::optional<In<float>>& scale,
                           const std::optional<In<float>>& zero, int64_t width) {
  const Encoding encoding = encoding_of(name);
  for (const auto* parameters : {&scale, &zero}) {
    const int64_t wanted = encoding == Encoding::kInt8 ? width : 0;
    const int64_t count = *parameters ? static_cast<int64_t>((*parameters)->shape(0)) : 0;
    if (count != wanted) {
      throw nb::value_error(("scale and zero of " + name + " must have " + std::to_string(wanted) +
                             " values (got " + std::to_string(count) + ")")
                                .c_str());
    }
  }
  return {encoding, scale ? scale->data() : nullptr, zero ? zero->data() : nullptr};
}

}  // namespace khop::bindings
