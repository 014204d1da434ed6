#include "khop/cpu/cache_model.hpp"

#include <nanobind/stl/pair.h>

#include "khop/bindings/module.hpp"

namespace khop::bindings {

void bind_cache_model(nb::module_& m) {
  nb::class_<cpu::CacheModel>(
      m, "CacheModel",
      "Misses that caches of other rules would have had, of the same number of rows. For one "
      "thread at a time.")
      .def(
          "__init__",
          [](cpu::CacheModel* self, int64_t capacity, int64_t most) {
            if (capacity < 0 || most < 1) {
              throw nb::value_error("capacity must not be negative, and most at least 1");
            }
            new (self) cpu::CacheModel(capacity, most);
          },
          nb::arg("capacity"), nb::arg("most") = int64_t{4096},
          "Models a cache of `capacity` rows exactly, or by a sample of about `most` rows.")
      .def(
          "ask",
          [](cpu::CacheModel& model, const In<int64_t>& ids) {
            nb::gil_scoped_release release;
            model.ask(ids.data(), static_cast<int64_t>(ids.shape(0)));
          },
          nb::arg("ids").noconvert(), "Counts the rows of a batch.")
      .def_prop_ro("factor", &cpu::CacheModel::factor, "Ids per sampled id. 1: counts are exact.")
      .def_prop_ro(
          "misses",
          [](const cpu::CacheModel& model) {
            return std::pair<int64_t, int64_t>(model.lru_misses(), model.sieve_misses());
          },
          "Misses of LRU and of SIEVE so far.");
}

}  // namespace khop::bindings
