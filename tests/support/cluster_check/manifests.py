"""Manifests of `examples/k8s`, checked by the schemas of Kubernetes and of the operators.

Schemas of Kubernetes are those of the package kubernetes-validate. `crds` is a folder with the
operators' CustomResourceDefinitions. Fields that a schema does not have are errors.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "k8s"
BUILT_IN = ("v1", "apps/v1", "batch/v1")


def run(folder: Path, crds: Path | None) -> dict[str, Any]:
    """Return results of all manifests, checked in an environment of their own."""
    import json

    environment = folder / "validating"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "kubernetes-validate", "pyyaml"]
    subprocess.run(pip, check=True)
    words = [python, __file__, *([] if crds is None else [crds])]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def problems(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield what is wrong with an object, by a schema of a CustomResourceDefinition."""
    from jsonschema import Draft7Validator

    for error in Draft7Validator(closed(schema)).iter_errors(value):
        yield f"{path}{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"


def closed(schema: Any) -> Any:
    """Return a schema that refuses unknown fields, unless it keeps them explicitly."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(entry) for name, entry in schema.items()}
    keeps = schema.get("x-kubernetes-preserve-unknown-fields")
    fields = schema.get("properties")
    if isinstance(fields, dict) and not keeps and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made


def main(crds: list[str]) -> None:
    """Print results as JSON: {file: {kind: problems, or the version of its schema}}."""
    import json

    import kubernetes_validate
    import yaml

    definitions = {}
    for file in Path(crds[0]).glob("*.yaml") if crds else ():
        for one in yaml.safe_load_all(file.read_text()):
            for version in one["spec"]["versions"]:
                key = f"{one['spec']['group']}/{version['name']}", one["spec"]["names"]["kind"]
                definitions[key] = version["schema"]["openAPIV3Schema"]
    latest = kubernetes_validate.latest_version()
    results: dict[str, Any] = {}
    for file in sorted(FOLDER.glob("*.yaml")):
        results[file.name] = {}
        for one in yaml.safe_load_all(file.read_text()):
            version, kind = one["apiVersion"], one["kind"]
            if version in BUILT_IN:
                try:
                    kubernetes_validate.validate(one, latest, strict=True)
                    found: Any = f"valid by Kubernetes {latest}"
                except kubernetes_validate.ValidationError as error:
                    found = [error.message[:300]]
            elif (version, kind) in definitions:
                schema = definitions[version, kind]
                # The server checks these by itself.
                schema["properties"]["metadata"] = {"type": "object"}
                found = list(problems(one, schema)) or f"valid by {version}"
            else:
                found = "no schema was given"
            results[file.name][kind] = found
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
