"""Manifests and images for Kubernetes: their structure, their commands, and the script in them.

`scripts/cluster_check kubernetes` applies the schemas, and carries the Dockerfiles out.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from khop.cli.main import parser_of_all
from support import processes
from support.cluster import jobs
from support.cluster_check.images import FOLDER, instructions

yaml = pytest.importorskip("yaml")

MANIFESTS = sorted(FOLDER.glob("*.yaml"))
IMAGES = {"REGISTRY/khop-train": "Dockerfile", "REGISTRY/khop-serve": "Dockerfile.server"}


def objects(file):
    return list(yaml.safe_load_all(file.read_text()))


def pods(value):
    """All templates of pods in a manifest, as (template, the part that has its replicas)."""
    if isinstance(value, dict):
        if "template" in value:
            yield value["template"], value
        else:
            for entry in value.values():
                yield from pods(entry)
            return
    elif isinstance(value, list):
        for entry in value:
            yield from pods(entry)


def containers():
    for file in MANIFESTS:
        for one in objects(file):
            for template, above in pods(one.get("spec", {})):
                for container in template["spec"]["containers"]:
                    yield pytest.param(one, above, template, container, id=file.stem)


def commands(container):
    """Command lines of a container, each as words. Those of a shell begin with `khop`."""
    words = [*container.get("command", []), *container.get("args", [])]
    if words[:2] != ["sh", "-c"]:
        return [words] if words else []
    lines = words[2].replace("\\\n", " ").splitlines()
    found = [shlex.split(re.sub(r"\$\w+", "0", line.removeprefix("exec "))) for line in lines]
    return [line for line in found if line and line[0] == "khop"]


def parsed(words):
    """Arguments of a command of khop, read by its own parser."""
    assert words[0] == "khop"
    return parser_of_all().parse_args(words[1:])


def gibibytes(text):
    return int(re.fullmatch(r"(\d+)Gi", text)[1])


def test_there_are_all():
    found = {file.stem: [one["kind"] for one in objects(file)] for file in MANIFESTS}
    assert found == {
        "graph-servers": ["Service", "StatefulSet"],
        "indexed-job": ["Service", "Job"],
        "pytorchjob": ["PyTorchJob"],
        "rayjob": ["RayJob"],
    }


@pytest.mark.parametrize(("one", "above", "template", "container"), list(containers()))
def test_containers(one, above, template, container):
    """Names, volumes, images, and memory that is requested as it is limited."""
    assert (FOLDER / IMAGES[container["image"]]).is_file()
    assert one["metadata"]["name"]
    volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
    assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    if one["kind"] == "PyTorchJob":  # the operator looks for this name
        assert container["name"] == "pytorch"
    assert "hostPath" not in str(template)


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_memory_adds_up(file):
    """A comment says what each request is made of. Arenas and caches are as in the commands."""
    text = re.sub(r"\n\s*# ", " ", file.read_text())
    sums = re.findall(r"(\d+)Gi = (.*?)(?:\n|requests)", text)
    assert sums
    for total, parts in sums:
        assert sum(map(int, re.findall(r"(\d+)Gi ", parts))) == int(total)
        assert re.search(rf"memory: {total}Gi", text)
        (arena,) = re.findall(r"(\d+)Gi arena", parts)
        (bound,) = set(re.findall(r"--buff\w+-(?:size|limit)[ ,]+(\d+)G", text))
        assert arena == bound
        if "--cache-memory" in text:
            (rows,) = re.findall(r"(\d+)Gi rows", parts)
            assert {rows} == set(re.findall(r"--cache-memory[ ,]+(\d+)G", text))


@pytest.mark.parametrize(("one", "above", "template", "container"), list(containers()))
def test_commands(one, above, template, container):
    """They are parsed by khop. Numbers of pods agree with numbers in commands and variables."""
    for words in commands(container):
        arguments = parsed(words)
        if arguments.command == "run":
            check_training(arguments.words)
        else:
            assert arguments.num_servers == above["replicas"]
            host, _, port = arguments.master.rpartition(":")
            name = one["metadata"]["name"]
            assert host == f"{name}-0.{one['spec']['serviceName']}"
            assert int(port) == arguments.port == container["ports"][0]["containerPort"]
    if one["kind"] == "Job":
        variables = {entry["name"]: entry["value"] for entry in container["env"]}
        assert int(variables["WORLD_SIZE"]) == above["completions"] == above["parallelism"]
    if one["kind"] == "RayJob":
        python, script, option, number, separator, *words = shlex.split(one["spec"]["entrypoint"])
        assert (python, option, separator) == ("python", "--num-workers", "--")
        assert int(number) == one["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"]
        assert f"/job/{Path(script).name}" == script
        check_training(["python", "train.py", *words])


def check_training(words):
    """The script is in the image, and has these options."""
    words = words[1:] if words[0] == "--" else words
    assert words[:2] == ["python", "train.py"]
    source = (FOLDER / "train.py").read_text()
    assert all(f'"{word}"' in source for word in words if word.startswith("--"))


def test_services_find_their_pods():
    """They have no address of their own, and name pods before these are ready."""
    for name in ("indexed-job", "graph-servers"):
        service, job = objects(FOLDER / f"{name}.yaml")
        spec = service["spec"]
        assert spec["clusterIP"] == "None" and spec["publishNotReadyAddresses"] is True
        if job["kind"] == "Job":
            assert spec["selector"] == {"job-name": job["metadata"]["name"]}
            assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
        else:
            assert spec["selector"] == job["spec"]["template"]["metadata"]["labels"]
            assert job["spec"]["serviceName"] == service["metadata"]["name"]


@pytest.mark.parametrize("name", IMAGES.values())
def test_images(name):
    """What they copy is there, their command is one of khop, and they run as no root."""
    found = instructions(name)
    assert found[0][0] == "FROM"
    copied = [word for key, rest in found if key == "COPY" for word in rest.split()[:-1]]
    assert [f for f in copied if not f.endswith(".whl") and not (FOLDER / f).is_file()] == []
    (command,) = (yaml.safe_load(rest) for key, rest in found if key == "CMD")
    (user,) = (rest for key, rest in found if key == "USER")
    assert int(user) > 0
    if "--help" not in command:
        check_training(parsed(command).words)


def test_packages_of_the_server_are_those_that_khop_needs_without_torch():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
    needed = {re.split("[><=]", entry)[0] for entry in project["dependencies"]}
    runs = " ".join(rest for key, rest in instructions("Dockerfile.server") if key == "RUN")
    first, second = runs.split("&&")
    assert {*first.split()[2:]} - {"--no-cache-dir"} == needed - {"torch", "torch_geometric"}
    assert "--no-deps" in second


def test_script(debian_parts, tmp_path):
    """Two trainers learn, as two pods of the manifests do."""
    words = ("--parts", debian_parts, "--epochs", 2, "--buffer-size", "64MB")
    command = [sys.executable, *map(str, (FOLDER / "train.py", *words))]
    port, options = jobs.free_port(), {"stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    variables = [jobs.variables_of_torchrun(rank, 2, "127.0.0.1", port) for rank in range(2)]
    pods = [
        subprocess.Popen(command, env=processes.environment(**own, OMP_NUM_THREADS="1"), **options)
        for own in variables
    ]
    printed = [pod.communicate(timeout=120)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0]
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", printed[0])]
    assert len(losses) == 2 and losses[1] < losses[0]
