#include "khop/cpu/edge_split.hpp"

#include "khop/bindings/checks.hpp"
#include "khop/bindings/convert_errors.hpp"
#include "khop/bindings/module.hpp"

namespace khop::bindings {
namespace {

using Bounds = In<int64_t>;

void check_bounds(const Bounds& bounds) {
  if (bounds.shape(0) < 2) throw nb::value_error("bounds must hold at least two entries");
  int64_t last = 0;
  for (std::size_t b = 0; b < bounds.shape(0); ++b) {
    if (bounds.data()[b] < last || (b == 0 && bounds.data()[0] != 0)) {
      throw nb::value_error("bounds must ascend from 0");
    }
    last = bounds.data()[b];
  }
}

// Calls f with keys and neighbours of their types; maps name rows below `num_rows`.
template <class F>
decltype(auto) visit_ends(const InArray& keys, const InArray& neighbors, const InArray& key_map,
                          const InArray& neighbor_map, F&& f) {
  if (keys.dtype() != neighbors.dtype()) {
    throw nb::type_error("keys and neighbors must have the same dtype");
  }
  return visit_ints(keys, "keys", [&](auto* key_ids) {
    using Id = std::remove_const_t<std::remove_pointer_t<decltype(key_ids)>>;
    if (neighbors.ndim() != 1 || length(keys) != length(neighbors)) {
      throw nb::value_error("keys and neighbors must have the same length");
    }
    const auto* neighbor_ids = static_cast<const Id*>(neighbors.data());
    return visit_ints(key_map, "key_map", [&](auto* key_to) {
      return visit_ints(neighbor_map, "neighbor_map", [&](auto* neighbor_to) {
        using KeyMap = std::remove_const_t<std::remove_pointer_t<decltype(key_to)>>;
        using NeighborMap = std::remove_const_t<std::remove_pointer_t<decltype(neighbor_to)>>;
        return f(cpu::MappedIds<Id, KeyMap>{key_ids, key_to, length(key_map)},
                 cpu::MappedIds<Id, NeighborMap>{neighbor_ids, neighbor_to, length(neighbor_map)});
      });
    });
  });
}

// A row that a map names must be one: it is where the kernels write.
template <class Map>
void check_map(const Map* map, int64_t size, int64_t limit) {
  for (int64_t id = 0; id < size; ++id) {
    if (map[id] < 0 || map[id] >= limit) throw_bad_map("key_map", id, map[id], limit);
  }
}

template <class Keys, class Neighbors>
[[noreturn]] void throw_edge(int64_t bad, int64_t first, const Keys& keys,
                             const Neighbors& neighbors) {
  throw_bad_edge(first + bad, static_cast<int64_t>(keys.ids[bad]),
                 static_cast<int64_t>(neighbors.ids[bad]), keys.num_ids, neighbors.num_ids);
}

// The map of new ids, checked once for all pieces of an edge list.
class RowSplit {
 public:
  RowSplit(InArray key_map, InArray neighbor_map, int64_t num_rows)
      : key_map_(std::move(key_map)), neighbor_map_(std::move(neighbor_map)), num_rows_(num_rows) {
    visit_ints(key_map_, "key_map",
               [&](auto* map) { check_map(map, length(key_map_), num_rows_); });
    visit_ints(neighbor_map_, "neighbor_map", [](auto*) {});
  }

  void count(const InArray& keys, const InArray& neighbors, int64_t first,
             const OutArray& counts) const {
    check_length(length(counts), num_rows_, "counts");
    check_first(first, length(keys), "first");
    visit_ends(keys, neighbors, key_map_, neighbor_map_, [&](const auto& k, const auto& n) {
      visit_ints(counts, "counts", [&](auto* into) {
        int64_t bad;
        {
          nb::gil_scoped_release release;
          using Count = std::remove_const_t<std::remove_pointer_t<decltype(into)>>;
          bad = cpu::count_edges(k, n, length(keys), const_cast<Count*>(into));
        }
        if (bad >= 0) throw_edge(bad, first, k, n);
      });
    });
  }

