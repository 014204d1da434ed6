"""Feature tables whose rows are gathered on a device.

There are three modes, as for graphs. With 'CUDA' rows lie in device memory. With 'ZERO_COPY' they
stay on the host, and the device reads them in place. With 'CPU' the CPU gathers, and the result is
copied.

In mode 'CUDA' a table may be split: the hottest rows lie on the device and the others are read in
place, all by one kernel. Batches need few rows often and most rows rarely, so a small part serves
most of a batch.

Encoded rows lie as they are stored, in a half or a quarter of the memory. The kernel that gathers
them widens them to float32. Used by trainers and samplers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from khop import _native
from khop.data.arrays import storage_dtype
from khop.data.encoding import bytes_of_rows
from khop.data.hot_rows import checked_hotness
from khop.data.node_rows import NodeGroup, Peers, share_rows
from khop.data.row_division import Division, divide_rows, on_host, shards_of
from khop.data.row_store import RowStore
from khop.typing import Array, ArrayLike, Int64Array


class DeviceGroup:
    """Devices that read each other's memory, so that hot rows are stored once for all of them.

    As in GraphLearn-for-PyTorch, GPUs with NVLink between them are a group. A group holds each hot
    row once, and its devices read each other's shares in place. With twice the devices it holds
    twice the rows.

    Args:
        group_id: name of the group in messages.
        device_list: its devices: indices of GPUs, or open devices, whose streams and memory are
            then used.

    Raises:
        ValueError: no device, or one twice.
        RuntimeError: a device cannot read another's memory (names both), there is no such GPU, or
            khop was built without CUDA.

    Example:
        >>> group = DeviceGroup(0, [device])  # [0, 1]: the first two GPUs
        >>> group.size
        1
    """

    def __init__(self, group_id: int, device_list: Sequence[int | _native.Device]) -> None:
        if not device_list:
            raise ValueError(f"device group {group_id} needs at least one device")
        if len(set(device_list)) < len(device_list):
            raise ValueError(f"device group {group_id} names a device twice (got {device_list})")
        self.group_id = group_id
        self.devices = [_opened(device) for device in device_list]
        self.native = _native.DeviceGroup(self.devices)

    @property
    def size(self) -> int:
        """Number of devices in the group."""
        return len(self.devices)

    def __repr__(self) -> str:
        """Return the group's name and devices."""
        return f"DeviceGroup({self.group_id}, {[device.name for device in self.devices]})"


class Served(NamedTuple):
    """Numbers of rows that a `DeviceFeature` has gathered, by the memory that they came from.

    Attributes:
        device: rows from the memory of the device or of its peers.
        host: rows from host memory.

    Example:
        >>> Served(device=3, host=1).share
        0.75
    """

    device: int
    host: int

    @property
    def share(self) -> float:
        """Fraction of the gathered rows that came from device memory. Without rows, 0."""
        return self.device / max(1, self.device + self.host)


