"""Images of `examples/k8s`, built without a container engine: each in an empty environment.

COPY and RUN of a Dockerfile are carried out: `pip` is that of the environment, and /tmp a folder of
it. Packages of trainers are resolved, not downloaded. A graph server runs from its environment,
which has no torch, and a client's batches are compared with loaders in memory.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import torch

from khop.distributed import (
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
    init_client,
    shutdown_client,
)
from khop.loader import NeighborLoader
from support import launching
from support.cluster import jobs
from support.cluster.launched import COMMON, digest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "k8s"
_NAMED = ("khop", "torch", "torch-geometric", "ray")


def instructions(name: str) -> list[tuple[str, str]]:
    """Return (instruction, rest) of each line of a Dockerfile."""
    text = re.sub(r"^#.*\n", "", (FOLDER / name).read_text(), flags=re.M).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(key, rest) for key, rest in lines]


def run(folder: Path) -> dict[str, object]:
    """Return results of both images."""
    wheels = folder / "wheels"
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels]
    option = "--config-settings=cmake.define.KHOP_CUDA=off"
    subprocess.run([*map(str, words), option, str(ROOT)], check=True)
    (wheel,) = wheels.iterdir()
    server = _built(folder / "server", "Dockerfile.server", wheel)
    trainer = _built(folder / "trainer", "Dockerfile", wheel, PIP_DRY_RUN="1")
    return {"Dockerfile.server": {**server, **_served(folder)}, "Dockerfile": trainer}


def _built(image: Path, name: str, wheel: Path, **variables: str) -> dict[str, object]:
    """Carry COPY and RUN out. Return the sizes of installed packages, or those that would be."""
    environment = image / "environment"
    venv.create(environment, with_pip=True)
    work = image / "work"
    for path in (image / "tmp", work):
        path.mkdir()
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    alone = {"PATH": path, "HOME": str(image), **variables}
    pip = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "http", "HTTP"))}
    said = ""
    for key, rest in instructions(name):
        if key == "COPY":
            *sources, target = rest.split()
            for source in sources:
                file = wheel if source.endswith(".whl") else FOLDER / source
                shutil.copy(file, image / "tmp" if target == "/tmp/" else work)
        elif key == "RUN":
            command = rest.replace("/tmp/", f"{image}/tmp/")
            done = subprocess.run(
                command, shell=True, cwd=work, env={**pip, **alone}, check=True,
                capture_output=True, text=True,
            )  # fmt: skip
            said += done.stdout
    if variables:
        packages = re.findall(
            r"(\S+)-(\S+)", " ".join(re.findall("^Would install (.*)", said, re.M))
        )
        versions = {entry: version for entry, version in packages if entry in _NAMED}
        return {"packages that pip would install": len({*packages}), **versions}
    packages = next((environment / "lib").glob("python*/site-packages"))
    sizes = {entry.name: _bytes(entry) for entry in packages.iterdir() if entry.name != "pip"}
    (command,) = (rest for key, rest in instructions(name) if key == "CMD")
    words = shlex.split(command.strip("[]").replace(",", " "))
    program = environment / "bin" / words[0]
    subprocess.run([program, *words[1:]], env=alone, check=True, stdout=subprocess.DEVNULL)
    largest = sorted(sizes, key=lambda entry: -sizes[entry])[:3]
    return {
        "MB": round(sum(sizes.values()) / 1e6, 1),
        "largest": {entry: round(sizes[entry] / 1e6, 1) for entry in largest},
        "has torch": "torch" in sizes,
    }


def _bytes(entry: Path) -> int:
    files = entry.rglob("*") if entry.is_dir() else [entry]
    return sum(path.stat().st_blocks * 512 for path in files if path.is_file())


def _served(folder: Path) -> dict[str, object]:
    """Serve a folder from the environment without torch. Compare a client's batches."""
    parts, port = launching.partitioned(folder), jobs.free_port()
    binaries = folder / "server/environment/bin"
    keys = folder / "keys"
    subprocess.run([binaries / "khop", "keygen", keys], check=True, stdout=subprocess.DEVNULL)
    words = ("serve", parts, "--master", f"127.0.0.1:{port}", "--num-clients", 1)
    words = (*words, "--part", 0, "--part", 1, "--key-file", keys / "server.key")
    server = subprocess.Popen(
        [binaries / "khop", *map(str, words)],
        env={"PATH": str(binaries), "HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    init_client(1, 1, 0, "127.0.0.1", port, key_file=keys / "client.key")
    options = RemoteDistSamplingWorkerOptions(num_workers=1)
    seeds = torch.arange(500)
    loader = DistNeighborLoader(None, [4, 4], seeds, worker_options=options, **COMMON)
    same = digest(loader) == digest(NeighborLoader(jobs.make_graph(), [4, 4], seeds, **COMMON))
    shutdown_client()
    _, error = server.communicate(timeout=60)
    return {"status of khop serve": server.returncode, "batches equal": same or error}
