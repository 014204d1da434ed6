"""Nothing that khop reads is run: no pickle, no eval, no shell. By syntax, not by text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import khop

SOURCES = sorted(Path(khop.__file__).parent.rglob("*.py"))
MODULES = {"marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code", "runpy"}
NAMES = {"eval", "exec", "compile", "__import__"}
# Of modules that are needed for something else.
ATTRIBUTES = {
    "pickle": {"UnpicklingError"},  # what torch.load(weights_only=True) raises
    "os": None,
    "subprocess": None,
}
FORBIDDEN = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput")}


def findings(tree: ast.AST) -> list[str]:
    """What in a module could run what it reads."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            root = (node.module or "").split(".")[0]
            if root in MODULES or root == "pickle":
                found.append(f"from {node.module}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = node.value.id
            if owner == "pickle" and node.attr not in ATTRIBUTES["pickle"]:
                found.append(f"pickle.{node.attr}")
            if (owner, node.attr) in FORBIDDEN:
                found.append(f"{owner}.{node.attr}")
        elif isinstance(node, ast.Call):
            found += calls(node)
    return found


def calls(node: ast.Call) -> list[str]:
    """What is wrong with a call."""
    given = {k.arg: k.value for k in node.keywords}

    def is_set(name: str, value: bool) -> bool:
        return isinstance(given.get(name), ast.Constant) and given[name].value is value

    function = node.func
    if isinstance(function, ast.Name):
        return [function.id] if function.id in NAMES else []
    if not isinstance(function, ast.Attribute):
        return []
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    wrong = []
    if (owner, function.attr) == ("torch", "load") and not is_set("weights_only", True):
        wrong.append("torch.load without weights_only=True")
    numpy_load = (owner, function.attr) in {("np", "load"), ("numpy", "load")}
    if numpy_load and not is_set("allow_pickle", False):
        wrong.append("np.load without allow_pickle=False")
    if is_set("allow_pickle", True):
        wrong.append("allow_pickle=True")
    if is_set("shell", True):
        wrong.append("shell=True")
    if function.attr in {"send_pyobj", "recv_pyobj", "send_object_list", "all_gather_object"}:
        wrong.append(function.attr)
    return wrong


def test_no_module_runs_what_it_reads() -> None:
    found = {str(file): findings(ast.parse(file.read_text())) for file in SOURCES}
    assert len(found) > 100
    assert {file: wrong for file, wrong in found.items() if wrong} == {}


def test_one_function_reads_files_of_torch() -> None:
    """It refuses versions of torch that are not safe. A channel reads what its own process sent."""
    found = [
        file.name
        for file in SOURCES
        if "torch.load" in file.read_text()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert found == ["files.py", "channel.py"]


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')",
        "import pickle; pickle.loads(b'')",
        "from pickle import loads",
        "import pickle; f = pickle.Unpickler",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "torch.load(f, weights_only=flag)",
        "np.load(f)",
        "np.load(f, None, True)",
        "subprocess.run('ls', shell=True)",
        "socket.recv_pyobj()",
        "import marshal",
    ],
)
def test_the_search_finds(line: str) -> None:
    assert findings(ast.parse(line))
