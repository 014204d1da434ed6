// Edge lists to compressed rows on a device; errors have the CPU's texts.
#include "khop/bindings/convert_errors.hpp"
#include "khop/bindings/device_arguments.hpp"

namespace khop::bindings {
namespace {

device::EdgeEnds ends_of(const PyDevice& self, const AnyArray& ids, const char* name,
                         int64_t num_nodes, const std::optional<DeviceIn<int64_t>>& map,
                         const char* map_name) {
  device::EdgeEnds ends{
      {ids.data(), width_of_ints(self, ids, name)}, nullptr, num_nodes, num_nodes};
  if (map.has_value()) {
    self.check_place(*map, map_name);
    ends.map = map->data();
    ends.num_ids = entries_of(*map);
  }
  return ends;
}

// `limit`: the largest number that will be written.
device::AnyIntsOut ints_out(const PyDevice& self, const AnyOut& array, const char* name,
                            int64_t count, int64_t limit) {
  const device::AnyIntsOut out{array.data(), width_of_ints(self, array, name)};
  check_length(entries_of(array), count, name);
  if (out.width == 4 && limit > std::numeric_limits<int32_t>::max()) {
    throw nb::type_error(
        (std::string(name) + " must be int64 to hold numbers up to " + std::to_string(limit))
            .c_str());
  }
  return out;
}

[[noreturn]] void throw_list_error(const PyDevice& self, const device::EdgeListError& error,
                                   const device::CooEdges& list) {
  const auto id_of = [&](const device::EdgeEnds& ends) {
    return read_int(self, ends.ids.data, ends.ids.width, error.place);
  };
  const auto throw_map = [&](const char* name, const device::EdgeEnds& ends) {
    throw_bad_map(name, error.place, read_int(self, ends.map, 8, error.place), ends.num_nodes);
  };
  if (error.kind == device::EdgeListError::kKeyMap) throw_map("key_map", list.keys);
  if (error.kind == device::EdgeListError::kNeighborMap) throw_map("neighbor_map", list.neighbors);
  throw_bad_edge(error.place, id_of(list.keys), id_of(list.neighbors), list.keys.num_ids,
                 list.neighbors.num_ids);
}

void coo_to_csr(const PyDevice& self, const AnyArray& keys, const AnyArray& neighbors,
                int64_t num_rows, int64_t num_neighbors, const AnyOut& indptr,
                const AnyOut& indices, const std::optional<AnyOut>& edge_ids,
                const std::optional<DeviceIn<int64_t>>& key_map,
                const std::optional<DeviceIn<int64_t>>& neighbor_map) {
  if (num_rows < 0 || num_neighbors < 0) {
    throw nb::value_error("num_rows and num_neighbors must not be negative");
  }
  device::CooEdges list{
      ends_of(self, keys, "keys", num_rows, key_map, "key_map"),
      ends_of(self, neighbors, "neighbors", num_neighbors, neighbor_map, "neighbor_map"),
      entries_of(keys)};
  if (list.keys.ids.width != list.neighbors.ids.width) {
    throw nb::type_error("keys and neighbors must have the same dtype");
  }
  if (entries_of(neighbors) != list.num_edges) {
    throw nb::value_error("keys and neighbors must have the same length");
  }
  device::RowsOut out{ints_out(self, indptr, "indptr", count_with(num_rows, 1), list.num_edges),
                      ints_out(self, indices, "indices", list.num_edges, num_neighbors - 1),
                      {nullptr, 0}};
  if (edge_ids.has_value()) {
    out.edge_ids = ints_out(self, *edge_ids, "edge_ids", list.num_edges, list.num_edges - 1);
  }
  device::EdgeListError error;
  {
    nb::gil_scoped_release release;
    error = self->coo_to_csr(list, out);
  }
  if (error.kind != device::EdgeListError::kNone) throw_list_error(self, error, list);
}

}  // namespace

void bind_device_convert(nb::class_<PyDevice>& device) {
  device.def("coo_to_csr", &coo_to_csr, nb::arg("keys").noconvert(),
             nb::arg("neighbors").noconvert(), nb::arg("num_rows"), nb::arg("num_neighbors"),
             nb::arg("indptr").noconvert(), nb::arg("indices").noconvert(),
             nb::arg("edge_ids").noconvert().none() = nb::none(),
             nb::arg("key_map").noconvert().none() = nb::none(),
             nb::arg("neighbor_map").noconvert().none() = nb::none(),
             R"(As `_native.coo_to_csr`, on arrays in the device's memory, by a stable radix sort.

Takes 32 bytes an edge beside its arguments. Waits for the check of the ids, not for the rows: see
`synchronize`.

Args:
    keys, neighbors: [num_edges] int32 or int64; edge e lies in row keys[e].
    num_rows, num_neighbors: numbers of nodes on either side.
    indptr: [num_rows + 1] int32 or int64, written.
    indices, edge_ids: [num_edges] int32 or int64, written; edge_ids: None if not wanted.
    key_map, neighbor_map: int64 permutations applied to the ids on the fly.

Raises:
    IndexError: an id is out of range (names the first such edge), or what a map says; nothing is
        written.
    TypeError: an array is too narrow for what it is to hold.
    RuntimeError: a CUDA call failed; names the call.)");
}

}  // namespace khop::bindings
