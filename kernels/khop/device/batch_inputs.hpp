// What a batch is drawn for: its seeds or links, and the edges that it leaves out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "khop/device/batch_head.hpp"
#include "khop/device/bounds.hpp"
#include "khop/device/exclude.hpp"
#include "khop/device/links.hpp"
#include "khop/device/sample_plan.hpp"
#include "khop/device/sample_steps.hpp"
#include "khop/device/type_memory.hpp"

namespace khop::device {

template <class Backend>
class BatchInputs {
 public:
  // types: of the batch; they outlive this.
  BatchInputs(Backend& backend, std::vector<TypeMemory<Backend>>& types, std::size_t num_relations,
              bool disjoint)
      : backend_(backend), types_(types), disjoint_(disjoint), links_(backend) {
    for (std::size_t r = 0; r < num_relations; ++r) excluded_.emplace_back(backend);
  }

  void clear() {
    for (auto& type : types_) type.seeds.clear();
    for (auto& excluded : excluded_) excluded.clear();
    links_.clear();
    tree_times_.clear();
    num_trees_ = 0;
    is_timed_ = false;
  }

  void add_seeds(int32_t node_type, const int64_t* ids, const int64_t* times, int64_t count) {
    TypeMemory<Backend>& type = types_[index(node_type)];
    type.check_ids(ids, count);
    if (!disjoint_ && times != nullptr) {
      throw std::invalid_argument("seeds with times need a disjoint batch");
    }
    if (disjoint_) {
      if (num_trees_ > 0 && count > 0 && (times != nullptr) != is_timed_) {
        throw std::invalid_argument("either all seeds of a batch have times, or none");
      }
      check_trees(num_trees_ + count);
    }
    if (count > 0) is_timed_ = times != nullptr;
    if (times != nullptr) tree_times_.insert(tree_times_.end(), times, times + count);
    for (int64_t i = 0; i < count; ++i) {
      type.seeds.push_back(type.key(disjoint_ ? num_trees_ + i : 0, ids[i]));
    }
    if (disjoint_) num_trees_ += count;
  }

  // In place of seeds.
  void add_links(const LinkBatch& links) {
    const int64_t* const columns[] = {links.src, links.dst};
    for (int side = 0; side < 2; ++side) {
      types_[index(links.plan.ends[side].type)].check_ids(columns[side], links.num_links);
    }
    if (!disjoint_ && links.times != nullptr) {
      throw std::invalid_argument("links with times need a disjoint batch");
    }
    links_.take(links, disjoint_);
    for (const LinkPlan::Exclusion& exclusion : links.plan.excluded) {
      excluded_[index(exclusion.relation)].take_links(links.num_links, exclusion.rows_are_sources);
    }
    if (disjoint_) check_trees(num_trees_ = links_.num_ends());
    is_timed_ = links_.is_timed();
  }

  void exclude(int32_t relation, const int64_t* rows, const int64_t* neighbors, int64_t count) {
    if (!links_.empty()) throw std::invalid_argument("links name the edges that they exclude");
    excluded_[index(relation)].add(rows, neighbors, count);
  }

  bool is_timed() const { return is_timed_; }
  bool has_links() const { return !links_.empty(); }
  bool has_exclusions() const {
    return std::any_of(excluded_.begin(), excluded_.end(), [](auto& e) { return !e.empty(); });
  }
  // Of each edge type, whether edges are left out.
  std::vector<bool> excludes() const {
    std::vector<bool> are_there;
    for (const auto& excluded : excluded_) are_there.push_back(!excluded.empty());
    return are_there;
  }
  const std::vector<ExcludedEdges<Backend>>& excluded() const { return excluded_; }

  // Whether the batch may have to be drawn again for them.
  bool is_uncertain() const {
    return links_.is_strict() || std::any_of(excluded_.begin(), excluded_.end(),
                                             [](auto& e) { return !e.empty() && !e.is_certain(); });
  }
  // Returns whether there are more rounds to draw strict negatives in.
  bool draw_more_rounds() { return links_.draw_more_rounds(); }

