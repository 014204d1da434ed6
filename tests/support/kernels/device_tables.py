"""Tables of attributes from which devices gather, in every mode."""

import numpy as np

from khop import _native
from support.devices import empty, get, open_device, put

MODES = ["CUDA", "ZERO_COPY", "CPU", "split", "split 3", "CUDA 3", "ZERO_COPY sorted"]
MODES += ["split 2 sorted", "split 3 replicated"]
"""'split': hot rows on the device; a number: on as many devices that read each other's; 'sorted':
the host's rows are read in the order of the table, however few; 'replicated': half of the hot rows
lie on each device."""

SHARE = 0.3


def group_of(device, size=1):
    """Return the group of a device and `size` - 1 others whose memory it reads."""
    kind = "cuda" if device.is_cuda else "emulated"
    return _native.DeviceGroup([device] + [open_device(kind, 1 + i) for i in range(size - 1)])


def hot_ids(num_rows, seed=0):
    """Return the ids of the hot rows of a split table."""
    rng = np.random.default_rng(seed)
    return rng.permutation(num_rows)[: int(SHARE * num_rows)].astype(np.int64)


def open_table(device, array, mode, **how):
    """Return a table on a device, in one of `MODES`. `how` has further arguments of it."""
    where, *options = mode.split()
    if "sorted" in options:
        how["sorts_from"] = 1
    sizes = [int(option) for option in options if option.isdecimal()]
    if where != "split" and not sizes:
        return _native.DeviceTable(device, array, where, **how)
    rows = hot_ids(len(array)) if where == "split" else None
    replicated = len(rows) // 2 if "replicated" in options else 0
    hot = _native.HotRows(group_of(device, *sizes), array, rows, replicated)
    return _native.DeviceTable(device, array, "CUDA", hot, **how)


def gathered(device, table, rows, shape, dtype):
    """Return the rows that a table gathers."""
    out = empty(device, shape, dtype)
    table.gather(put(device, rows), out)
    return get(out)
