#include "khop/cpu/encode.hpp"

#include "khop/bindings/encoding.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

int64_t encode(const std::string& encoding, const InArray& values, const OutArray& out,
               const std::optional<In<float>>& scale, const std::optional<In<float>>& zero) {
  if (values.ndim() < 1 || out.ndim() < 1) throw nb::value_error("values and out need a row axis");
  if (!is_type<float>(values)) throw nb::type_error("values must be float32");
  const int64_t width = row_bytes_of(values) / static_cast<int64_t>(sizeof(float));
  const cpu::Codec codec = codec_of(encoding, scale, zero, width);
  const int64_t stored = width * stored_bytes(codec.encoding);
  if (length(values) != length(out) || row_bytes_of(out) != stored) {
    throw nb::value_error(("out must have " + std::to_string(length(values)) + " rows of " +
                           std::to_string(stored) + " bytes (got " + std::to_string(length(out)) +
                           " of " + std::to_string(row_bytes_of(out)) + ")")
                              .c_str());
  }
  const ReleaseGil release(length(values) * row_bytes_of(values));
  return cpu::encode_rows(static_cast<const float*>(values.data()), length(values), width, codec,
                          static_cast<char*>(out.data()));
}

}  // namespace

void bind_encode(nb::module_& m) {
  m.def("encode", &encode, nb::arg("encoding"), nb::arg("values").noconvert(),
        nb::arg("out").noconvert(), nb::arg("scale").noconvert().none() = nb::none(),
        nb::arg("zero").noconvert().none() = nb::none(),
        R"(Stores float32 in fewer bits, rounded to the nearest number (of two, to the even one).

Args:
    encoding: 'bfloat16', 'float16', 'float8_e4m3fn' or 'int8'.
    values: [n, ...] float32.
    out: [n, ...] what is filled, of any dtype; only the bytes of a row count.
    scale, zero: [values of a row] float32 of int8, see `decode`. Numbers beyond -128 and 127 become
        these.

Returns:
    -1, or the position of the first value, in row-major order, that cannot be stored: a finite one
    beyond the largest of the encoding, an infinity as float8, and an infinity or NaN as int8.)");
}

}  // namespace khop::bindings
