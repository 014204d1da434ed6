#include "khop/cpu/owner_split.hpp"

#include <nanobind/stl/vector.h>

#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

nb::tuple split(const In<int64_t>& ids, const std::vector<int64_t>& bounds) {
  if (bounds.size() < 2) throw nb::value_error("bounds must hold at least two entries");
  cpu::OwnerSplit out;
  {
    nb::gil_scoped_release release;
    cpu::split_by_owner(ids.data(), static_cast<int64_t>(ids.shape(0)), bounds, out);
  }
  return nb::make_tuple(to_numpy(std::move(out.owners)), to_numpy(std::move(out.ids)),
                        to_numpy(std::move(out.places)), nb::cast(out.offsets));
}

NumpyArray<int64_t> find_all(const cpu::IdIndex& index, const In<int64_t>& ids) {
  const auto count = static_cast<int64_t>(ids.shape(0));
  cpu::Buffer<int64_t> places(count);
  {
    nb::gil_scoped_release release;
    constexpr int64_t kAhead = 16;
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) index.prefetch(ids.data()[i + kAhead]);
      places[i] = index.find(ids.data()[i]);
    }
  }
  return to_numpy(std::move(places));
}

}  // namespace

void bind_owner_split(nb::module_& m) {
  m.def("split_by_owner", &split, nb::arg("ids").noconvert(), nb::arg("bounds"),
        "Groups ids by the part whose range holds them: (owner of each id, grouped ids, the place "
        "of each grouped id, group offsets).");
  nb::class_<cpu::IdIndex>(m, "IdIndex", "Finds the place of an id in a list of distinct ids.")
      .def(
          "__init__",
          [](cpu::IdIndex* self, const In<int64_t>& ids) {
            new (self) cpu::IdIndex(ids.data(), static_cast<int64_t>(ids.shape(0)));
          },
          nb::arg("ids").noconvert())
      .def("__len__", &cpu::IdIndex::size)
      .def("find", &find_all, nb::arg("ids").noconvert(),
           "Place of each id, -1 for ids not in the list.");
}

}  // namespace khop::bindings
