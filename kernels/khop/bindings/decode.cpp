#include "khop/cpu/decode.hpp"

#include "khop/bindings/encoding.hpp"
#include "khop/bindings/gather_entry.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

nb::list decode_instructions() {
  nb::list names;
  for (const cpu::RowDecoder& decoder : cpu::row_decoders()) names.append(decoder.instructions);
  return names;
}

const cpu::RowDecoder& decoder_with(const std::optional<std::string>& instructions) {
  for (const cpu::RowDecoder& decoder : cpu::row_decoders()) {
    if (!instructions || *instructions == decoder.instructions) return decoder;
  }
  throw nb::value_error(("this machine has no instructions " + *instructions).c_str());
}

void decode(const std::string& encoding, const InArray& table, const std::optional<InArray>& rows,
            const OutArray& out, const std::optional<In<int64_t>>& places, int num_threads,
            const std::optional<In<float>>& scale, const std::optional<In<float>>& zero,
            const std::optional<std::string>& instructions) {
  if (table.ndim() < 1 || out.ndim() < 1) throw nb::value_error("table and out need a row axis");
  if (!is_type<float>(out)) throw nb::type_error("out must be float32");
  const int64_t width = row_bytes_of(out) / static_cast<int64_t>(sizeof(float));
  const int64_t stored = width * stored_bytes(encoding_of(encoding));
  if (row_bytes_of(table) != stored) {
    throw nb::value_error(("rows of table have " + std::to_string(row_bytes_of(table)) +
                           " bytes, but " + std::to_string(width) + " values of " + encoding +
                           " have " + std::to_string(stored))
                              .c_str());
  }
  const cpu::Codec codec = codec_of(encoding, scale, zero, width);
  const cpu::RowDecoder& decoder = decoder_with(instructions);
  const cpu::RowTable source{static_cast<const char*>(table.data()), length(table), stored};
  const cpu::RowTarget target{static_cast<char*>(out.data()), length(out),
                              places ? places->data() : nullptr};
  const int64_t wanted = places ? static_cast<int64_t>(places->shape(0)) : length(out);
  const auto copy = [&](auto* row_data, int64_t count) {
    return cpu::decode_rows(decoder, source, row_data, count, target, codec, num_threads);
  };
  gather_entries(source, rows, target, wanted, row_bytes_of(out), copy);
}

}  // namespace

void bind_decode(nb::module_& m) {
  m.def("decode_instructions", &decode_instructions,
        "Names of the instructions that this machine can decode with, the fastest first.");
  m.def("decode", &decode, nb::arg("encoding"), nb::arg("table"), nb::arg("rows").none(),
        nb::arg("out").noconvert(), nb::arg("places").noconvert().none() = nb::none(),
        nb::arg("num_threads") = 1, nb::arg("scale").noconvert().none() = nb::none(),
        nb::arg("zero").noconvert().none() = nb::none(), nb::arg("instructions") = nb::none(),
        R"(As `gather`, from rows that are stored in fewer bits to float32.

Args:
    encoding: 'bfloat16', 'float16', 'float8_e4m3fn' or 'int8'.
    table: the stored rows, of any dtype; only the bytes of a row count.
    rows, places, num_threads: as for `gather`.
    out: float32, what is filled.
    scale, zero: [values of a row] float32 of int8: the number is q * scale + zero.
    instructions: one of decode_instructions(); default: the first. All give the same bits.

Raises:
    IndexError: a row or place does not exist; out is then partly written.)");
}

}  // namespace khop::bindings
