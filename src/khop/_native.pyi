from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from khop.typing import (
    Array,
    BoolArray,
    Float64Array,
    Int32Array,
    Int64Array,
    IntArray,
    UInt32Array,
    UInt64Array,
)

SHUFFLE_HOP: int
NEGATIVE_HOP: int

def philox(key: int, c0: int, c1: int, c2: int, c3: int) -> tuple[int, int, int, int]: ...
def run_key(seed: int, epoch: int, stream: int) -> int: ...
def step_key(run: int, batch: int, hop: int, edge_type: int) -> int: ...
def permutation(count: int, key: int) -> Int64Array: ...
def simd_instructions() -> list[str]: ...
def draw_simd(
    instructions: str,
    key: int,
    nodes: UInt64Array,
    trees: UInt32Array,
    degrees: UInt32Array,
    count: int,
    replace: bool,
) -> UInt32Array: ...
def below_simd(
    instructions: str, key: int, tree: int, nodes: UInt64Array, limit: int, wide: bool
) -> tuple[UInt64Array, Int64Array]: ...
def kth_simd(instructions: str, words: UInt64Array, k: int) -> int: ...

class HopOptions:
    def __init__(
        self,
        fanout: int,
        replace: bool = False,
        with_edge: bool = True,
        key: int = 0,
        weighted: bool = False,
        last: bool = False,
        method: str = "neighbor",
        layer_dependency: bool = False,
    ) -> None: ...
    @property
    def fanout(self) -> int: ...
    @property
    def replace(self) -> bool: ...
    @property
    def with_edge(self) -> bool: ...
    @property
    def key(self) -> int: ...
    @property
    def weighted(self) -> bool: ...
    @property
    def last(self) -> bool: ...
    @property
    def method(self) -> str: ...
    @property
    def layer_dependency(self) -> bool: ...
    def at(self, run: int, batch: int, hop: int, relation: int, source: int) -> HopOptions: ...

class Csr:
    def __init__(
        self,
        indptr: IntArray,
        indices: IntArray,
        row_ids: IntArray | None = None,
        first_row: int = 0,
        first_edge: int = 0,
        times: Int64Array | None = None,
        weight_sums: UInt64Array | None = None,
        weight_guide: UInt32Array | None = None,
        neighbor_ids: IntArray | None = None,
    ) -> None: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    @property
    def has_times(self) -> bool: ...
    @property
    def has_weights(self) -> bool: ...
    @property
    def knows_neighbors(self) -> bool: ...
    @property
    def widths(self) -> tuple[int, int]: ...
    @property
    def wide(self) -> bool: ...

_Reply = tuple[Int32Array, IntArray, Int64Array | None]
_Members = tuple[Int64Array, Int32Array | None, Int64Array | None]

class NodeNumbers:
    def __init__(self, num_nodes: int) -> None: ...
    def __len__(self) -> int: ...
    def number(self, ids: Int64Array) -> Int64Array: ...
    def find(self, ids: Int64Array) -> Int64Array: ...
    def ids(self, first: int = 0) -> Int64Array: ...

