"""Manifests of the folder `deploy` as processes: command, environment, files, probes, times."""

import functools
import posixpath
import re
import tomllib
from dataclasses import dataclass, field

import yaml

COMPOSE = "deploy/compose/compose.yaml"
# Folder of keys beside the compose file, which the operator makes.
KEYS = "./keys"
KUBERNETES = ("deploy/kubernetes/base", "deploy/kubernetes/autoscaling")


class Fault(Exception):
    """A manifest that cannot be read."""


class Strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML in which a key occurs once in a mapping."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise Fault(f"line {key.start_mark.line + 1}: the key {key.value!r} occurs twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


@dataclass
class Mount:
    """A path inside a container. `source` is a path of the repository, `None` for a volume."""
    path: str
    source: str | None = None
    text: str | None = None
    kind: str = "folder"
    read_only: bool = False
    name: str = ""
    mode: int | None = None


@dataclass
class Probe:
    """A request that tells whether a process is well."""
    kind: str
    path: str
    port: int
    # Seconds after which a process that never answers is restarted or left alone.
    patience: int
    interval: int = 5


@dataclass
class Process:
    """A container."""
    origin: str
    role: str
    argv: list
    env: dict
    image: str
    network: str
    mounts: list = field(default_factory=list)
    ports: dict = field(default_factory=dict)
    probes: list = field(default_factory=list)
    # Seconds between SIGTERM and SIGKILL, and those of them that a hook takes before SIGTERM.
    grace: int = 0
    hook: int = 0
    after: list = field(default_factory=list)
    hardening: list = field(default_factory=list)

    def flag(self, name, default=None):
        """Value of `--name=value`."""
        values = [word.split("=", 1)[1] for word in self.argv if word.startswith(f"{name}=")]
        return values[-1] if values else default


@functools.lru_cache(maxsize=64)
def documents(text, where):
    """All documents of a YAML file, which callers do not change."""
    try:
        return [document for document in yaml.load_all(text, Strict) if document is not None]
    except yaml.YAMLError as error:
        raise Fault(f"{where}: {' '.join(str(error).split())}") from error
    except Fault as error:
        raise Fault(f"{where}: {error}") from error


def role(argv):
    """Role of a container, by its command."""
    line = " ".join(argv)
    for name, part in (("server", "ruvllm serve"), ("worker", "ruvllm_worker.py"), ("frontend", "dynamo.frontend")):
        if part in line:
            return name
    return "other"


