#include "khop/core/rng.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "khop/bindings/module.hpp"
#include "khop/core/pick.hpp"
#include "khop/cpu/shuffle.hpp"
#include "khop/cpu/simd.hpp"

namespace khop::bindings {
namespace {

NumpyArray<int64_t> permutation_of(int64_t count, uint64_t key) {
  if (count < 0) throw nb::value_error("count must not be negative");
  cpu::Buffer<int64_t> order(count);
  {
    nb::gil_scoped_release release;
    cpu::permutation(key, count, order.data());
  }
  return to_numpy(std::move(order));
}

NumpyArray<uint64_t> draw_words(uint64_t key, const In<int64_t>& ids,
                                const std::optional<In<int32_t>>& trees) {
  const auto count = static_cast<int64_t>(ids.shape(0));
  if (trees && static_cast<int64_t>(trees->shape(0)) != count) {
    throw nb::value_error(("there are " + std::to_string(count) + " ids, but " +
                           std::to_string(trees->shape(0)) + " trees")
                              .c_str());
  }
  const int64_t* const nodes = ids.data();
  cpu::Buffer<uint64_t> words(count);
  {
    nb::gil_scoped_release release;
    if (!trees) {
      cpu::draw_words(key, nodes, count, words.data());
    } else {
      for (int64_t i = 0; i < count; ++i) {
        const auto tree = static_cast<uint32_t>(trees->data()[i]);
        words[i] = first_64_bits(NodeDraws{key, static_cast<uint64_t>(nodes[i]), tree}.block(0));
      }
    }
  }
  return to_numpy(std::move(words));
}

nb::list simd_instructions() {
  nb::list names;
  for (const cpu::SimdPicker& picker : cpu::simd_pickers()) names.append(picker.instructions);
  return names;
}

const cpu::SimdPicker& picker_with(const std::string& instructions) {
  for (const cpu::SimdPicker& picker : cpu::simd_pickers()) {
    if (picker.instructions == instructions) return picker;
  }
  throw nb::value_error(("this machine has no instructions " + instructions).c_str());
}

NumpyArray<uint32_t> draw_simd(const std::string& instructions, uint64_t key,
                               const In<uint64_t>& nodes, const In<uint32_t>& trees,
                               const In<uint32_t>& degrees, int count, bool replace) {
  if (nodes.shape(0) != cpu::kLanes || trees.shape(0) != cpu::kLanes ||
      degrees.shape(0) != cpu::kLanes) {
    throw nb::value_error("there are 16 lanes");
  }
  if (count < 0 || count > kScanLimit) throw nb::value_error("lanes draw at most 48 positions");
  cpu::SimdRows rows;
  for (int lane = 0; lane < cpu::kLanes; ++lane) {
    rows.node_low[lane] = static_cast<uint32_t>(nodes.data()[lane]);
    rows.node_high[lane] = static_cast<uint32_t>(nodes.data()[lane] >> 32);
    rows.tree[lane] = trees.data()[lane];
    rows.degree[lane] = degrees.data()[lane];
    if (rows.degree[lane] > kWideDegree || (!replace && rows.degree[lane] <= uint32_t(count))) {
      throw nb::value_error("a lane's degree is too large or too small");
    }
  }
  cpu::Buffer<uint32_t> picks(int64_t{count} * cpu::kLanes);
  picker_with(instructions).pick(key, rows, count, replace, picks.data());
  return to_numpy(std::move(picks));
}

nb::tuple below_simd(const std::string& instructions, uint64_t key, uint32_t tree,
                     const In<uint64_t>& nodes, uint64_t limit, bool wide) {
  const auto count = static_cast<int64_t>(nodes.shape(0));
  cpu::Buffer<uint32_t> low(count + cpu::kLanes);
  cpu::Buffer<uint32_t> high(count + cpu::kLanes);
  for (int64_t i = 0; i < count + cpu::kLanes; ++i) {
    low[i] = i < count ? static_cast<uint32_t>(nodes.data()[i]) : 0;
    high[i] = i < count ? static_cast<uint32_t>(nodes.data()[i] >> 32) : 0;
  }
  cpu::Buffer<uint64_t> words(count + cpu::kLanes);
  cpu::Buffer<int64_t> places(count + cpu::kLanes);
  const cpu::SimdNodes given{low.data(), wide ? high.data() : nullptr, count};
  const int64_t found =
      picker_with(instructions).below(key, tree, given, limit, 100, words.data(), places.data());
  words.resize(found);
  places.resize(found);
  return nb::make_tuple(to_numpy(std::move(words)), to_numpy(std::move(places)));
}

uint64_t kth_simd(const std::string& instructions, const In<uint64_t>& words, int64_t k) {
  const auto count = static_cast<int64_t>(words.shape(0));
  if (k < 1 || k > count) throw nb::value_error("k is from 1 to the number of words");
  cpu::Buffer<uint64_t> padded(count + cpu::kLanes);
  std::copy_n(words.data(), count, padded.data());
  std::fill_n(padded.data() + count, cpu::kLanes, ~uint64_t{0});
  return picker_with(instructions).kth(padded.data(), count, k);
}

}  // namespace

void bind_rng(nb::module_& m) {
  m.def(
      "philox",
      [](uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
        const Philox4x32 out = philox(key, c0, c1, c2, c3);
        return std::make_tuple(out.word[0], out.word[1], out.word[2], out.word[3]);
      },
      nb::arg("key"), nb::arg("c0"), nb::arg("c1"), nb::arg("c2"), nb::arg("c3"),
      "Philox4x32-10: four 32-bit words.");
  m.def("run_key", &run_key, nb::arg("seed"), nb::arg("epoch"), nb::arg("stream"),
        "Key of one epoch of one trainer.");
  m.def("step_key", &step_key, nb::arg("run"), nb::arg("batch"), nb::arg("hop"),
        nb::arg("edge_type"), "Key of one hop over one edge type in one batch.");
  m.def("program_key", &program_key, nb::arg("run"), nb::arg("batch"), nb::arg("purpose"),
        nb::arg("step"), nb::arg("type"), "Key of what a sampling method in Python draws.");
  m.def("draw_words", &draw_words, nb::arg("key"), nb::arg("ids").noconvert(),
        nb::arg("trees").noconvert() = nb::none(),
        "A random uint64 for each int64 id, which depends on the key, the id and the int32 tree "
        "(None: 0) alone.");
  m.def("permutation", &permutation_of, nb::arg("count"), nb::arg("key"),
        "A permutation of 0 .. count - 1 that depends on the key alone.");
  m.def("simd_instructions", &simd_instructions,
        "What rows can be drawn with on this machine, sixteen at a time; the first is used.");
  m.def("draw_simd", &draw_simd, nb::arg("instructions"), nb::arg("key"),
        nb::arg("nodes").noconvert(), nb::arg("trees").noconvert(), nb::arg("degrees").noconvert(),
        nb::arg("count"), nb::arg("replace"),
        "[count * 16] positions, the i-th of row l at 16 * i + l; nodes uint64, others uint32.");
  m.def("below_simd", &below_simd, nb::arg("instructions"), nb::arg("key"), nb::arg("tree"),
        nb::arg("nodes").noconvert(), nb::arg("limit"), nb::arg("wide"),
        "Of uint64 nodes the words that are at most a limit, and 100 + the numbers of these nodes; "
        "wide: with the upper halves of ids.");
  m.def("kth_simd", &kth_simd, nb::arg("instructions"), nb::arg("words").noconvert(), nb::arg("k"),
        "The k-th smallest of uint64 words; 1: the least.");
  m.attr("SHUFFLE_HOP") = kShuffleHop;
}

}  // namespace khop::bindings
