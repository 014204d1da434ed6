// Exchange between host and device for a batch: one block of words, up before it and, in part, down
// after it. On the host it lies in page-locked memory: copies are made by the device, in the order
// of its work, and only a read of the result waits for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "khop/core/sizes.hpp"
#include "khop/device/errors.hpp"
#include "khop/device/sample_plan.hpp"
#include "khop/device/steps/batch_view.hpp"
#include "khop/device/steps/memory.hpp"
#include "khop/device/steps/write_ahead.hpp"
#include "khop/device/steps/write_padded.hpp"

namespace khop::device {

// How many entries the parts of the block have.
struct HeadSizes {
  int64_t types = 0;
  int64_t relations = 0;
  int64_t hops = 0;
  int64_t times = 0;
  int64_t seeds = 0;
  int64_t others = 0;   // words about edges that are excluded
  int64_t links = 0;    // words about links, of which the device makes seeds
  bool writes = false;  // the batch is written when it is drawn
  bool pads = false;    // with padding

  bool operator==(const HeadSizes& other) const {
    return types == other.types && relations == other.relations && hops == other.hops &&
           times == other.times && seeds == other.seeds && others == other.others &&
           links == other.links && writes == other.writes && pads == other.pads;
  }
};

// Those that a plan says, with so many seeds of each type.
inline HeadSizes sizes_of(const SamplePlan& plan, const std::vector<int64_t>& seeds) {
  HeadSizes sizes;
  sizes.types = static_cast<int64_t>(seeds.size());
  sizes.relations = static_cast<int64_t>(plan.graphs.size());
  sizes.hops = static_cast<int64_t>(plan.num_hops());
  sizes.seeds = std::accumulate(seeds.begin(), seeds.end(), int64_t{0});
  sizes.writes = plan.block.words != nullptr && sizes.hops > 0;
  sizes.pads = sizes.writes && plan.block.padding.is_there();
  return sizes;
}

// A part of the block, on the host and on the device.
template <class T>
struct Part {
  T* host;
  T* device;
};

// The block on the host. Batches that nobody waits for take slots in turn.
template <class Backend>
struct HeadSlot {
  explicit HeadSlot(Backend& backend) : arrived(backend) {}

  int64_t* words = nullptr;
  int64_t capacity = 0;
  typename Backend::Mark arrived;  // when the host has what it asks for
  bool is_under_way = false;       // launched, at least in part, and not been waited for
  bool is_marked = false;          // all of it was launched
  bool is_unchecked = false;       // the batch was used before it was known whether it is sound
  uint64_t batch = 0;
  const DeviceError* error = nullptr;
  const Needs* needs = nullptr;
};

template <class Backend>
class BatchHead {
 public:
  using Slot = HeadSlot<Backend>;
  static constexpr std::size_t kSlots = 4;

  explicit BatchHead(Backend& backend) : backend_(backend), words_(backend) {
    for (std::size_t i = 0; i < kSlots; ++i) slots_.push_back(std::make_unique<Slot>(backend));
  }
  BatchHead(const BatchHead&) = delete;
  BatchHead& operator=(const BatchHead&) = delete;
  ~BatchHead() {
    for (auto& slot : slots_) release(*slot);
  }

  Slot& slot() { return *slots_[slot_]; }
  // Whether any slot's batch is.
  bool is_under_way() const {
    return std::any_of(slots_.begin(), slots_.end(), [](auto& s) { return s->is_under_way; });
  }
  // Takes the next slot or, as a recording needs it, always the first.
  Slot& next_slot(bool in_turn) {
    slot_ = in_turn ? (slot_ + 1) % kSlots : 0;
    return slot();
  }

  // Waits for what was launched of a slot's batch.
  void wait_for(Slot& slot) {
    if (slot.is_marked) {
      backend_.wait(slot.arrived);
    } else {
      backend_.synchronize();
    }
    slot.is_under_way = false;
  }
  // Throws where a batch that was left unchecked is not sound.
  void check(Slot& slot) {
    slot.is_unchecked = false;
    if (slot.is_under_way) wait_for(slot);
    check_error(*slot.error);
    if (slot.needs->exceeded == 0 && slot.needs->unfit == 0) return;
    throw std::invalid_argument(
        "batch " + std::to_string(slot.batch) +
        " has more nodes or edges than pad's sizes, and has been delivered as padding alone: pass "
        "larger sizes, or pad='auto'");
  }
  void check_all() {
    for (const auto& slot : slots_) {
      if (slot->is_unchecked) check(*slot);
    }
  }

  // Lays the block out anew, with zeros. Returns whether it has moved, on the host or on the
  // device. What was uploaded before from this slot must have arrived.
  bool lay_out(const HeadSizes& sizes) {
    sizes_ = sizes;
    const int64_t num_cleared = place_parts(nullptr, nullptr);
    const bool moved = reserve(at_);
    place_parts(slot().words, words_.data());
    slot().error = error.host;
    slot().needs = needs.host;
    std::memset(slot().words, 0, static_cast<std::size_t>(num_cleared) * sizeof(int64_t));
    return moved;
  }