class Subgraph:
    values: dict[str, Array]
    def __init__(
        self,
        num_nodes: list[int],
        relations: list[tuple[int, int]],
        with_edges: bool,
        disjoint: bool = False,
    ) -> None: ...
    def begin(self) -> None: ...
    def add_seeds(
        self, node_type: int, ids: Int64Array, times: Int64Array | None = None
    ) -> None: ...
    def exclude(self, relation: int, rows: Int64Array, neighbors: Int64Array) -> None: ...
    def hop(self, relation: int, graph: Csr, options: HopOptions) -> None: ...
    def sample(
        self,
        graphs: list[Csr],
        hops: Sequence[Sequence[HopOptions]],
        run_key: int,
        batch: int,
        all: bool = False,
    ) -> None: ...
    def sample_parts(
        self,
        parts: list[list[Csr]],
        hops: Sequence[Sequence[HopOptions]],
        run_key: int,
        batch: int,
        all: bool = False,
    ) -> None: ...
    def merge(self, relation: int, owners: Int32Array, replies: list[_Reply]) -> None: ...
    def end_hop(self, all: bool = False) -> None: ...
    def induce(self, graphs: list[Csr]) -> None: ...
    def merge_induced(self, relation: int, owners: Int32Array, replies: list[_Reply]) -> None: ...
    def add_reverses(
        self, reversals: Sequence[tuple[int, int, bool]], keep_edges: bool
    ) -> None: ...
    def frontier(self, node_type: int) -> _Members: ...
    def members(self, node_type: int) -> _Members: ...
    def keys(self, node_type: int) -> Int64Array: ...
    def num_nodes(self, node_type: int) -> int: ...
    def num_edges(self, relation: int) -> int: ...
    def nodes_per_hop(self, node_type: int) -> list[int]: ...
    def edges_per_hop(self, relation: int) -> list[int]: ...
    def write_nodes(self, node_type: int, out: Int64Array) -> None: ...
    def write_trees(self, node_type: int, out: Int64Array) -> None: ...
    def write_edge_index(self, relation: int, row: Int64Array, col: Int64Array) -> None: ...
    def write_edges(self, relation: int, out: Int64Array) -> None: ...

class SubgraphOutput:
    def __init__(self, edge_names: Sequence[IntArray | None], backward: bool = False) -> None: ...
    def sizes(
        self, subgraph: Subgraph
    ) -> tuple[list[int], list[int], list[list[int]], list[list[int]]]: ...
    def write(
        self,
        subgraph: Subgraph,
        nodes: list[Int64Array],
        ends: list[Int64Array],
        edges: list[Int64Array | None],
        trees: list[Int64Array] | None = None,
    ) -> None: ...

class StopFlag:
    def __init__(self) -> None: ...
    def set(self) -> None: ...

class ExcludedPairs:
    def __init__(self, rows: Int64Array, neighbors: Int64Array) -> None: ...
    def counts(self, rows: Int64Array) -> Int64Array: ...

class Members:
    def __init__(self, num_nodes: int, disjoint: bool) -> None: ...
    def add(self, keys: Int64Array) -> None: ...