  // Seeds of a type, or where links say only that, at most.
  int64_t num_seeds(std::size_t t) const {
    return static_cast<int64_t>(types_[t].seeds.size()) + links_.most_seeds(t);
  }

  // Lays out what is uploaded of them, and makes room to find the edges to leave out.
  void lay_out(const std::vector<GraphArrays>& graphs, const Room& learned, HeadSizes& sizes) {
    sizes.times = is_timed_ ? sizes.seeds : 0;
    if (!links_.empty()) sizes.links = static_cast<int64_t>(links_.words().size());
    for (std::size_t r = 0; r < excluded_.size(); ++r) {
      if (excluded_[r].empty()) continue;
      sizes.others += static_cast<int64_t>(excluded_[r].lay_out(graphs[r].view()).size());
      excluded_[r].reserve(graphs[r].max_degree, learned);
    }
  }

  void write(BatchHead<Backend>& head) {
    int64_t at = 0;
    for (std::size_t t = 0; t < types_.size(); ++t) {
      const std::vector<int64_t>& seeds = types_[t].seeds;
      // The device counts distinct ends of links.
      const int64_t count = links_.empty() || disjoint_ ? num_seeds(t) : 0;
      head.states.host[t] = {count, count, 0, count, count, types_[t].take_stamp(), 0};
      std::copy(seeds.begin(), seeds.end(), head.seeds.host + at);
      head.seed_starts.host[t + 1] = at += count;
    }
    std::copy(tree_times_.begin(), tree_times_.end(), head.times.host);
    int64_t* words = head.others.host;
    for (const auto& excluded : excluded_) {
      if (!excluded.empty()) {
        words = std::copy(excluded.words().begin(), excluded.words().end(), words);
      }
    }
    if (!links_.empty()) {
      std::copy(links_.words().begin(), links_.words().end(), head.links.host);
    }
  }

  // Launches what makes seeds of links.
  void make_seeds(const SamplePlan& plan, const BatchHead<Backend>& head,
                  const BatchSteps<Backend>& steps) {
    if (!links_.empty()) {
      links_.launch(plan, head.links.device, head, steps.device_view(), steps.first_rows());
    }
  }

  // Launches what finds the edges to leave out.
  void find_excluded(const SamplePlan& plan, const BatchHead<Backend>& head) {
    const int64_t* words = head.others.device;
    for (std::size_t r = 0; r < excluded_.size(); ++r) {
      if (excluded_[r].empty()) continue;
      if (!links_.empty()) {
        excluded_[r].find_links(backend_, plan.graphs[r].view(),
                                links_.columns(head.links.device).data(), links_.num_nodes().data(),
                                head.error.device, head.needs.device);
        continue;
      }
      excluded_[r].find(backend_, plan.graphs[r].view(), words, head.error.device,
                        head.needs.device);
      words += excluded_[r].words().size();
    }
  }

 private:
  static std::size_t index(int32_t i) { return static_cast<std::size_t>(i); }

  void check_trees(int64_t num_trees) const {
    if (num_trees > std::numeric_limits<int32_t>::max()) {
      throw std::length_error("a disjoint batch may hold at most 2^31 - 1 seeds");
    }
    for (const auto& type : types_) {
      if (num_trees <= type.max_trees()) continue;
      throw std::length_error("a disjoint batch of " + std::to_string(num_trees) +
                              " seeds is too large for this graph; use smaller batches");
    }
  }

  Backend& backend_;
  std::vector<TypeMemory<Backend>>& types_;
  bool disjoint_;
  std::vector<ExcludedEdges<Backend>> excluded_;
  LinkSeeds<Backend> links_;
  std::vector<int64_t> tree_times_;
  int64_t num_trees_ = 0;
  bool is_timed_ = false;
};

}  // namespace khop::device
