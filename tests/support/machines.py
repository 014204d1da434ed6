"""Trees of `/sys` of machines with several NUMA nodes, in the form in which Linux writes them."""

GIB = 1 << 20  # kB


def _node(cpus, gib, distances):
    return {"cpulist": cpus, "meminfo": gib, "distance": distances}


# {name: (online nodes, online cores, {node: its files}, {PCI address: (vendor, class, node)})}
MACHINES = {
    "one socket": ("0", "0-7", {0: _node("0-7", 16, "10")}, {}),
    # Dual Xeon Gold 6130 with hyperthreads: siblings are numbered last.
    "two sockets": (
        "0-1",
        "0-63",
        {0: _node("0-15,32-47", 96, "10 21"), 1: _node("16-31,48-63", 94, "21 10")},
        {
            "0000:00:02.0": ("0x10de", "0x060400", "0"),  # a bridge
            "0000:03:00.0": ("0x102b", "0x030000", "0"),  # the board's own display
            "0000:3b:00.0": ("0x10de", "0x030200", "1"),
            "0000:d8:00.0": ("0x10de", "0x030200", "0"),
            "0000:e0:00.0": ("0x10de", "0x030200", "-1"),
        },
    ),
    "four sockets": (
        "0-3",
        "0-15",
        {n: _node(f"{4 * n}-{4 * n + 3}", 32, d) for n, d in enumerate(
            ("10 21 31 21", "21 10 21 31", "31 21 10 21", "21 31 21 10"))},
        {},
    ),
    # Two Xeons, each as two clusters (SNC-2).
    "sub-NUMA clusters": (
        "0-3",
        "0-15",
        {n: _node(f"{4 * n}-{4 * n + 3}", 32, d) for n, d in enumerate(
            ("10 11 21 21", "11 10 21 21", "21 21 10 11", "21 21 11 10"))},
        {},
    ),
    # Two Xeon Max, HBM in flat mode: nodes 2 and 3 are the HBM of 0 and 1.
    "HBM": (
        "0-3",
        "0-7",
        {0: _node("0-3", 64, "10 21 13 23"), 1: _node("4-7", 64, "21 10 23 13"),
         2: _node("", 16, "13 23 10 23"), 3: _node("", 16, "23 13 23 10")},
        {},
    ),
    "CXL": (
        "0-1", "0-7", {0: _node("0-7", 64, "10 14"), 1: _node("", 256, "14 10")}, {},
    ),
    # A socket without modules: its cores use the other's memory.
    "memory-less": (
        "0-1", "0-7", {0: _node("0-3", 0, "10 20"), 1: _node("4-7", 32, "20 10")}, {},
    ),
    # POWER9: nodes of sockets are 0 and 8, and a GPU's memory is node 252.
    "holes": (
        "0,8,252",
        "0-3,8-11",
        {0: _node("0-3", 128, "10 40 80"), 8: _node("8-11", 128, "40 10 80"),
         252: _node("", 16, "80 80 10")},
        {},
    ),
    # Core 3 is switched off, and so is all of node 1.
    "offline": (
        "0-1", "0-2", {0: _node("0-2", 16, "10 20"), 1: _node("", 16, "20 10")}, {},
    ),
}  # fmt: skip


def write(root, name, isolated=""):
    """Write the tree of a machine into an empty folder, and return the folder."""
    online, cores, nodes, devices = MACHINES[name]
    files = {
        "devices/system/node/online": online,
        "devices/system/cpu/online": cores,
        "devices/system/cpu/isolated": isolated,
    }
    for index, node in nodes.items():
        folder = f"devices/system/node/node{index}"
        files[f"{folder}/cpulist"] = node["cpulist"]
        files[f"{folder}/distance"] = node["distance"]
        total = node["meminfo"] * GIB
        files[f"{folder}/meminfo"] = (
            f"Node {index} MemTotal:       {total} kB\nNode {index} MemFree:        {total // 2} kB"
        )
    for address, (vendor, device_class, node) in devices.items():
        folder = f"bus/pci/devices/{address}"
        files |= {
            f"{folder}/vendor": vendor,
            f"{folder}/class": device_class,
            f"{folder}/numa_node": node,
        }
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root
