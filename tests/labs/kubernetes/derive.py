"""Write ``pytorchjob.schema.json`` again, from what the two projects publish on PyPI.

    pip download --no-deps kubeflow-training==1.9.4 kubernetes-validate==1.37.0
    python tests/labs/kubernetes/derive.py kubeflow_training-*.whl kubernetes_validate-*.whl

``kubeflow-training`` is the training operator's own SDK: a Python class for each of its OpenAPI definitions,
with every field's name, type and whether it may be absent. What lies below a pod's template, and metadata,
are Kubernetes' own definitions, in the strict form, which refuses fields that don't exist. Both projects are
under the Apache License 2.0. Only what a PyTorchJob reaches is kept, without the descriptions.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

DEFINITIONS = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict/_definitions.json"
OUT = Path(__file__).with_name("pytorchjob.schema.json")
ROOT = "KubeflowOrgV1PyTorchJob"
PLAIN: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "float": {"type": "number"},
    "object": {"type": "object"},
    "datetime": {"type": "string", "format": "date-time"},
    "Quantity": {"type": ["string", "number"]},
}


def kubeflow(wheel: Path) -> dict[str, Any]:
    """A schema for each class of the SDK, read without importing it."""
    found = {}
    with ZipFile(wheel) as archive:
        for path in archive.namelist():
            if re.fullmatch(r"kubeflow/training/models/kubeflow_org_v1_\w+\.py", path):
                text = archive.read(path).decode()
                one = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
                fields = {
                    node.targets[0].id: ast.literal_eval(node.value)
                    for node in one.body
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
                    if node.targets[0].id in ("openapi_types", "attribute_map")
                }
                names = fields["attribute_map"]
                needed = re.findall(r"Invalid value for `(\w+)`, must not be `None`", text)
                found[one.name] = {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {names[key]: typed(kind) for key, kind in fields["openapi_types"].items()},
                    "required": sorted({names[key] for key in needed}),
                }
    return found


def typed(kind: str) -> dict[str, Any]:
    """The schema of a type as the SDK writes it."""
    if kind in PLAIN:
        return PLAIN[kind]
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        return {"type": "array", "items": typed(match[1])}
    if match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        return {"type": "object", "additionalProperties": typed(match[1])}
    kind = re.sub(r"^K8sIoApi[A-Z][a-z]+(?=V\d)", "", kind)
    return {"$ref": f"#/definitions/{kind}"}


def named(kubernetes: dict[str, Any]) -> dict[str, Any]:
    """Kubernetes' definitions, also by the names under which the SDK refers to them, such as V1ObjectMeta."""
    found = dict(kubernetes)
    for path, schema in kubernetes.items():
        if match := re.search(r"\.(v\w+)\.(\w+)$", path):
            found.setdefault(f"{match[1].capitalize()}{match[2]}", schema)
    return found


def reached(definitions: dict[str, Any]) -> dict[str, Any]:
    """What the root refers to, directly or not, without descriptions."""
    found: dict[str, Any] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = bare(definitions[name])
            waiting += re.findall(r'"#/definitions/([^"]+)"', json.dumps(found[name]))
    return dict(sorted(found.items()))


def bare(schema: Any) -> Any:
    """Without descriptions and extensions; references point into this file."""
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return {"$ref": "#/definitions/" + schema["$ref"].rpartition("/")[2]}
    return {
        key: {name: bare(part) for name, part in value.items()} if key == "properties" else bare(value)
        for key, value in schema.items()
        if key != "description" and not key.startswith("x-")
    }


def main(sdk: str, kubernetes: str) -> None:
    with ZipFile(kubernetes) as archive:
        stored = json.loads(archive.read(DEFINITIONS))["$defs"]
    definitions = {**named(stored), **kubeflow(Path(sdk))}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": f"From {Path(sdk).name} and {Path(kubernetes).name}, Apache License 2.0, by derive.py",
        "$ref": f"#/definitions/{ROOT}",
        "definitions": reached(definitions),
    }
    OUT.write_text(json.dumps(schema, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
