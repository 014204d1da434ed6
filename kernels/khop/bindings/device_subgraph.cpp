// A batch's subgraph on a device: names, arguments and their meanings.
#include "khop/bindings/device_subgraph.hpp"

#include "khop/bindings/module.hpp"

namespace khop::bindings {

void bind_device_subgraph(nb::module_& m) {
  nb::class_<PyDeviceSubgraph>(m, "DeviceSubgraph", R"(A batch's subgraph while a device draws it.

As `Subgraph`, and equal to what it draws, bit for bit. Seeds and exclusions are NumPy arrays;
arrays to write to lie in the device's memory. `sample` waits for nothing; the first question after
it waits for the whole batch.

Args:
    device: the device.
    num_nodes, relations, with_edges, disjoint: as of `Subgraph`.
    room: entries of a batch (edges, nodes) that memory is taken for at once where fan-outs allow
        so many. Beyond, a batch that finds too little room is drawn again with more.)")
      .def(nb::init<std::shared_ptr<PyDevice>, const std::vector<int64_t>&,
                    const PyDeviceSubgraph::Pairs&, bool, bool, int64_t>(),
           nb::arg("device"), nb::arg("num_nodes"), nb::arg("relations"), nb::arg("with_edges"),
           nb::arg("disjoint") = false, nb::arg("room") = int64_t{1} << 22)
      .def("begin", &PyDeviceSubgraph::begin, "Starts a new batch.")
      .def("add_seeds", &PyDeviceSubgraph::add_seeds, nb::arg("node_type"),
           nb::arg("ids").noconvert(), nb::arg("times").noconvert().none() = nb::none(),
           "Adds seeds; with times, only what is not later is drawn for them.")
      .def("exclude", &PyDeviceSubgraph::exclude, nb::arg("relation"), nb::arg("rows").noconvert(),
           nb::arg("neighbors").noconvert(),
           "Keeps edges out of the batch, all that lead from a row to the neighbour beside it.")
      .def("sample", &PyDeviceSubgraph::sample, nb::arg("graphs"), nb::arg("hops"),
           nb::arg("run_key"), nb::arg("batch"), nb::arg("cuda_graph") = false,
           R"(Draws all hops over all edge types. Waits for nothing.

`hops` is that of `Subgraph.sample`.

With `cuda_graph`, the kernels of a batch are recorded once and played again for later batches of
the same graphs and fan-outs, of as many seeds or fewer.)")
      .def("draw", &PyDeviceSubgraph::draw, nb::arg("plan"), nb::arg("seeds"), nb::arg("run_key"),
           nb::arg("batch"), nb::arg("excluded"), nb::arg("block").none() = nb::none(),
           nb::arg("address") = 0, nb::arg("words") = 0, nb::arg("staged") = false,
           nb::arg("merged") = false, nb::arg("links").none() = nb::none(),
           R"(Begins a batch, draws all hops, and has them written as soon as they are drawn.

All arrays of the batch lie in one block of int64, one behind the other: nodes of each node type;
their trees, in a disjoint batch; [2, num_edges] ends of each edge type; the named edges' names.
Padded batches have a byte for each node and each edge behind them, 0 for padding, an array for each
type, in whole entries. Waits for nothing, unless four padded batches before it are unfinished.

Args:
    plan: what all batches have in common.
    seeds: (node type, ids, times or None) each.
    run_key, batch: key of the draws.
    excluded: (relation, rows, neighbors) each, as of `exclude`.
    block: what owns the block; kept until `take_block`.
    address, words: of the block, in the device's memory, and its entries; 0: there is none.
    staged: only upload what the batch needs, for `launch`.
    merged: only place the seeds. `merge` takes the edges of each hop, which others draw.
    links: (plan, sources, destinations, times or None, number of negatives, address), of which the
        device makes seeds. It writes int64 positions of their ends to the address: of sources, of
        negatives' sources (binary), of destinations, and of negatives' destinations, those of a
        link of triplets side by side.

Raises:
    ValueError: an earlier batch that was left unchecked did not fit its padding.
    RuntimeError: with `staged`, the batch needs other kernels than those that `launch` launched.)")
      .def("merge", &PyDeviceSubgraph::merge, nb::arg("counts"), nb::arg("begins"),
           nb::arg("entries"), nb::arg("num_rows"), nb::arg("owner"),
           R"(Takes the edges that others drew for a hop, of a batch that was begun with `merged`.

Rows are the frontiers of the edge types with a fan-out, one behind the other: edge types by the
node type of their neighbours, then in the graph's order. The caller has checked that all entries of
all rows exist.

Args:
    counts: address of [num_rows] int64 in the device's memory, edges of each row.
    begins: address of [num_rows] int64, where each row's edges begin among all.
    entries: address of int64 words of all edges: the neighbour and, if edges are recorded, the edge.
    num_rows: rows of the hop.
    owner: what owns these arrays; kept until the next batch.

Raises:
    ValueError: another number of rows, or all hops are merged.
    IndexError: a neighbour does not exist; raised by the next question for the batch.)")
      .def("frontier_size", &PyDeviceSubgraph::frontier_size, nb::arg("node_type"),
           "Number of nodes that the last hop found; waits for it.")
      .def("write_frontier", &PyDeviceSubgraph::write_frontier, nb::arg("node_type"),
           nb::arg("keys"), nb::arg("times") = 0,
           "Writes the nodes that the last hop found: int64 keys, and times of their seeds (0: not "
           "wanted).")
      .def("launch", &PyDeviceSubgraph::launch,
           "Launches the kernels of a staged batch. Who records them launches those of later ones.")
      .def("collect", &PyDeviceSubgraph::collect,
           "Has what the host may ask for of a staged batch downloaded, after its kernels.")
      .def("lacks_negatives", &PyDeviceSubgraph::lacks_negatives,
           R"(Whether rounds of draws do not find a batch's strict negatives; waits for it.

The host then has to choose among all that are valid, and to draw the batch of their seeds.)")
      .def("leave_unchecked", &PyDeviceSubgraph::leave_unchecked,
           R"(Lets a padded batch be used before it is known whether it fits.

A later `draw` of this object, or `check_all`, raises ValueError if it did not. It is padding alone
then. Waits for nothing.

Returns:
    False if the batch may have to be drawn again: `settle` is needed then.)")
      .def("check_all", &PyDeviceSubgraph::check_all,
           "Waits for the batches that were left unchecked. Raises ValueError if one did not fit.")
      .def("settle", &PyDeviceSubgraph::settle,
           R"(Waits for what `draw` launched. Other threads may use the device meanwhile.

Returns:
    Whether the batch is complete and in its block, padded if its plan says so. Otherwise the next question for it may draw it
    again, and `write_block` writes it.)")
      .def("take_block", &PyDeviceSubgraph::take_block,
           "Returns what owns the batch's block, or None, and keeps it no longer.")
      .def("layout", &PyDeviceSubgraph::layout,
           R"(Lengths of a block's arrays; waits for the batch if it is not known.

Returns:
    lengths, words, nodes_per_hop, edges_per_hop: the length of each array, their sum, and what hops
    found, of each type.)")
      .def("write_block", &PyDeviceSubgraph::write_block, nb::arg("address"),
           "Writes the batch to a block of as many entries as `layout` says.")
      .def("induce", &PyDeviceSubgraph::induce, nb::arg("graphs"),
           "Replaces the edges by all edges among the batch's nodes. Waits twice an edge type.")
      .def("add_reverses", &PyDeviceSubgraph::add_reverses, nb::arg("reversals"),
           nb::arg("keep_edges"),
           "Adds the reverses of edges, for each (relation, reverse relation, mirror), coalesced.")
      .def("num_nodes", &PyDeviceSubgraph::num_nodes, nb::arg("node_type"))
      .def("num_edges", &PyDeviceSubgraph::num_edges, nb::arg("relation"))
      .def("nodes_per_hop", &PyDeviceSubgraph::nodes_per_hop, nb::arg("node_type"),
           "Number of seeds, then of the nodes that each hop added.")
      .def("edges_per_hop", &PyDeviceSubgraph::edges_per_hop, nb::arg("relation"))
      .def("sizes", &PyDeviceSubgraph::sizes,
           R"(What the batch has come to; waits for it, the first time.

Returns:
    num_nodes, num_edges, nodes_per_hop, edges_per_hop: an entry for each type.)")
      .def("write", &PyDeviceSubgraph::write, nb::arg("nodes"), nb::arg("ends"), nb::arg("edges"),
           nb::arg("trees"), nb::arg("names"), nb::arg("backward") = false,
           nb::arg("values") = PyDeviceSubgraph::Addresses(),
           R"(Writes the batch to memory of the device; waits for nothing more.

Addresses are of arrays of int64 that stay until the device has written them; 0, or an empty list
for all types: not wanted.

Args:
    nodes: a node type each: [num_nodes] ids.
    ends: an edge type each: [2, num_edges], rows above columns.
    edges: an edge type each: [num_edges] names of edges, or where there are none positions in the
        graph.
    trees: a node type each: [num_nodes] trees.
    names: an edge type each: (address, bytes of an entry, entries) of the names of all edges of
        the graph; (0, 8, 0): none.
    backward: exchange rows and columns.
    values: an edge type each: [num_edges] float32 values of edges that a program drew.

Raises:
    IndexError: there are fewer names than edges.
    ValueError: edges were not recorded, or have no values.)");
}

}  // namespace khop::bindings
