"""`khop doctor`: report about a machine and khop's installation, for bug reports.

Every probe is independent: if a probe fails, the report states it, and the other probes run. Torch
is not imported, so that the report is quick and also works where torch is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import mmap
import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from khop.cli.arguments import declare
from khop.cores import affinity, available_cores, available_memory, cpu_quota
from khop.numa import format_cpus, topology
from khop.placement import VARIABLE, Placement, describe, refusals
from khop.plugins import GROUPS
from khop.tables import human_bytes

Section = dict[str, Any]
_PACKAGES = ("torch", "torch_geometric", "numpy", "pyzmq", "tqdm")
_OPTIONAL = (
    *("ogb", "pymetis", "matplotlib", "pandas", "pyarrow", "pyg_lib", "torch_sparse"),
    *("lightning", "ray", "shtab"),
)
_NAMING = ("KHOP_CLUSTER_ENVIRONMENT", "KHOP_TRANSPORT")
_FEWEST_FILES = 1024
_NEEDED = {
    "torch": "loaders need it; partitioning and graph servers do not",
    "torch_geometric": "loaders need it; partitioning and graph servers do not",
}
_FLAGS = ("sse4_2", "avx2", "f16c", "avx512f", "avx512bw", "avx512vl", "asimd", "sve")
_PAGES, _LEAST_CACHED = "pages of the folder", 64 << 20
_FEW_HUGE_PAGES = (
    "the folder is in memory in small pages, as after reads in random order. Where its file system "
    "has large folios, read it anew in sequence: `dd of=FILE oflag=nocache conv=notrunc,fdatasync "
    "count=0` for each file drops it, and `cat FILE > /dev/null` reads it"
)
_HUGEPAGES = Path("/sys/kernel/mm/transparent_hugepage")
_TABLE = """\
folder FOLDER ?         also report the pages of this partition folder
--json                  print JSON
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop doctor` to its parser."""
    declare(parser, _TABLE)


def run(arguments: argparse.Namespace) -> int:
    """Print the report about this machine. Return the exit code 0."""
    sections = report()
    if arguments.folder is not None:
        sections[_PAGES] = _section(lambda: _mapped(arguments.folder))
    advised = advice(sections)
    if arguments.json:
        print(json.dumps({**sections, "advice": advised}, indent=1))
        return 0
    for title, section in sections.items():
        print(title)
        width = max(map(len, section))
        for name, value in section.items():
            print(f"  {name:<{width}}  {_text(value)}")
    print("OK: nothing found that khop needs and does not have" if not advised else "to do")
    for text in advised:
        print(f"  - {text}")
    return 0


def report() -> dict[str, Section]:
    """Return all sections of the report, title -> {name: value}."""
    probes: dict[str, Callable[[], Section]] = {
        "khop": _khop,
        "packages": lambda: {name: _version_of(name) or "not installed" for name in _PACKAGES},
        "optional packages": lambda: {name: _version_of(name) for name in _OPTIONAL},
        "plugins": _plugins,
        "ZeroMQ": _zeromq,
        "system": _system,
        "processor": _processor,
        "memory": _memory,
        "NUMA": _numa,
        "reads of files on disk": _disk,
        "CUDA": _cuda,
        "shared memory": _shared_memory,
        "limits": _limits,
        "liveness": _liveness,
        "transparent huge pages": _huge_pages,
    }
    return {title: _section(probe) for title, probe in probes.items()}


def advice(sections: dict[str, Section]) -> list[str]:
    """Return a line, with the remedy, for each requirement of khop that `sections` lack."""
    packages, sockets = sections["packages"], sections["ZeroMQ"]
    cuda, memory = sections["CUDA"], sections["shared memory"]
    files = sections["limits"].get("RLIMIT_NOFILE", "").partition(" ")[0]
    many_files = not files.isdecimal() or int(files) >= _FEWEST_FILES
    lacks = [
        *(
            (version == "not installed", f"install {name}: {_NEEDED.get(name, 'khop needs it')}")
            for name, version in packages.items()
        ),
        (not sockets.get("curve", True), "install pyzmq's wheel: this ZeroMQ encrypts nothing"),
        (not sockets.get("ipc", True), "install pyzmq's wheel: this ZeroMQ has no local sockets"),
        (memory.get("memfd", True) is not True, "batches need memfd_create: allow it (seccomp)"),
        (not many_files, f"raise the limit of open files, {files}: ulimit -n {_FEWEST_FILES}"),
        (bool(cuda.get("error")), f"CUDA: {cuda.get('error')}"),
        (sections.get(_PAGES, {}).get("few huge pages", False), _FEW_HUGE_PAGES),
        *(("not usable" in str(gpu), f"{name}: {gpu}") for name, gpu in cuda.items()),
    ]
    failed = [
        f"{title} could not be looked at: {section['probe failed']}"
        for title, section in sections.items()
        if "probe failed" in section
    ]
    return [*(text for is_lacking, text in lacks if is_lacking), *failed]


def _section(probe: Callable[[], Section]) -> Section:
    try:
        return probe()
    except Exception as error:  # an incomplete report is better than none
        return {"probe failed": f"{type(error).__name__}: {error}"}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _khop() -> Section:
    from khop import _native
    from khop._version import __version__

    return {
        "version": __version__,
        "extension": Path(_native.__file__).name,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _plugins() -> Section:
    """Return plugins that environment variables name, and installed plugins. Import none."""
    named = {name: os.environ.get(name) for name in _NAMING}
    installed = {g: sorted(e.name for e in metadata.entry_points(group=g)) for g in GROUPS}
    return {**named, **installed}


def _zeromq() -> Section:
    zmq: Any = importlib.import_module("zmq")

    return {
        "libzmq": zmq.zmq_version(),
        **{name: bool(zmq.has(name)) for name in ("curve", "ipc", "draft")},
    }


def _system() -> Section:
    distribution = None
    with contextlib.suppress(OSError):
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME")
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "distribution": distribution,
        "C library": " ".join(platform.libc_ver()) or None,
        "byte order": sys.byteorder,
        "page size": mmap.PAGESIZE,
    }


def _processor() -> Section:
    info = _colon_file("/proc/cpuinfo")
    flags = (info.get("flags") or info.get("Features") or "").split()
    quota = cpu_quota()
    return {
        "model": info.get("model name") or platform.processor() or None,
        "cores": os.cpu_count(),
        "cores of this process": affinity(),
        "CPU quota": None if quota is None else f"{quota:g} cores",
        "cores used": available_cores(),
        "features": [flag for flag in _FLAGS if flag in flags],
    }


def _memory() -> Section:
    info = _colon_file("/proc/meminfo")
    limit, available = _read("/sys/fs/cgroup/memory.max"), available_memory()
    return {
        "total": _kibibytes(info.get("MemTotal")),
        "available": _kibibytes(info.get("MemAvailable")),
        "swap": _kibibytes(info.get("SwapTotal")),
        "limit of the control group": human_bytes(int(limit)) if limit and limit != "max" else None,
        "available to this process": None if available is None else human_bytes(available),
        "overcommit": _read("/proc/sys/vm/overcommit_memory"),
    }


def _numa() -> Section:
    machine = topology()
    section: Section = {
        f"node {node.index}": f"cores {format_cpus(node.cpus) or 'none'}, "
        f"{human_bytes(node.memory)}, distances {' '.join(map(str, node.distances.values()))}"
        for node in machine.nodes
    }
    unknown = "of an unknown node"
    for address, index in machine.gpus.items():
        section[f"GPU {address}"] = unknown if index is None else f"at node {index}"
    num_nodes = len(machine.with_cpus)
    reason = "cores of this process are restricted" if num_nodes > 1 else "one node has cores"
    is_placed = num_nodes > 1 and machine.is_whole
    mask = tuple(sorted(os.sched_getaffinity(0)))
    memory = next((node.index for node in machine.nodes if node.memory), None)
    return {
        **section,
        "this process": describe(),
        VARIABLE: os.environ.get(VARIABLE),
        "auto": "trainers and samplers, node by node" if is_placed else f"places nothing: {reason}",
        "refused": refusals(Placement(mask, memory)),
    }


def _disk() -> Section:
    from khop import _native

    with Path(sys.executable).open("rb") as file:
        reads = _native.DirectReads(file.fileno(), 0, mmap.PAGESIZE, 1)
        section = {"io_uring": reads.uses_ring, "direct I/O (of Python's file)": reads.is_direct}
        reads.close()
    return section


def _cuda() -> Section:
    from khop import _native

    status = dict(_native.cuda_status())
    gpus = status.pop("gpus", [])
    lowest = tuple(status.pop("lowest_capability", (0, 0)))  # (0, 0): unknown
    able = [tuple(gpu["capability"]) >= lowest for gpu in gpus]
    section: Section = dict(status)
    if any(lowest):
        section["built for"] = f"compute capability {_dotted(lowest)} and later"
    section["usable"] = bool(status.get("devices")) and not status.get("error") and any(able)
    for index, gpu in enumerate(gpus):
        section[f"GPU {index}"] = _gpu(gpu, able[index])
    return section


def _gpu(gpu: dict[str, Any], is_able: bool) -> str:
    """Describe a GPU, an entry of `_native.cuda_status()`.

    If khop does not run on it (`is_able` is False), add a remedy.
    """
    files = "can" if gpu["registers_read_only"] else "cannot"
    ahead = tuple(gpu["capability"]) >= (9, 0) and os.environ.get("KHOP_DEPENDENT_LAUNCH") != "0"
    text = (
        f"{gpu['name']}, compute capability {_dotted(gpu['capability'])}, "
        f"{human_bytes(gpu['memory'])}, {gpu['multiprocessors']} multiprocessors, "
        f"{files} read mapped files in place, dependent launch {'on' if ahead else 'off'}"
    )
    architecture = "".join(map(str, gpu["capability"]))
    remedy = f"not usable: build khop with KHOP_CUDA_ARCHITECTURES={architecture}"
    return text if is_able else f"{text}; {remedy}"


def _dotted(capability: Iterable[int]) -> str:
    """Format the numbers of a version as text, such as '9.0' for (9, 0)."""
    return ".".join(map(str, capability))


def _shared_memory() -> Section:
    section: Section = {"memfd": _memfd_works()}
    try:
        usage = shutil.disk_usage("/dev/shm")
        section["/dev/shm"] = f"{human_bytes(usage.total)}, {human_bytes(usage.free)} free"
    except OSError as error:
        section["/dev/shm"] = f"unusable ({error.strerror})"
    return section


def _memfd_works() -> bool | str:
    """Test memory files (memfd), in which khop keeps shared memory: True, False or the error."""
    try:
        descriptor = os.memfd_create("khop-doctor", os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        return f"no ({error})"
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as mapped:
            mapped[:4] = b"khop"
        return os.pread(descriptor, 4, 0) == b"khop"
    except OSError as error:
        return f"no ({error})"
    finally:
        os.close(descriptor)


def _limits() -> Section:
    return {
        "RLIMIT_MEMLOCK": _limit(resource.RLIMIT_MEMLOCK, human_bytes),
        "RLIMIT_NOFILE": _limit(resource.RLIMIT_NOFILE, str),
        "RLIMIT_NPROC": _limit(resource.RLIMIT_NPROC, str),
        "RLIMIT_AS": _limit(resource.RLIMIT_AS, human_bytes),
    }


def _limit(resource_id: int, show: Callable[[int], str]) -> str:
    values = resource.getrlimit(resource_id)
    soft, hard = ("unlimited" if v == resource.RLIM_INFINITY else show(v) for v in values)
    return f"{soft} (at most {hard})"


def _liveness() -> Section:
    from khop.distributed.membership.leases import LEASE_VARIABLE, lease_seconds

    source = f"${LEASE_VARIABLE}" if os.environ.get(LEASE_VARIABLE) else "the default"
    return {"lease": f"{lease_seconds():g} s ({source})"}


def _huge_pages() -> Section:
    settings = {n: _read(str(_HUGEPAGES / n)) for n in ("enabled", "shmem_enabled", "defrag")}
    # The word in brackets: 'madvise' of 'always [madvise] never'.
    return {name: text and re.sub(r".*\[(.*?)\].*", r"\1", text) for name, text in settings.items()}


def _mapped(folder: str) -> Section:
    from khop.cli.mapped_pages import mapped_pages

    pages = mapped_pages(folder)
    cached = f"{human_bytes(pages.cached)} of {human_bytes(pages.nbytes)}"
    return {
        "folder": folder,
        "files in memory": cached,
        "in huge pages": f"{pages.share:.1%}" if pages.cached else None,
        "few huge pages": pages.cached >= _LEAST_CACHED and pages.share < 0.5,
    }


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _colon_file(path: str) -> dict[str, str]:
    """Read a file with lines 'name : value' as a dictionary. Of repeated names the first counts."""
    values: dict[str, str] = {}
    for line in (_read(path) or "").splitlines():
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    return values


def _kibibytes(text: str | None) -> str | None:
    return human_bytes(int(text.split()[0]) * 1024) if text else None
