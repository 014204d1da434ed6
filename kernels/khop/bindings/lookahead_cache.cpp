#include "khop/cpu/lookahead_cache.hpp"

#include <limits>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

nb::tuple take(cpu::LookaheadCache& cache, int64_t batch) {
  cpu::LookaheadCache::Taken out;
  {
    nb::gil_scoped_release release;
    cache.take(batch, out);
  }
  return nb::make_tuple(to_numpy(std::move(out.hit_positions)), to_numpy(std::move(out.hit_slots)),
                        to_numpy(std::move(out.misses)), to_numpy(std::move(out.positions)),
                        to_numpy(std::move(out.slots)), to_numpy(std::move(out.repeats)),
                        to_numpy(std::move(out.originals)));
}

}  // namespace

void bind_lookahead_cache(nb::module_& m) {
  nb::class_<cpu::LookaheadCache>(
      m, "LookaheadCache",
      "Plan of a cache of rows whose next batches are known: which rows, in which slots. For one "
      "thread at a time.")
      .def(nb::init<int64_t, int64_t>(), nb::arg("capacity"),
           nb::arg("num_rows") = std::numeric_limits<int64_t>::max(),
           "Plans a cache of `capacity` rows, of at most `num_rows` that exist.")
      .def(
          "announce",
          [](cpu::LookaheadCache& cache, const In<int64_t>& ids) {
            nb::gil_scoped_release release;
            return cache.announce(ids.data(), static_cast<int64_t>(ids.shape(0)));
          },
          nb::arg("ids").noconvert(), "Announces the ids of a later batch, and returns its number.")
      .def("take", &take, nb::arg("batch"),
           "Takes an announced batch: (positions of hits, their slots, ids of misses, their first "
           "positions, the slots to store them in or -1, further positions of misses, their first "
           "positions).")
      .def("forget", &cpu::LookaheadCache::forget, nb::arg("batch"),
           "Withdraws an announced batch.")
      .def(
          "discard",
          [](cpu::LookaheadCache& cache, const In<int64_t>& ids) {
            cache.discard(ids.data(), static_cast<int64_t>(ids.shape(0)));
          },
          nb::arg("ids").noconvert(), "Removes rows from the cache: they could not be stored.")
      .def("clear", &cpu::LookaheadCache::clear, "Forgets all rows and announced batches.")
      .def_prop_ro("capacity", &cpu::LookaheadCache::capacity, "Most rows in the cache.")
      .def_prop_ro("num_rows", &cpu::LookaheadCache::num_rows, "Rows in the cache.")
      .def_prop_ro("num_announced", &cpu::LookaheadCache::num_announced,
                   "Batches that are announced and not taken.")
      .def_prop_ro("nbytes", &cpu::LookaheadCache::nbytes, "Bytes of the plan, without rows.");
}

}  // namespace khop::bindings
