#include "khop/cpu/walk.hpp"

#include <algorithm>
#include <exception>
#include <thread>

#include "khop/cpu/biased_walk.hpp"
#include "khop/cpu/uniform_walk.hpp"

namespace khop::cpu {
namespace {

// Below this many steps a second thread costs more than it brings.
constexpr int64_t kStepsPerThread = int64_t{1} << 14;

void walk_some(const WalkPlan& plan, const WalkRecord& record, WaitingWalks& waiting) {
  if (plan.bias.is_biased()) {
    BiasedWalks(plan, record, waiting).run();
  } else {
    walk_uniformly(plan, record, waiting);
  }
}

}  // namespace

void random_walks(const WalkPlan& plan, const int64_t* starts, int64_t count,
                  const WalkRecord& record, int num_threads) {
  WaitingWalks waiting(starts, count);
  const int64_t wanted = count / std::max<int64_t>(kStepsPerThread / (plan.length() + 1), 1);
  const auto threads =
      static_cast<std::size_t>(std::clamp<int64_t>(wanted, 1, std::max(num_threads, 1)));
  std::vector<std::exception_ptr> errors(threads);
  const auto run = [&](std::size_t thread) {
    try {
      walk_some(plan, record, waiting);
    } catch (...) {
      errors[thread] = std::current_exception();
    }
  };
  std::vector<std::thread> workers;
  for (std::size_t t = 1; t < threads; ++t) workers.emplace_back(run, t);
  run(0);
  for (std::thread& worker : workers) worker.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace khop::cpu