@overload
def sample_rows(
    graph: Csr,
    ids: Int64Array,
    options: HopOptions,
    trees: Int32Array | None = None,
    times: Int64Array | None = None,
    excluded: tuple[Int64Array, Int64Array] | None = None,
) -> _Reply: ...
@overload
def sample_rows(
    graph: Csr,
    ids: Int64Array,
    options: HopOptions,
    trees: Int32Array | None,
    times: Int64Array | None,
    excluded: ExcludedPairs | None,
    stop: StopFlag | None,
) -> _Reply: ...
def pick_positions(
    graph: Csr, ids: Int64Array, options: HopOptions, trees: Int32Array | None = None
) -> tuple[Int32Array, Int64Array]: ...
@overload
def induce_rows(
    graph: Csr,
    ids: Int64Array,
    members: Int64Array,
    num_nodes: int,
    with_edges: bool,
    disjoint: bool = False,
    trees: Int32Array | None = None,
    times: Int64Array | None = None,
    excluded: tuple[Int64Array, Int64Array] | None = None,
) -> _Reply: ...
@overload
def induce_rows(
    graph: Csr,
    ids: Int64Array,
    members: Members,
    with_edges: bool,
    trees: Int32Array | None,
    times: Int64Array | None,
    excluded: ExcludedPairs | None,
    stop: StopFlag | None,
) -> _Reply: ...
def program_key(run: int, batch: int, purpose: int, step: int, type: int) -> int: ...
def draw_words(key: int, ids: Int64Array, trees: Int32Array | None = None) -> UInt64Array: ...
def draw_ids(key: int, bound: int, count: int) -> Int64Array: ...
def draw_below(key: int, bounds: Int64Array) -> Int64Array: ...
def has_edges(graph: Csr, rows: Int64Array, neighbors: Int64Array) -> BoolArray: ...
def degrees(graph: Csr, rows: Int64Array) -> Int64Array: ...
def random_walks(
    graphs: Sequence[Csr],
    relations: Sequence[int],
    stops: Sequence[int],
    bias: tuple[int, int, int],
    run_key: int,
    batch: int,
    first_step: int,
    starts: Int64Array,
    nodes: Int64Array,
    edges: Int64Array | None,
    num_threads: int = 1,
) -> None: ...
def smallest_entries(
    values: Float64Array | Int64Array | UInt64Array,
    counts: Int64Array,
    most: Int64Array,
    ascending: bool = False,
) -> Int64Array: ...
def row_scales(
    masses: Float64Array | None,
    shares: Float64Array | None,
    counts: Int64Array,
    asked: Int64Array,
) -> Float64Array: ...
def row_chances(
    masses: Float64Array | None,
    shares: Float64Array | None,
    counts: Int64Array,
    asked: Int64Array,
) -> Float64Array: ...
def common_chances(masses: Int64Array, count: int) -> Float64Array: ...
def logs(values: Float64Array, instructions: str | None = None) -> Float64Array: ...
def normal_variates(words: UInt64Array, instructions: str | None = None) -> Float64Array: ...
def normal_cdf(z: Float64Array, instructions: str | None = None) -> Float64Array: ...
def accumulate_hotness(
    graph: Csr, frontier: Array, fanout: int, replace: bool, log_missed: Array
) -> None: ...
def gather(
    table: Array,
    rows: IntArray | None,
    out: Array,
    places: Int64Array | None = None,
    num_threads: int = 1,
) -> None: ...
def encode(
    encoding: str,
    values: Array,
    out: Array,
    scale: Array | None = None,
    zero: Array | None = None,
) -> int: ...
def decode_instructions() -> list[str]: ...
def decode(
    encoding: str,
    table: Array,
    rows: IntArray | None,
    out: Array,
    places: Int64Array | None = None,
    num_threads: int = 1,
    scale: Array | None = None,
    zero: Array | None = None,
    instructions: str | None = None,
) -> None: ...
def scatter(
    table: Array,
    rows: Int64Array,
    values: Array,
    reduce: str,
    bfloat16: bool = False,
) -> None: ...
def update_rows(
    table: Array,
    rows: Int64Array,
    gradients: Array,
    rule: str,
    first: Array | None,
    second: Array | None,
    rate: float,
    epsilon: float,
    beta1: float,
    beta2: float,
    scale: float = 1.0,
) -> None: ...

class DistinctRows:
    def __init__(self, num_rows: int) -> None: ...
    def add(self, rows: Int64Array) -> Int64Array: ...
    def rows(self) -> Int64Array: ...

def gather_parts(parts: Sequence[Array], rows: Int64Array, out: Array) -> None: ...
def aggregate(
    first: Int64Array,
    neighbors: IntArray,
    weights: Array | None,
    values: Sequence[Array],
    reduce: str,
    out: Array,
) -> None: ...
def explain_bus_error(text: str) -> None: ...
def write_blocks(file: int, blocks: Int64Array, memory: Array) -> None: ...

class WriteBackCache:
    def __init__(self, num_blocks: int, capacity: int) -> None: ...
    def load(
        self, blocks: Int64Array, changes: bool
    ) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]: ...

class DirectReads:
    def __init__(
        self,
        file: int,
        begin: int,
        row_bytes: int,
        num_rows: int,
        use_ring: bool = True,
        depth: int = 128,
        max_bytes: int = 262144,
        cache_bytes: int = 0,
        pool_bytes: int = 4194304,
    ) -> None: ...
    def submit(self, rows: Int64Array, out: Array, places: Int64Array | None = None) -> int: ...
    def finished(self) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...
    def set_gap(self, bytes: int) -> None: ...
    def counts(self) -> tuple[int, int, int, int]: ...
    @property
    def event(self) -> int: ...
    @property
    def uses_ring(self) -> bool: ...
    @property
    def is_direct(self) -> bool: ...

class CacheModel:
    def __init__(self, capacity: int, most: int = 4096) -> None: ...
    def ask(self, ids: Int64Array) -> None: ...
    @property
    def factor(self) -> int: ...
    @property
    def misses(self) -> tuple[int, int]: ...

