#include "khop/cpu/update.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <utility>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

using State = std::optional<OutArray>;

cpu::Rule rule_of(const std::string& name) {
  if (name == "sgd") return cpu::Rule::kSgd;
  if (name == "adagrad") return cpu::Rule::kAdagrad;
  if (name == "rowwise_adagrad") return cpu::Rule::kRowwiseAdagrad;
  if (name == "adam") return cpu::Rule::kAdam;
  throw nb::value_error("rule must be 'sgd', 'adagrad', 'rowwise_adagrad' or 'adam'");
}

float* state_of(const State& state, bool is_needed, int64_t values, const char* name) {
  if (!is_needed) return nullptr;
  if (!state || !is_type<float>(*state) || static_cast<int64_t>(state->size()) != values) {
    throw nb::type_error((std::string(name) + " must have " + std::to_string(values) +
                          " float32 values for this rule and table")
                             .c_str());
  }
  return static_cast<float*>(state->data());
}

void update_rows(const OutArray& table, const In<int64_t>& rows,
                 const nb::ndarray<const float, nb::c_contig, nb::device::cpu>& gradients,
                 const std::string& rule, const State& first, const State& second, float rate,
                 float epsilon, float beta1, float beta2, float scale) {
  if (table.ndim() < 1) throw nb::value_error("table needs a row axis");
  const bool narrow = is_type<uint16_t>(table);
  if (!narrow && !is_type<float>(table)) throw nb::type_error("table must be float32 or bfloat16");
  const auto count = static_cast<int64_t>(rows.shape(0));
  const int64_t width = row_bytes_of(table) / (narrow ? 2 : 4);
  if (static_cast<int64_t>(gradients.size()) != count * width) {
    throw nb::value_error("there must be a gradient for each value of the rows");
  }
  const int64_t bad = cpu::first_outside(rows.data(), count, length(table));
  if (bad >= 0) {
    throw nb::index_error(("row " + std::to_string(rows.data()[bad]) + " is outside a table of " +
                           std::to_string(length(table)) + " rows")
                              .c_str());
  }
  const cpu::Rule how = rule_of(rule);
  const int64_t state_width = how == cpu::Rule::kRowwiseAdagrad ? 1 : width;
  const int64_t values = length(table) * state_width;
  float* const one = state_of(first, how != cpu::Rule::kSgd, values, "first");
  float* const two = state_of(second, how == cpu::Rule::kAdam, values, "second");
  const cpu::Rates rates{rate, epsilon, beta1, beta2, scale};
  const auto run = [&](auto* data) {
    using Value = std::remove_pointer_t<decltype(data)>;
    const ReleaseGil release(count * width * 4);
    cpu::update_rows(
        cpu::Updated<Value>{data, one, two, width, rows.data(), gradients.data(), count}, how,
        rates);
  };
  if (narrow) {
    run(static_cast<cpu::Bfloat16*>(table.data()));
  } else {
    run(static_cast<float*>(table.data()));
  }
}

auto add_rows(cpu::DistinctRows& self, const In<int64_t>& rows) {
  const auto count = static_cast<int64_t>(rows.shape(0));
  cpu::Buffer<int64_t> numbers;
  int64_t* const out = numbers.extend(count);
  {
    const ReleaseGil release(count * 8);
    self.add(rows.data(), count, out);
  }
  return to_numpy(std::move(numbers));
}

}  // namespace

void bind_update(nb::module_& m) {
  m.def("update_rows", &update_rows, nb::arg("table").noconvert(), nb::arg("rows").noconvert(),
        nb::arg("gradients").noconvert(), nb::arg("rule"), nb::arg("first").none().noconvert(),
        nb::arg("second").none().noconvert(), nb::arg("rate"), nb::arg("epsilon"), nb::arg("beta1"),
        nb::arg("beta2"), nb::arg("scale") = 1.0F,
        R"(Update rows by their gradients, with the formulas of torch.optim.

Args:
    table: [num_rows, ...] float32, or bfloat16 as uint16, changed in place.
    rows: [n] int64, each at most once.
    gradients: [n, ...] float32.
    rule: 'sgd', 'adagrad', 'rowwise_adagrad' or 'adam'.
    first: state, float32: sums of squares ('adagrad': like table; 'rowwise_adagrad': [num_rows]),
        or means of gradients ('adam', like table).
    second: state of 'adam', float32 like table: means of squared gradients.
    rate: learning rate with the corrections of this step.
    epsilon, beta1, beta2: constants of the rules.
    scale: factor of the gradients.

Raises:
    IndexError: a row does not exist; nothing is changed.)");

  nb::class_<cpu::DistinctRows>(m, "DistinctRows",
                                R"(Numbers of the rows of a step, by their first appearance.)")
      .def(nb::init<int64_t>(), nb::arg("num_rows"))
      .def("add", &add_rows, nb::arg("rows").noconvert(),
           "Return the number of each of [n] int64 rows. IndexError: a row does not exist.")
      .def(
          "rows",
          [](const cpu::DistinctRows& self) {
            cpu::Buffer<int64_t> rows;
            std::copy_n(self.rows(), self.size(), rows.extend(self.size()));
            return to_numpy(std::move(rows));
          },
          "Return the rows so far, by number: [m] int64.");
}

}  // namespace khop::bindings
