#include "khop/cpu/convert.hpp"

#include <algorithm>
#include <limits>

#include "khop/bindings/convert_errors.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

using Map = std::optional<In<int64_t>>;

template <class Id>
IdColumn<Id> column(const InArray& ids, const Map& map, int64_t num_ids) {
  return {static_cast<const Id*>(ids.data()), map ? map->data() : nullptr,
          map ? static_cast<int64_t>(map->shape(0)) : num_ids};
}

// Rows are written where a map says: its values must be rows.
void check_map(const Map& map, int64_t limit, const char* name) {
  if (!map) return;
  for (std::size_t i = 0; i < map->shape(0); ++i) {
    const int64_t to = map->data()[i];
    if (to < 0 || to >= limit) {
      throw_bad_map(name, static_cast<int64_t>(i), to, limit);
    }
  }
}

template <class Ptr, class Col, class EdgeId, class Id>
nb::tuple to_csr_typed(const IdColumn<Id>& keys, const IdColumn<Id>& neighbors, int64_t num_edges,
                       int64_t num_rows, bool with_edge_ids) {
  cpu::Buffer<Ptr> indptr(count_with(num_rows, 1));
  cpu::Buffer<Col> indices(num_edges);
  cpu::Buffer<EdgeId> edge_ids(with_edge_ids ? num_edges : 0);
  int64_t bad;
  {
    nb::gil_scoped_release release;
    std::fill_n(indptr.data(), num_rows + 1, Ptr{0});
    bad = cpu::count_rows(keys, neighbors, num_edges, indptr.data(), num_rows);
    if (bad < 0) {
      cpu::fill_rows(keys, neighbors, num_edges, indptr.data(), num_rows, indices.data(),
                     with_edge_ids ? edge_ids.data() : static_cast<EdgeId*>(nullptr));
    }
  }
  if (bad >= 0) {
    throw_bad_edge(bad, static_cast<int64_t>(keys.ids[bad]),
                   static_cast<int64_t>(neighbors.ids[bad]), keys.num_ids, neighbors.num_ids);
  }
  nb::object ids = nb::none();
  if (with_edge_ids) ids = nb::cast(to_numpy(std::move(edge_ids)));
  return nb::make_tuple(to_numpy(std::move(indptr)), to_numpy(std::move(indices)), ids);
}

// Integers take the narrowest type that fits: offsets and edge ids by the number of edges, columns
// by the number of nodes.
template <class Id>
nb::tuple to_csr(const IdColumn<Id>& keys, const IdColumn<Id>& neighbors, int64_t num_edges,
                 int64_t num_rows, bool with_edge_ids) {
  constexpr int64_t kNarrow = std::numeric_limits<int32_t>::max();
  const bool wide_edges = num_edges > kNarrow;
  const bool wide_nodes = neighbors.num_ids > kNarrow;
  if (wide_edges && wide_nodes) {
    return to_csr_typed<int64_t, int64_t, int64_t>(keys, neighbors, num_edges, num_rows,
                                                   with_edge_ids);
  }
  if (wide_edges) {
    return to_csr_typed<int64_t, int32_t, int64_t>(keys, neighbors, num_edges, num_rows,
                                                   with_edge_ids);
  }
  if (wide_nodes) {
    return to_csr_typed<int32_t, int64_t, int32_t>(keys, neighbors, num_edges, num_rows,
                                                   with_edge_ids);
  }
  return to_csr_typed<int32_t, int32_t, int32_t>(keys, neighbors, num_edges, num_rows,
                                                 with_edge_ids);
}

nb::tuple coo_to_csr(const InArray& keys, const InArray& neighbors, int64_t num_rows,
                     int64_t num_neighbors, const Map& key_map, const Map& neighbor_map,
                     bool with_edge_ids) {
  if (num_rows < 0 || num_neighbors < 0) {
    throw nb::value_error("num_rows and num_neighbors must not be negative");
  }
  check_map(key_map, num_rows, "key_map");
  check_map(neighbor_map, num_neighbors, "neighbor_map");
  if (keys.dtype() != neighbors.dtype()) {
    throw nb::type_error("keys and neighbors must have the same dtype");
  }
  return visit_ints(keys, "keys", [&](auto* data) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    if (neighbors.ndim() != 1 || length(keys) != length(neighbors)) {
      throw nb::value_error("keys and neighbors must have the same length");
    }
    return to_csr(column<Id>(keys, key_map, num_rows),
                  column<Id>(neighbors, neighbor_map, num_neighbors), length(keys), num_rows,
                  with_edge_ids);
  });
}

}  // namespace

void bind_convert(nb::module_& m) {
  m.def("coo_to_csr", &coo_to_csr, nb::arg("keys"), nb::arg("neighbors"), nb::arg("num_rows"),
        nb::arg("num_neighbors"), nb::arg("key_map").noconvert().none() = nb::none(),
        nb::arg("neighbor_map").noconvert().none() = nb::none(), nb::arg("with_edge_ids") = true,
        R"(Edge list to compressed rows, by a stable counting sort: time and memory are linear.

Args:
    keys, neighbors: [num_edges] int32 or int64; edge e lies in row keys[e].
    num_rows, num_neighbors: numbers of nodes on either side.
    key_map, neighbor_map: int64 permutations applied to the ids on the fly.
    with_edge_ids: also return each entry's position in the edge list.

Returns:
    (indptr, indices, edge_ids or None), each in the narrowest of int32 and int64 that fits.

Raises:
    IndexError: an id is out of range (names the first such edge), or what a map says.)");
}

}  // namespace khop::bindings