def coo_to_csr(
    keys: IntArray,
    neighbors: IntArray,
    num_rows: int,
    num_neighbors: int,
    key_map: Int64Array | None = None,
    neighbor_map: Int64Array | None = None,
    with_edge_ids: bool = True,
) -> tuple[IntArray, IntArray, Any]: ...

class RowSplit:
    def __init__(self, key_map: IntArray, neighbor_map: IntArray, num_rows: int) -> None: ...
    def count(self, keys: IntArray, neighbors: IntArray, first: int, counts: IntArray) -> None: ...
    def split(
        self,
        keys: IntArray,
        neighbors: IntArray,
        first: int,
        bounds: Int64Array,
        rows: IntArray,
        columns: IntArray,
        edge_ids: IntArray,
    ) -> Int64Array: ...

def number_by_owner(
    owners: Int32Array, num_parts: int
) -> tuple[Int64Array, IntArray, IntArray]: ...
def weight_table(indptr: IntArray, weights: Array) -> tuple[UInt64Array, UInt32Array]: ...
def undirected(
    indptr: IntArray, indices: IntArray, first_node: int = 0
) -> tuple[Int64Array, IntArray, Int32Array]: ...

class UndirectedRows:
    def __init__(
        self, first_node: int, indptr: Int64Array, indices: IntArray, weights: Int32Array
    ) -> None: ...

class AssignPass:
    def __init__(
        self,
        weights: Int32Array,
        capacities: Int64Array,
        loads: Int64Array,
        labels: Int32Array,
        score: str,
        num_edges: int,
    ) -> None: ...
    def visit(self, rows: UndirectedRows, order: Int64Array) -> int: ...

class ClusterPass:
    def __init__(
        self, weights: Int32Array, limit: int, labels: IntArray, loads: Int64Array
    ) -> None: ...
    def visit(self, rows: UndirectedRows, order: Int64Array) -> int: ...

def sort_rows_by_time(indptr: IntArray, times: Int64Array) -> IntArray | None: ...
def first_row_out_of_order(indptr: IntArray, times: Int64Array) -> int: ...
def split_by_owner(
    ids: Int64Array, bounds: list[int]
) -> tuple[Int32Array, Int64Array, Int64Array, list[int]]: ...

class IdIndex:
    def __init__(self, ids: Int64Array) -> None: ...
    def __len__(self) -> int: ...
    def find(self, ids: Int64Array) -> Int64Array: ...