class DeviceFeature:
    """Rows of a feature table, gathered on a device.

    Args:
        feature: the table. Must not be changed: rows that stay on the host are read in place, also
            from a mapped file. Encoded rows of a folder are gathered as they are stored and widened
            on the way. The rows of other stores are read into memory first.
        device: the device that gathers: a GPU or an emulated device.
        mode: 'CUDA', 'ZERO_COPY' or 'CPU'.
        split_ratio: share of the rows that lie in device memory, with mode 'CUDA'. If None, all.
        budget: in place of `split_ratio`, bytes of each device's memory that the table may take, or
            a text such as '2GB'.
        hotness: [num_rows] probability that a batch needs each row (`NeighborSampler.sample_prob`),
            or how often it was needed, or a function that returns it. Selects the rows for device
            memory. Required if these are some of the rows, but not all.
        group: devices that share the rows in device memory, `device` among them. If None, `device`
            alone. `on` makes the tables of the group's other devices. A `NodeGroup` are the GPUs
            of all trainers of this machine, which make the table together.

    Attributes:
        num_rows: number of rows.
        row_shape: shape of one row, () for 1-D features.
        dtype: name of the values' dtype.
        shards: division of the rows among the devices and the host, with expected shares.
        expected_share: expected share of a batch's rows that are in device memory.

    Raises:
        ValueError: an unknown mode, or a group without the device. A ratio outside [0, 1], ratio
            and budget together, or one of them without mode 'CUDA'. Hotness of another length, or
            missing although it is required.
        RuntimeError: a CUDA call failed, which the message names.

    Example:
        >>> table = Feature(np.arange(6, dtype=np.float32))
        >>> on_device = DeviceFeature(table, device, split_ratio=0.5, hotness=[1, 0, 1, 0, 1, 0])
        >>> on_device.num_hot
        3
    """

    def __init__(
        self,
        feature: RowStore,
        device: _native.Device,
        mode: str = "CUDA",
        split_ratio: float | None = None,
        budget: int | str | None = None,
        hotness: ArrayLike | Callable[[], ArrayLike] | None = None,
        group: DeviceGroup | NodeGroup | None = None,
    ) -> None:
        if mode not in ("CPU", "ZERO_COPY", "CUDA"):
            raise ValueError(f"mode must be 'CPU', 'ZERO_COPY' or 'CUDA' (got '{mode}')")
        if split_ratio is not None and budget is not None:
            raise ValueError("give split_ratio or budget, not both")
        if mode != "CUDA" and not (split_ratio is None and budget is None and group is None):
            raise ValueError(
                f"split_ratio, budget and group are about rows in device memory: mode '{mode}' "
                "has none, use mode 'CUDA'"
            )
        self.group = group if isinstance(group, DeviceGroup) else DeviceGroup(0, [device])
        self._check_member(device)
        self.feature = feature
        self.num_rows, self.row_shape = feature.num_rows, feature.row_shape
        self.dtype = feature.dtype
        self._dtypes = (feature.dtype, storage_dtype(feature.dtype).name)
        stored = feature.as_stored
        self._encoding = None if stored is feature else stored.encoding
        self._stored = feature if self._encoding is None else stored
        self.mode = mode
        if hotness is not None and not callable(hotness):
            hotness = checked_hotness(hotness, feature.num_rows)
        row_bytes = self._stored.delivered.nbytes

        def divide(num_devices: int) -> Division:
            heat = checked_hotness(hotness(), feature.num_rows) if callable(hotness) else hotness
            if mode != "CUDA":
                return on_host(num_devices)
            return divide_rows(feature.num_rows, row_bytes, num_devices, split_ratio, budget, heat)

        self._peers: Peers | None = None
        if isinstance(group, NodeGroup):
            self._peers = group.peers
            table = self._array(), self._stored.dtype
            self._hot, division = share_rows(group, *table, device, divide)
        else:
            division = divide(self.group.size)
            self._hot = None
            if division.rows is None or len(division.rows) > 0:
                self._hot = _native.HotRows(
                    self.group.native, self._array(), division.rows, division.replicated
                )
        self.hot_rows: Int64Array | None = division.rows
        self.shards = shards_of(division, feature.num_rows, row_bytes)
        self.expected_share = self.shards.own + self.shards.peer
        self._use(device)

    def _array(self) -> Array:
        """Return all rows as they are stored, as an array that the kernels take."""
        array = self._stored.array
        if array.flags.aligned:
            return array
        return bytes_of_rows(array)  # a mapped array may begin at any byte of its file

    def _check_member(self, device: _native.Device) -> None:
        if device not in self.group.devices:
            raise ValueError(f"device '{device.name}' is not one of those of {self.group}")

    def _use(self, device: _native.Device) -> None:
        # Mode 'CUDA' without rows in device memory is mode 'ZERO_COPY'.
        mode = "ZERO_COPY" if self.mode == "CUDA" and self._hot is None else self.mode
        self.device = device
        self._torch_index = int(device.name.partition(":")[2]) if device.is_cuda else -1
        options: dict[str, Any] = {}
        if self._encoding is not None:
            encoding = self._encoding
            options = {"encoding": encoding.name, "scale": encoding.scale, "zero": encoding.zero}
        self._table = _native.DeviceTable(device, self._array(), mode, self._hot, **options)

    def on(self, device: _native.Device) -> DeviceFeature:
        """Return the same table for another device of the group, with the same hot rows.

        Raises:
            ValueError: the device is not in the group.
        """
        self._check_member(device)
        other = copy.copy(self)
        other._use(device)
        return other

    @property
    def num_hot(self) -> int:
        """Number of rows in device memory, over all devices of the group."""
        return 0 if self._hot is None else self._hot.num_rows

    @property
    def place(self) -> str:
        """Memory that the rows lie in.

        'device', 'mapped' (host memory read in place), 'pinned copy' (of host memory that the
        driver would not register), 'device, mapped', 'device, pinned copy' or 'host'.
        """
        return self._table.place

    @property
    def served(self) -> Served:
        """Numbers of rows that this device gathered, by the memory that they came from.

        Their fraction in device memory can be compared with `expected_share`. Waits for gathers
        with `wait=False`. Raises IndexError if one of their rows did not exist.
        """
        return Served(*self._table.served)

    @property
    def served_by_peers(self) -> int:
        """Number of rows of `served.device` that came from the memory of other devices. Waits."""
        return self._table.served_by_peers

    def reset_served(self) -> None:
        """Reset the counts of `served` to 0."""
        self._table.reset_served()

    def gather(self, rows: Any, out: Any, num_threads: int = 1, wait: bool = True) -> Any:
        """Copy rows: out[i] = feature[rows[i]].

        The copy runs on the device's CUDA stream. Work on `rows` or `out` on other streams must be
        done before.

        Args:
            rows: [n] int32 or int64 in the device's memory (in mode 'CPU' also a NumPy array).
            out: [n, *row_shape] in the device's memory, of the feature's dtype (bfloat16 also as
                uint16).
            num_threads: threads to use in mode 'CPU', if the copy is long enough to pay for them.
            wait: wait until the device has checked that all rows exist. If False, only start the
                copy. The error for a row that does not exist is then raised by `served`, or by the
                next gather that waits.

        Returns:
            `out`.

        Raises:
            IndexError: a row does not exist. The message names the first. `out` is then undefined.
            TypeError: `out` or `rows` has another dtype.
            ValueError: `out` has another shape, or an array lies in other memory.
            RendezvousError: the GPU of another trainer has some of the rows, and it has ended.
        """
        if self._peers is not None:
            self._peers.check()
        name = str(out.dtype).removeprefix("torch.")
        if name not in self._dtypes:
            raise TypeError(f"out must have dtype '{self.dtype}' (got '{name}')")
        shape = (len(rows), *self.row_shape)
        if out.shape != shape:
            raise ValueError(f"out must have shape {shape} (got {tuple(out.shape)})")
        if self._is_plain(rows) and self._is_plain(out) and _are_ids(rows):
            address, width = rows.data_ptr(), rows.element_size()
            self._table.gather_at(address, width, shape[0], out.data_ptr(), num_threads, wait)
        else:
            self._table.gather(rows, out, num_threads, wait)
        return out

    def _is_plain(self, array: Any) -> bool:
        """Return True for a contiguous torch tensor in the device's memory.

        For such a tensor `gather` passes its address. Importing the tensor by DLPack would take
        longer than starting a gather.
        """
        return (
            hasattr(array, "data_ptr")
            and (array.is_cuda if self.device.is_cuda else array.is_cpu)
            and array.get_device() == self._torch_index
            and array.is_contiguous()
        )


def _are_ids(tensor: Any) -> bool:
    return tensor.dim() == 1 and str(tensor.dtype) in ("torch.int64", "torch.int32")


def _opened(device: int | _native.Device) -> _native.Device:
    if isinstance(device, _native.Device):
        return device
    if not hasattr(_native, "cuda_device"):
        raise RuntimeError(f"GPU {device} cannot be used: khop was built without CUDA")
    return _native.cuda_device(device)