  const HeadSizes& sizes() const { return sizes_; }
  void upload() {
    backend_.upload_pinned(words_.data(), slot().words, bytes_of(num_uploaded_, kWord));
  }
  void download() {
    backend_.download_pinned(slot().words, words_.data(), bytes_of(num_returned_, kWord));
  }

  // What was drawn, after a download.
  BatchShape shape() const {
    BatchShape shape;
    for (int64_t t = 0; t < sizes_.types; ++t) {
      shape.num_nodes.push_back(states.host[t].nodes);
      auto& hops = shape.nodes_per_hop.emplace_back();
      hops.push_back(states.host[t].nodes);
      for (int64_t h = 0; h < sizes_.hops; ++h) {
        hops.push_back(hop_sizes.host[h * sizes_.types + t]);
        hops[0] -= hops.back();  // the seeds are what no hop added
      }
    }
    for (int64_t r = 0; r < sizes_.relations; ++r) {
      auto& hops = shape.edges_per_hop.emplace_back();
      for (int64_t h = 0; h < sizes_.hops; ++h) {
        hops.push_back(records.host[h * sizes_.relations + r].num_edges);
      }
      shape.num_edges.push_back(std::accumulate(hops.begin(), hops.end(), int64_t{0}));
    }
    return shape;
  }

  Part<TypeState> states{};
  Part<DeviceError> error{};
  Part<Needs> needs{};
  Part<int64_t> hop_sizes{};  // a hop each, of these a node type each
  Part<HopRecord> records{};  // a hop each, of these an edge type each
  Part<int64_t> scratch_used{};
  Part<int64_t> zero{};
  Part<SampleBuffer> buffers{};
  Part<RelationView> relations{};
  Part<HopStep> steps{};
  Part<int64_t> row_starts{};
  Part<int64_t> pick_starts{};
  Part<int64_t> seed_starts{};
  Part<BlockTarget> target{};
  Part<EdgeTarget> edge_targets{};
  Part<PadSection> sections{};
  Part<PadPart> pad_parts{};
  Part<int64_t> times{};
  Part<int64_t> seeds{};
  Part<int64_t> others{};
  Part<int64_t> links{};
  // The device's own, as are times and seeds that are made of links.
  Part<BlockPart> parts{};  // node types, then edge types
  Part<Piece> pieces{};     // a node type each, then of each edge type a hop each

 private:
  // Sets where the parts lie; returns how many words have to be cleared. Without memory it counts.
  int64_t place_parts(int64_t* host, int64_t* device) {
    at_ = 0;
    const auto place = [&](auto& part, int64_t count) {
      using T = std::remove_pointer_t<decltype(part.host)>;
      static_assert(sizeof(T) % sizeof(int64_t) == 0);
      if (host != nullptr) {
        part = {reinterpret_cast<T*>(host + at_), reinterpret_cast<T*>(device + at_)};
      }
      at_ += count * static_cast<int64_t>(sizeof(T) / sizeof(int64_t));
    };
    place(states, sizes_.types);
    place(error, 1);
    place(needs, 1);
    place(hop_sizes, sizes_.hops * sizes_.types);
    place(records, sizes_.hops * sizes_.relations);
    num_returned_ = at_;
    place(scratch_used, 1);
    place(zero, 1);
    place(buffers, sizes_.types);
    place(relations, sizes_.relations);
    place(steps, sizes_.hops * sizes_.relations);
    place(row_starts, sizes_.relations + 1);
    place(pick_starts, sizes_.relations + 1);
    place(seed_starts, sizes_.types + 1);
    place(target, sizes_.writes ? 1 : 0);
    place(edge_targets, sizes_.writes ? sizes_.relations : 0);
    const int64_t kinds = sizes_.types + sizes_.relations;
    place(sections, sizes_.pads ? kinds * sizes_.hops + sizes_.types : 0);
    place(pad_parts, sizes_.pads ? kinds : 0);
    const int64_t num_cleared = at_;
    place(others, sizes_.others);
    place(links, sizes_.links);
    num_uploaded_ = at_;
    place(times, sizes_.times);
    place(seeds, sizes_.seeds);
    if (sizes_.links == 0) num_uploaded_ = at_;
    const bool plans = sizes_.writes && !sizes_.pads;
    place(parts, plans ? kinds : 0);
    place(pieces, plans ? sizes_.types + sizes_.relations * sizes_.hops : 0);
    return num_cleared;
  }

  bool reserve(int64_t count) {
    Slot& here = slot();
    const bool grows = count > here.capacity;
    if (grows) {
      release(here);
      here.words = static_cast<int64_t*>(backend_.allocate_host(bytes_of(count, kWord)));
      here.capacity = count;
    }
    // Recordings have no copies of padded batches.
    return words_.reserve(count) || (grows && !sizes_.pads);
  }

  void release(Slot& slot) {
    if (slot.words != nullptr) backend_.release_host(slot.words);
    slot.words = nullptr;
    slot.capacity = 0;
  }

  static constexpr std::size_t kWord = sizeof(int64_t);

  Backend& backend_;
  DeviceArray<Backend, int64_t> words_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::size_t slot_ = 0;
  int64_t at_ = 0;
  int64_t num_returned_ = 0;
  int64_t num_uploaded_ = 0;
  HeadSizes sizes_;
};

}  // namespace khop::device