def seconds(text):
    """Seconds of a duration of the compose specification."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", str(text))
    if not found or not text:
        raise Fault(f"{text!r} is no duration")
    return int(found[1] or 0) * 60 + int(found[2] or 0)


def interpolated(value, values):
    """`value` with the variables of compose files: `${NAME}`, `${NAME:-default}`, `${NAME:?message}`."""
    if isinstance(value, dict):
        return {key: interpolated(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, values) for item in value]
    if not isinstance(value, str):
        return value

    def replace(found):
        name, kind, rest = found[1], found[2], found[3]
        if values.get(name):
            return values[name]
        if kind == ":-":
            return rest
        raise Fault(f"the variable {name} has no value and no default")

    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", replace, value)


def compose(root, values):
    """Processes of the compose file, which are named by their services."""
    document = documents((root / COMPOSE).read_text(), COMPOSE)[0]
    document = interpolated(document, values)
    found = []
    for name, service in document["services"].items():
        argv = list(service.get("entrypoint") or []) + list(service.get("command") or [])
        network = service.get("network_mode", f"service:{name}").removeprefix("service:")
        process = Process(f"compose {name}", role(argv), argv, dict(service.get("environment") or {}),
                          service["image"], network)
        process.after = list(service.get("depends_on") or {})
        process.grace = seconds(service.get("stop_grace_period", "10s"))
        for volume in service.get("volumes") or []:
            source, path, *mode = volume.split(":")
            local = source.startswith((".", "/"))
            process.mounts.append(Mount(path, source if local else None, name=source, read_only=mode == ["ro"],
                                        kind="keys" if source == KEYS else "bind" if local else "volume"))
            if not local and source not in (document.get("volumes") or {}):
                raise Fault(f"{process.origin}: the volume {source} is not declared")
        for path in service.get("tmpfs") or []:
            process.mounts.append(Mount(path, kind="tmpfs", name=path))
        check = service.get("healthcheck")
        if check:
            line = " ".join(check["test"])
            path = re.search(r"(?:GET |:\d+)(/[\w/]*)", line)
            port = re.search(r"127\.0\.0\.1[:/](\d+)", line)
            if not path or not port:
                raise Fault(f"{process.origin}: the healthcheck asks no address of 127.0.0.1")
            every = seconds(check.get("interval", "30s"))
            patience = seconds(check.get("start_period", "0s")) + every * check.get("retries", 3)
            process.probes.append(Probe("healthcheck", path[1], int(port[1]), patience, every))
        for port in service.get("ports") or []:
            process.ports[port] = int(port.split(":")[-1])
        for wanted, holds in (
            ("user 65532", service.get("user") == "65532:65532"), ("read_only", service.get("read_only") is True),
            ("cap_drop ALL", service.get("cap_drop") == ["ALL"]),
            ("no-new-privileges", "no-new-privileges:true" in (service.get("security_opt") or [])),
            ("mem_limit", "mem_limit" in service), ("restart", service.get("restart") == "unless-stopped"),
        ):
            if not holds:
                process.hardening.append(wanted)
        found.append(process)
    return found


def kustomization(root, folder):
    """Files of a folder of resources, those of folders that it refers to included."""
    where = f"{folder}/kustomization.yaml"
    listed = documents((root / where).read_text(), where)[0].get("resources") or []
    present = {path.name for path in (root / folder).glob("*.yaml")} - {"kustomization.yaml"}
    for name in present - set(listed) - patches(root, folder):
        raise Fault(f"{where}: {name} is not listed")
    for name in listed:
        path = root / folder / name
        if path.is_dir():
            yield from kustomization(root, posixpath.normpath(f"{folder}/{name}"))
        elif path.is_file():
            yield f"{folder}/{name}"
        else:
            raise Fault(f"{where}: {name} does not exist")


def patches(root, folder):
    """Names of the patches of a folder."""
    where = f"{folder}/kustomization.yaml"
    return {patch["path"] for patch in documents((root / where).read_text(), where)[0].get("patches") or []}


def resources(root, folder):
    """Resources of a folder with their files."""
    for path in kustomization(root, folder):
        for document in documents((root / path).read_text(), path):
            yield path, document


def pods(found):
    """Workloads: name, labels, specification of pods."""
    for path, resource in found:
        if resource["kind"] in ("Deployment", "StatefulSet"):
            template = resource["spec"]["template"]
            yield path, resource, template["metadata"].get("labels", {}), template["spec"]


def port_number(container, port):
    """Number of a port that is a number or a name."""
    if isinstance(port, int):
        return port
    for declared in container.get("ports", []):
        if declared.get("name") == port:
            return declared["containerPort"]
    raise Fault(f"container {container['name']}: a probe uses the port {port!r}, which is not declared")


def kubernetes(root, folder):
    """Processes of all pods."""
    found = list(resources(root, folder))
    data = {}
    for _, resource in found:
        if resource["kind"] in ("ConfigMap", "Secret"):
            data[resource["kind"], resource["metadata"]["name"]] = resource.get("data", {})
    processes = []
    for _, resource, _, spec in pods(found):
        name = resource["metadata"]["name"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for claim in resource["spec"].get("volumeClaimTemplates", []):
            volumes[claim["metadata"]["name"]] = claim
        sidecars = [container for container in spec.get("initContainers", []) if container.get("restartPolicy") == "Always"]
        for container in spec.get("initContainers", []) + spec["containers"]:
            argv = list(container.get("command", [])) + [str(word) for word in container.get("args", [])]
            process = Process(f"kubernetes {name}/{container['name']}", role(argv), argv, {}, container["image"], name)
            environment(process, container, data)
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    raise Fault(f"{process.origin}: the volume {mount['name']} is not declared")
                process.mounts += mounts(process, mount, volumes[mount["name"]], data)
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(kind)
                if probe and "httpGet" in probe:
                    get = probe["httpGet"]
                    every = probe.get("periodSeconds", 10)
                    process.probes.append(Probe(kind, get["path"], port_number(container, get["port"]),
                                                every * probe.get("failureThreshold", 3), every))
            process.ports = {port.get("name", ""): port["containerPort"] for port in container.get("ports", [])}
            process.grace = spec.get("terminationGracePeriodSeconds", 30)
            hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
            process.hook = int(hook[1]) if hook[:1] == ["sleep"] else 0
            if container not in spec.get("initContainers", []):
                process.after = [f"{name}/{sidecar['name']}" for sidecar in sidecars]
            process.hardening = hardening(spec, container)
            processes.append(process)
    return processes


def environment(process, container, data):
    """Variables of a container."""
    for source in container.get("envFrom", []):
        reference = ("ConfigMap", source["configMapRef"]["name"])
        if reference not in data:
            raise Fault(f"{process.origin}: no ConfigMap {reference[1]}")
        process.env.update(data[reference])
    for variable in container.get("env", []):
        secret = variable.get("valueFrom", {}).get("secretKeyRef")
        if secret and secret["key"] not in data.get(("Secret", secret["name"]), {}):
            raise Fault(f"{process.origin}: the Secret {secret['name']} has no key {secret['key']!r}")
        process.env[variable["name"]] = f"secret:{secret['name']}/{secret['key']}" if secret else variable.get("value", "")


def mounts(process, mount, volume, data):
    """Files and folders of a volume."""
    path, read_only = mount["mountPath"], mount.get("readOnly", False)
    for kind, key in (("ConfigMap", "configMap"), ("Secret", "secret")):
        if key not in volume:
            continue
        name = volume[key].get("name") or volume[key].get("secretName")
        if (kind, name) not in data:
            raise Fault(f"{process.origin}: no {kind} {name}")
        held = data[kind, name]
        items = {item["key"]: item["path"] for item in volume[key].get("items", [])} or {key: key for key in held}
        if mount.get("subPath"):
            items = {key: "" for key, file in items.items() if file == mount["subPath"]}
        missing = [item for item in items if item not in held]
        if missing or not items:
            raise Fault(f"{process.origin}: the {kind} {name} has no key {(missing or [mount.get('subPath')])[0]!r}")
        mode = volume[key].get("defaultMode", 0o644)
        return [Mount(f"{path}/{file}".rstrip("/"), text=held[item], kind="file" if kind == "ConfigMap" else "secret",
                      name=item, read_only=True, mode=mode) for item, file in items.items()]
    kind = "claim" if "persistentVolumeClaim" in volume else "volume"
    return [Mount(path, kind=kind, name=mount["name"], read_only=read_only)]


def hardening(spec, container):
    """Settings of the restricted profile that a container lacks."""
    own, pod = container.get("securityContext", {}), spec.get("securityContext", {})
    wanted = {
        "runAsNonRoot": pod.get("runAsNonRoot") is True,
        "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
        "capabilities": own.get("capabilities", {}).get("drop") == ["ALL"],
        "seccompProfile": pod.get("seccompProfile", {}).get("type") == "RuntimeDefault",
        "automountServiceAccountToken": spec.get("automountServiceAccountToken") is False,
        "limits.memory": "memory" in container.get("resources", {}).get("limits", {}),
    }
    return [name for name, holds in wanted.items() if not holds]


def configuration(process, root):
    """Configuration of a server as text and table."""
    path = process.flag("--config")
    for mount in process.mounts:
        if mount.path == path:
            text = mount.text if mount.text is not None else (root / "deploy/compose" / mount.source).read_text()
            try:
                return text, tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                raise Fault(f"{process.origin}: {path}: {error}") from error
    raise Fault(f"{process.origin}: nothing is mounted at --config={path}")