  NumpyArray<int64_t> split(const InArray& keys, const InArray& neighbors, int64_t first,
                            const Bounds& bounds, const OutArray& rows, const OutArray& columns,
                            const OutArray& edge_ids) const {
    check(bounds);
    check_first(first, length(keys), "first");
    for (const OutArray* out : {&rows, &columns, &edge_ids}) {
      check_length(length(*out), length(keys), "what is written to");
    }
    if (rows.dtype() != columns.dtype()) throw nb::type_error("rows and columns differ in dtype");
    cpu::Buffer<int64_t> counts(static_cast<int64_t>(bounds.shape(0)) - 1);
    std::fill_n(counts.data(), counts.size(), int64_t{0});
    visit_ends(keys, neighbors, key_map_, neighbor_map_, [&](const auto& k, const auto& n) {
      visit_ints(rows, "rows", [&](auto* of_rows) {
        visit_ints(edge_ids, "edge_ids", [&](auto* of_ids) {
          using Row = std::remove_const_t<std::remove_pointer_t<decltype(k.map)>>;
          using Col = std::remove_const_t<std::remove_pointer_t<decltype(of_rows)>>;
          using EdgeId = std::remove_const_t<std::remove_pointer_t<decltype(of_ids)>>;
          int64_t bad;
          {
            nb::gil_scoped_release release;
            const cpu::BlockFinder blocks(bounds.data(), counts.size());
            cpu::Buffer<std::remove_const_t<Row>> found(length(keys));
            bad = cpu::find_rows(k, n, length(keys), blocks, found.data(), counts.data());
            if (bad < 0) {
              std::vector<int64_t> places(static_cast<std::size_t>(counts.size()));
              int64_t place = 0;
              for (int64_t b = 0; b < counts.size(); place += counts[b++]) {
                places[static_cast<std::size_t>(b)] = place;
              }
              cpu::split_edges(found.data(), n, length(keys), first, blocks, places.data(),
                               static_cast<Col*>(rows.data()), static_cast<Col*>(columns.data()),
                               static_cast<EdgeId*>(edge_ids.data()));
            }
          }
          if (bad >= 0) throw_edge(bad, first, k, n);
        });
      });
    });
    return to_numpy(std::move(counts));
  }

 private:
  void check(const Bounds& bounds) const {
    check_bounds(bounds);
    check_length(bounds.data()[bounds.shape(0) - 1], num_rows_, "the blocks of bounds");
  }

  InArray key_map_;
  InArray neighbor_map_;
  int64_t num_rows_;
};

nb::tuple number_by_owner(const In<int32_t>& owners, int64_t num_parts) {
  const auto count = static_cast<int64_t>(owners.shape(0));
  if (num_parts < 1) throw nb::value_error("num_parts must be at least 1");
  cpu::Buffer<int64_t> bounds(count_with(num_parts, 1));
  std::fill_n(bounds.data(), bounds.size(), int64_t{0});
  for (int64_t v = 0; v < count; ++v) {
    const int32_t owner = owners.data()[v];
    if (owner < 0 || owner >= num_parts) throw nb::index_error("an owner is no part");
    ++bounds[owner + 1];
  }
  for (int64_t p = 0; p < num_parts; ++p) bounds[p + 1] += bounds[p];
  const auto number = [&](auto id) {
    using Id = decltype(id);
    cpu::Buffer<Id> old_of_new(count);
    cpu::Buffer<Id> new_of_old(count);
    {
      nb::gil_scoped_release release;
      std::vector<int64_t> places(bounds.data(), bounds.data() + num_parts);
      cpu::number_by_owner(owners.data(), count, places.data(), old_of_new.data(),
                           new_of_old.data());
    }
    return nb::make_tuple(to_numpy(std::move(bounds)), to_numpy(std::move(old_of_new)),
                          to_numpy(std::move(new_of_old)));
  };
  return count > std::numeric_limits<int32_t>::max() ? number(int64_t{0}) : number(int32_t{0});
}

}  // namespace

void bind_edge_split(nb::module_& m) {
  nb::class_<RowSplit>(m, "RowSplit",
                       R"(Split of an edge list, given piece by piece, by blocks of rows.

Args:
    key_map, neighbor_map: int32 or int64, new id of each node on either side.
    num_rows: number of rows; key_map has values below it.)")
      .def(nb::init<InArray, InArray, int64_t>(), nb::arg("key_map"), nb::arg("neighbor_map"),
           nb::arg("num_rows"))
      .def(
          "count", &RowSplit::count, nb::arg("keys"), nb::arg("neighbors"), nb::arg("first"),
          nb::arg("counts").noconvert(),
          "Adds to counts, int32 or int64 [num_rows], the edges of each row. `first` is the number "
          "of the first edge, for errors. Raises IndexError for an id that no node has.")
      .def("split", &RowSplit::split, nb::arg("keys"), nb::arg("neighbors"), nb::arg("first"),
           nb::arg("bounds").noconvert(), nb::arg("rows").noconvert(),
           nb::arg("columns").noconvert(), nb::arg("edge_ids").noconvert(),
           R"(Orders a piece of the edge list by block; block b has rows bounds[b] to bounds[b + 1].

Args:
    keys, neighbors: [n] int32 or int64, original ids of the edges' ends.
    first: number of the first edge.
    bounds: [num_blocks + 1] int64, ascending from 0 to the number of rows.
    rows, columns: [n] of one dtype; receive the row within the block and the neighbour's new id.
    edge_ids: [n] receive the number of each edge.

Returns:
    [num_blocks] int64 number of edges of each block.

Raises:
    IndexError: an id that no node has.)");
  m.def("number_by_owner", &number_by_owner, nb::arg("owners").noconvert(), nb::arg("num_parts"),
        "New ids of nodes, contiguous by owner and in the order of nodes within: (bounds of the "
        "owners, old_of_new, new_of_old), ids in the narrowest of int32 and int64 that fits.");
}

}  // namespace khop::bindings