class LookaheadCache:
    def __init__(self, capacity: int, num_rows: int = 9223372036854775807) -> None: ...
    def announce(self, ids: Int64Array) -> int: ...
    def take(
        self, batch: int
    ) -> tuple[
        Int64Array, Int64Array, Int64Array, Int64Array, Int64Array, Int64Array, Int64Array
    ]: ...
    def forget(self, batch: int) -> None: ...
    def discard(self, ids: Int64Array) -> None: ...
    def clear(self) -> None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_announced(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def cuda_status() -> dict[str, Any]: ...

class Device:
    @property
    def name(self) -> str: ...
    @property
    def is_cuda(self) -> bool: ...
    @property
    def num_launches(self) -> int: ...
    @property
    def stream(self) -> int: ...
    def synchronize(self) -> None: ...
    def gather(self, table: Any, rows: Any, out: Any, wait: bool = True) -> None: ...
    def blank_rows(self, rows: int, row_bytes: int, mask: int, count: int) -> None: ...
    def coo_to_csr(
        self,
        keys: Any,
        neighbors: Any,
        num_rows: int,
        num_neighbors: int,
        indptr: Any,
        indices: Any,
        edge_ids: Any | None = None,
        key_map: Any | None = None,
        neighbor_map: Any | None = None,
    ) -> None: ...
    def accumulate_hotness(
        self,
        graph: DeviceGraph,
        frontier: Float64Array,
        fanout: int,
        replace: bool,
        log_missed: Float64Array,
        edges_at_a_time: int = ...,
    ) -> None: ...
    def random_walks(
        self,
        graphs: Sequence[DeviceGraph],
        relations: Sequence[int],
        stops: Sequence[int],
        bias: tuple[int, int, int],
        run_key: int,
        batch: int,
        first_step: int,
        starts: Int64Array,
        nodes: Int64Array,
        edges: Int64Array | None,
    ) -> None: ...

class DeviceMemory:
    @staticmethod
    def allocate(device: Device, nbytes: int) -> DeviceMemory: ...
    @staticmethod
    def allocate_shared(device: Device, nbytes: int) -> DeviceMemory: ...
    @staticmethod
    def open(device: Device, handle: bytes, nbytes: int) -> DeviceMemory: ...
    @staticmethod
    def over(device: Device, array: Array) -> DeviceMemory: ...
    @staticmethod
    def mapped(device: Device, array: Array) -> DeviceMemory: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def device(self) -> Device: ...
    @property
    def handle(self) -> bytes: ...
    def view(self, offset: int, shape: Sequence[int], dtype: str, owner: object) -> Any: ...
    def upload(self, offset: int, array: Array) -> None: ...
    def download(self, offset: int, out: Array) -> None: ...

class LockedPages:
    def __init__(self, device: Device, array: Array) -> None: ...
    @property
    def is_locked(self) -> bool: ...

class DeviceGraph:
    def __init__(self, device: Device, csr: Csr, mode: str = "CUDA") -> None: ...
    @property
    def mode(self) -> str: ...
    @property
    def has_times(self) -> bool: ...
    @property
    def has_weights(self) -> bool: ...

class DeviceProgram:
    @staticmethod
    def visits(num_walks: int, length: int, stop: int) -> DeviceProgram: ...
    @staticmethod
    def layers(
        method: str,
        counts: Sequence[int],
        skips: bool,
        scales_rows: bool,
        column_sums: int = 0,
        num_sums: int = 0,
    ) -> DeviceProgram: ...

class DevicePlan:
    def __init__(
        self,
        device: Device,
        graphs: list[DeviceGraph],
        hops: Sequence[Sequence[HopOptions]],
        cuda_graph: bool,
        names: Sequence[tuple[int, int, int]],
        named: Sequence[bool],
        backward: bool = False,
        padding: tuple[list[list[int]], list[list[int]], bool, bool] | None = None,
        program: DeviceProgram | None = None,
        layer_wise: bool = False,
    ) -> None: ...
    @property
    def lengths(self) -> list[int]: ...
    @property
    def block_words(self) -> int: ...

_Candidates = tuple[int, Int64Array | None, Int64Array | None, Int64Array | None]

class DeviceLinkPlan:
    def __init__(
        self,
        device: Device,
        types: tuple[int, int],
        src_from: _Candidates,
        dst_from: _Candidates,
        pairs: bool,
        amount: int,
        relation: int | None,
        rows_are_sources: bool,
        excluded: Sequence[tuple[int, bool]] = ...,
    ) -> None: ...

class DeviceSubgraph:
    def __init__(
        self,
        device: Device,
        num_nodes: Sequence[int],
        relations: Sequence[tuple[int, int]],
        with_edges: bool,
        disjoint: bool = False,
        room: int = ...,
    ) -> None: ...
    def begin(self) -> None: ...
    def add_seeds(
        self, node_type: int, ids: Int64Array, times: Int64Array | None = None
    ) -> None: ...
    def exclude(self, relation: int, rows: Int64Array, neighbors: Int64Array) -> None: ...
    def sample(
        self,
        graphs: Sequence[DeviceGraph],
        hops: Sequence[Sequence[HopOptions]],
        run_key: int,
        batch: int,
        cuda_graph: bool = False,
    ) -> None: ...
    def draw(
        self,
        plan: DevicePlan,
        seeds: Iterable[tuple[int, Int64Array, Int64Array | None]],
        run_key: int,
        batch: int,
        excluded: Iterable[tuple[int, Int64Array, Int64Array]],
        block: object = None,
        address: int = 0,
        words: int = 0,
        staged: bool = False,
        merged: bool = False,
        links: tuple[DeviceLinkPlan, Int64Array, Int64Array, Int64Array | None, int, int]
        | None = None,
    ) -> None: ...
    def merge(
        self, counts: int, begins: int, entries: int, num_rows: int, owner: object
    ) -> None: ...
    def frontier_size(self, node_type: int) -> int: ...
    def write_frontier(self, node_type: int, keys: int, times: int = 0) -> None: ...
    def lacks_negatives(self) -> bool: ...
    def launch(self) -> None: ...
    def collect(self) -> None: ...
    def leave_unchecked(self) -> bool: ...
    def check_all(self) -> None: ...
    def settle(self) -> bool: ...
    def take_block(self) -> Any: ...
    def layout(self) -> tuple[list[int], int, list[list[int]], list[list[int]]]: ...
    def write_block(self, address: int) -> None: ...
    def induce(self, graphs: Sequence[DeviceGraph]) -> None: ...
    def add_reverses(
        self, reversals: Sequence[tuple[int, int, bool]], keep_edges: bool
    ) -> None: ...
    def num_nodes(self, node_type: int) -> int: ...
    def num_edges(self, relation: int) -> int: ...
    def nodes_per_hop(self, node_type: int) -> list[int]: ...
    def edges_per_hop(self, relation: int) -> list[int]: ...
    def sizes(self) -> tuple[list[int], list[int], list[list[int]], list[list[int]]]: ...
    def write(
        self,
        nodes: Sequence[int],
        ends: Sequence[int],
        edges: Sequence[int],
        trees: Sequence[int],
        names: Sequence[tuple[int, int, int]],
        backward: bool = False,
        values: Sequence[int] = ...,
    ) -> None: ...

def emulated_device(
    seed: int = 0, num_threads: int = 1, maps_host: bool = True, island: int = 0
) -> Device: ...
def divide(numbers: Int64Array, divisor: int) -> tuple[Int64Array, Int64Array]: ...
def cuda_device(
    index: int = 0,
    stream: int = 0,
    allocate: Callable[[int], int] | None = None,
    release: Callable[[int], None] | None = None,
) -> Device: ...
def cuda_stream(index: int) -> int: ...

class DeviceRowDraw:
    def __init__(
        self,
        device: Device,
        graphs: list[DeviceGraph],
        num_nodes: Sequence[int],
        disjoint: bool,
    ) -> None: ...
    def draw(
        self, asked: Sequence[tuple[int, HopOptions, int, int, int]], counts: int
    ) -> list[int]: ...
    def write(self, entries: int, with_edges: bool) -> None: ...

class DeviceGroup:
    def __init__(self, devices: Sequence[Device]) -> None: ...
    def __len__(self) -> int: ...

class HotRows:
    def __init__(
        self,
        group: DeviceGroup,
        table: Array,
        rows: Int64Array | None = None,
        replicated: int = 0,
    ) -> None: ...
    @staticmethod
    def of_parts(
        device: Device,
        parts: Sequence[DeviceMemory],
        own: int,
        table: Array,
        rows: Int64Array | None = None,
        replicated: int = 0,
    ) -> HotRows: ...
    @property
    def num_rows(self) -> int: ...

class DeviceTable:
    def __init__(
        self,
        device: Device,
        table: Array,
        mode: str = "CUDA",
        hot: HotRows | None = None,
        sorts_from: int = ...,
        encoding: str | None = None,
        scale: Array | None = None,
        zero: Array | None = None,
    ) -> None: ...
    @property
    def place(self) -> str: ...
    @property
    def served(self) -> tuple[int, int]: ...
    @property
    def served_by_peers(self) -> int: ...
    def reset_served(self) -> None: ...
    def gather(self, rows: Any, out: Any, num_threads: int = 1, wait: bool = True) -> None: ...
    def gather_at(
        self,
        rows: int,
        row_width: int,
        count: int,
        out: int,
        num_threads: int = 1,
        wait: bool = True,
    ) -> None: ...
