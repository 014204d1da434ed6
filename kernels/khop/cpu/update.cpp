#include "khop/cpu/update.hpp"

#include <algorithm>
#include <cmath>

#include "khop/cpu/prefetch.hpp"

namespace khop::cpu {
namespace {

constexpr int64_t kAhead = 8;  // rows whose first lines are requested ahead

template <class Value, class Row>
void for_rows(const Updated<Value>& updated, int64_t state_width, Row row) {
  for (int64_t i = 0; i < updated.count; ++i) {
    if (i + kAhead < updated.count) {
      const int64_t next = updated.rows[i + kAhead];
      prefetch_line_to_write(updated.table + next * updated.width);
      if (updated.first) prefetch_line_to_write(updated.first + next * state_width);
      if (updated.second) prefetch_line_to_write(updated.second + next * state_width);
    }
    const int64_t at = updated.rows[i];
    row(updated.table + at * updated.width, at * state_width,
        updated.gradients + i * updated.width);
  }
}

template <class Value>
void subtract(Value& value, float change) {
  narrow(widened(value) - change, value);
}

}  // namespace

template <class Value>
void update_rows(const Updated<Value>& updated, Rule rule, const Rates& rates) {
  const int64_t width = updated.width;
  switch (rule) {
    case Rule::kSgd:
      return for_rows(updated, 0, [&](Value* row, int64_t, const float* gradient) {
        for (int64_t j = 0; j < width; ++j)
          subtract(row[j], rates.rate * (rates.scale * gradient[j]));
      });
    case Rule::kAdagrad:
      return for_rows(updated, width, [&](Value* row, int64_t state, const float* gradient) {
        float* sums = updated.first + state;
        for (int64_t j = 0; j < width; ++j) {
          const float scaled = rates.scale * gradient[j];
          sums[j] += scaled * scaled;
          subtract(row[j], rates.rate * (scaled / (std::sqrt(sums[j]) + rates.epsilon)));
        }
      });
    case Rule::kRowwiseAdagrad:
      return for_rows(updated, 1, [&](Value* row, int64_t state, const float* gradient) {
        float squares = 0;
        for (int64_t j = 0; j < width; ++j) {
          const float scaled = rates.scale * gradient[j];
          squares += scaled * scaled;
        }
        float& sum = updated.first[state];
        if (width > 0) sum += squares / static_cast<float>(width);
        const float rate = rates.rate / (std::sqrt(sum) + rates.epsilon);
        for (int64_t j = 0; j < width; ++j) subtract(row[j], rate * (rates.scale * gradient[j]));
      });
    case Rule::kAdam:
      return for_rows(updated, width, [&](Value* row, int64_t state, const float* gradient) {
        float* means = updated.first + state;
        float* squares = updated.second + state;
        for (int64_t j = 0; j < width; ++j) {
          const float scaled = rates.scale * gradient[j];
          means[j] += (scaled - means[j]) * (1 - rates.beta1);
          squares[j] += (scaled * scaled - squares[j]) * (1 - rates.beta2);
          subtract(row[j], rates.rate * (means[j] / (std::sqrt(squares[j]) + rates.epsilon)));
        }
      });
  }
}

void DistinctRows::add(const int64_t* rows, int64_t count, int64_t* numbers) {
  set_.check_ids(rows, count);
  set_.insert(rows, count, numbers_.extend(count));
  std::copy_n(numbers_.data(), count, numbers);
  numbers_.clear();
}

template void update_rows<float>(const Updated<float>&, Rule, const Rates&);
template void update_rows<Bfloat16>(const Updated<Bfloat16>&, Rule, const Rates&);

}  // namespace khop::cpu
