"""Checks of manifests against the schemas of their formats, which come inside of packages."""

import functools
import json
import re

import jsonschema
import kubernetes_validate
from check_jsonschema.builtin_schemas import get_builtin_schema
from referencing import Registry, Resource

import manifests

# Sidecars are stable since this version of Kubernetes.
VERSION = "1.33"


@functools.cache
def validator(kind, api_version):
    """Validator of a kind of resource: that of `kubernetes_validate.validate`, which reads 2 MB for each document."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    folder = f"kubernetes-json-schema/v{VERSION}.0-local-strict"
    read = functools.partial(kubernetes_validate.utils.schema_contents, desired_version=VERSION)
    schema = read(f"{folder}/{kind.lower()}-{group}.json")
    registry = definitions(folder) @ Registry()
    registry = Resource.from_contents(schema) @ registry
    return jsonschema.validators.Draft202012Validator(schema, registry=registry)


@functools.cache
def definitions(folder):
    path = f"{folder}/_definitions.json"
    return Resource.from_contents(kubernetes_validate.utils.schema_contents(path, desired_version=VERSION))


@functools.cache
def compose_validator():
    schema = get_builtin_schema("vendor.compose-spec")
    return jsonschema.validators.validator_for(schema)(schema)


def check(root):
    """Faults of all files, one line each."""
    faults = []
    for path in sorted((root / "deploy/compose").glob("*.yaml")):
        name = str(path.relative_to(root))
        try:
            document = manifests.documents(path.read_text(), name)[0]
        except manifests.Fault as fault:
            faults.append(str(fault))
            continue
        errors = compose_validator().iter_errors(document)
        faults += [f"{name}: {where(error)}: {error.message[:200]}" for error in errors]
    for path in sorted((root / "deploy/kubernetes").rglob("*.yaml")):
        name = str(path.relative_to(root))
        try:
            documents = manifests.documents(path.read_text(), name)
        except manifests.Fault as fault:
            faults.append(str(fault))
            continue
        if path.name == "kustomization.yaml" or path.name.endswith(".patch.yaml"):
            continue
        for document in documents:
            try:
                errors = validator(document["kind"], document["apiVersion"]).iter_errors(json.loads(json.dumps(document)))
                faults += [f"{name}: {where(error)}: {error.message[:200]}" for error in errors]
            except (FileNotFoundError, KeyError) as error:
                faults.append(f"{name}: no schema: {error}")
    return faults


def where(error):
    return ".".join(map(str, error.absolute_path)) or "document"
