"""Groups of GPUs that share hot rows over NVLink."""

from __future__ import annotations

from collections.abc import Sequence

from khop import _native


class DeviceGroup:
    """Devices that read each other's memory, so that hot rows are stored once for all of them.

    As in GraphLearn-for-PyTorch: where GPUs are linked in islands, each island is a group, holds
    each hot row once, and its devices read the shares of the others in place. With twice the
    devices a group holds twice the rows.

    Args:
        group_id: the group's number, for messages.
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
        """Number of devices."""
        return len(self.devices)

    def __repr__(self) -> str:
        """Return the group's number and devices."""
        return f"DeviceGroup({self.group_id}, {[device.name for device in self.devices]})"


def _opened(device: int | _native.Device) -> _native.Device:
    if isinstance(device, _native.Device):
        return device
    if not hasattr(_native, "cuda_device"):
        raise RuntimeError(f"GPU {device} cannot be used: khop was built without CUDA")
    return _native.cuda_device(device)
