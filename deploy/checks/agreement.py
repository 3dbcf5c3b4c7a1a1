"""Checks of manifests against the program, the worker's source and Dynamo's packages."""

import ast
import functools
import importlib.util
import mmap
import os
import re
import subprocess
from pathlib import Path

import manifests

# Values of variables without a default in the compose file.
VALUES = {"MODEL_FOLDER": "/srv/models/model", "RUVLLM_API_KEY": "rk-check"}
# Paths of Dynamo's front end and of a worker's DYN_SYSTEM_PORT.
DYNAMO_PATHS = {"/health", "/live", "/metrics"}
# Variables that only the compiled part of Dynamo's packages reads; the trial looks for them there.
COMPILED = {"DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"}
# Probes that must at least wait so long, in seconds: a start loads a model, a busy machine is slow.
START, STALL = 60, 30
# Seconds between the last step of a shutdown and SIGKILL.
ROOM = 5
WORKER = "scale-out/dynamo"


class Facts:
    """Names that the program and its companions know."""

    def __init__(self, root, program):
        self.root, self.program = root, program
        self.flags = {"server": flags_of(program), "worker": worker_flags(root), "frontend": frontend_flags()}
        self.dynamo = "".join(path.read_text() for path in package("dynamo").rglob("*.py"))
        self.worker = "".join(path.read_text() for path in (root / WORKER).glob("*.py"))
        # Tokens of a block of the default KV-cache type; the live check asks the server.
        policy = (root / "crates/kv-cache/src/policy/mod.rs").read_text()
        self.block_tokens = int(re.search(r"^const MIN_BLOCK_TOKENS: usize = (\d+);", policy, re.M)[1])
        self.version = re.search(r'^version = "(.+)"', (root / "Cargo.toml").read_text(), re.M)[1]

    @functools.cache
    def dynamo_has(self, name):
        """True if a source of Dynamo's packages contains this text."""
        return name in self.dynamo

    @functools.cache
    def program_has(self, name):
        """True if the program contains this text."""
        with open(self.program, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as binary:
            return binary.find(name.encode()) >= 0


def package(name):
    """Folder of an installed package, which is not imported: Dynamo's needs its compiled half."""
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


def flags_of(program):
    """Flags of `ruvllm serve`."""
    text = subprocess.run([program, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^\s+(?:-\w, )?(--[\w-]+)", text, re.M))


def worker_flags(root):
    """Flags of the worker: literals of `add_argument`."""
    return {flag for path in (root / WORKER).glob("*.py") for flag in literals(path.read_text())}


def literals(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            for word in node.args:
                if isinstance(word, ast.Constant) and str(word.value).startswith("--"):
                    yield word.value


def frontend_flags():
    """Flags of Dynamo's front end."""
    found = set()
    folder = package("dynamo")
    for path in [folder / "frontend/frontend_args.py", *(folder / "common/configuration/groups").glob("*.py")]:
        for flag in re.findall(r'flag_name="(--[\w-]+)"', path.read_text()):
            found |= {flag, flag.replace("--", "--no-", 1)}
    return found


def check(facts):
    """Faults of all manifests, one line each."""
    root, faults = facts.root, []
    for name, read in (
        ("compose", lambda: manifests.compose(root, VALUES)),
        *((folder, lambda folder=folder: manifests.kubernetes(root, folder)) for folder in folders(root)),
    ):
        try:
            processes = read()
        except (manifests.Fault, KeyError, TypeError, ValueError) as error:
            faults.append(f"{name}: {error if isinstance(error, manifests.Fault) else f'{type(error).__name__} {error}'}")
            continue
        for process in processes:
            faults += [f"{process.origin}: {fault}" for fault in one(process, processes, facts)]
        faults += together(name, processes)
    for folder in folders(root):
        try:
            faults += references(list(manifests.resources(root, folder)))
        except (manifests.Fault, KeyError, TypeError) as error:
            faults.append(f"{folder}: {error}")
    faults += containerfiles(facts)
    return sorted(set(faults))


def folders(root):
    return [folder for folder in manifests.KUBERNETES if (root / folder / "kustomization.yaml").exists()]


def one(process, processes, facts):
    """Faults of one container."""
    yield from (f"it is not hardened: {name}" for name in process.hardening)
    yield from image(process, facts)
    if process.role == "other":
        return
    yield from flags(process, facts)
    yield from variables(process, facts)
    yield from files(process)
    yield from probes(process, facts)
    if process.role == "server":
        yield from server(process, processes, facts)
    elif process.role == "worker":
        yield from worker(process, processes, facts)
    else:
        yield from frontend(process, facts)


def image(process, facts):
    name, _, tag = process.image.rpartition(":")
    if not name or tag == "latest" or "/" in tag:
        yield f"the image {process.image} has no fixed tag"
    elif name.startswith("ruvllm") and tag != facts.version:
        yield f"the image {process.image} is not of version {facts.version}"


def flags(process, facts):
    for word in process.argv:
        if word.startswith("--") and word.split("=")[0] not in facts.flags[process.role]:
            yield f"the {process.role} has no flag {word.split('=')[0]}"


def variables(process, facts):
    for name in process.env:
        if process.role == "server":
            # Settings have variables that the program composes; `serve --check` knows them.
            known = name.startswith("RUVLLM_SERVER_") or facts.program_has(name)
        else:
            known = name in COMPILED or facts.dynamo_has(name) or (process.role == "worker" and name in facts.worker)
        if not known:
            yield f"the {process.role} reads no variable {name}"


def files(process):
    """Paths of the command line are mounted, and those that are written are writable."""
    for word in process.argv:
        path = word.split("=", 1)[-1]
        if not path.startswith("/") or path.startswith("/opt/ruvllm"):
            continue
        holder = mount_of(process, path)
        if holder is None:
            yield f"nothing is mounted at {path}"
        elif word.startswith("--prefix-dir") and holder.read_only:
            yield f"{path} is mounted read-only"
        elif word.startswith("--prefix-key") and holder.kind in ("secret", "file") and (holder.mode or 0) & 0o077:
            yield f"{path} has the mode {holder.mode:04o}, which --prefix-key refuses"
    for name, path in process.env.items():
        if isinstance(path, str) and path.startswith("/") and mount_of(process, path) is None:
            yield f"nothing is mounted at {path} of {name}"


def mount_of(process, path):
    """The mount that holds a path: the longest one."""
    holders = [mount for mount in process.mounts if path == mount.path or path.startswith(mount.path.rstrip("/") + "/")]
    exact = [mount for mount in holders if mount.kind in ("secret", "file") and mount.path != path]
    return max((mount for mount in holders if mount not in exact), key=lambda mount: len(mount.path), default=None)


def probes(process, facts):
    kinds = {probe.kind for probe in process.probes}
    wanted = {"startupProbe", "readinessProbe", "livenessProbe"} if process.origin.startswith("kubernetes") else {"healthcheck"}
    yield from (f"it has no {kind}" for kind in sorted(wanted - kinds))
    for probe in process.probes:
        if probe.kind in ("startupProbe", "healthcheck") and probe.patience < START:
            yield f"the {probe.kind} gives up after {probe.patience} s; a start may take {START} s"
        if probe.kind == "livenessProbe" and probe.patience < STALL:
            yield f"the livenessProbe restarts after {probe.patience} s; {STALL} s are needed on a busy machine"
        if process.role != "server" and probe.path not in DYNAMO_PATHS:
            yield f"the {probe.kind} asks for {probe.path}, which a {process.role} does not serve"
        if process.role == "server":
            expected = {"livenessProbe": "/health"}.get(probe.kind, "/ready")
            if probe.path != expected:
                yield f"the {probe.kind} asks for {probe.path} instead of {expected}"
        expected = http_port(process, facts)
        if probe.port != expected:
            yield f"the {probe.kind} asks port {probe.port}, the {process.role} listens at {expected}"


def http_port(process, facts):
    if process.role == "server":
        return manifests.configuration(process, facts.root)[1]["listen"]["port"]
    if process.role == "worker":
        return int(process.env.get("DYN_SYSTEM_PORT", -1))
    return int(process.flag("--http-port", 8000))


def server(process, processes, facts):
    config = manifests.configuration(process, facts.root)[1]
    declared = set(process.ports.values())
    ports = {config["listen"]["port"], config["grpc"]["port"]}
    if declared and declared != ports:
        yield f"its ports are {sorted(declared)}, the configuration has {sorted(ports)}"
    if config["listen"]["host"] != "0.0.0.0":
        yield f"listen.host is {config['listen']['host']}: probes and metrics do not reach it"
    keys = config.get("keys", {}).get("file")
    holder = keys and mount_of(process, keys)
    if not holder or (holder.kind in ("secret", "file") and holder.path != keys):
        yield f"keys.file is {keys}, where nothing is mounted"
    drain = config["limits"]["drain_timeout_s"]
    taken = drain
    if process.origin.startswith("kubernetes"):
        taken += sum(worker_shutdown(other) for other in processes
                     if other.role == "worker" and other.network == process.network)
    if process.grace < taken + ROOM:
        yield f"it is killed after {process.grace} s; a shutdown takes up to {taken} s, and {ROOM} s of room"


def worker_shutdown(process):
    """Longest time of a worker from SIGTERM to its end, in seconds."""
    return (int(process.env.get("DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS", 5))
            + int(process.env.get("DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", 30)))


def worker(process, processes, facts):
    servers = [other for other in processes if other.role == "server" and other.network == process.network]
    if not servers:
        yield "no server shares its network"
        return
    name = servers[0].origin.split(" ", 1)[1]
    if name not in process.after:
        yield f"it does not wait for {name}"
    process_port = process.flag("--server", "").rpartition(":")[2]
    config = manifests.configuration(servers[0], facts.root)[1]
    if process_port != str(config["grpc"]["port"]):
        yield f"--server has port {process_port}, gRPC is at {config['grpc']['port']}"
    if "RUVLLM_API_KEY" not in process.env:
        yield "it has no RUVLLM_API_KEY"
    taken = worker_shutdown(process)
    if int(process.env.get("DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS", 5)) < config["limits"]["drain_timeout_s"]:
        yield "requests are cut before limits.drain_timeout_s: raise DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"
    if process.origin.startswith("kubernetes"):
        taken += config["limits"]["drain_timeout_s"]
    if process.grace < taken + ROOM:
        yield f"it is killed after {process.grace} s; a shutdown takes up to {taken} s, and {ROOM} s of room"


def frontend(process, facts):
    block = process.flag("--kv-cache-block-size")
    if block != str(facts.block_tokens):
        yield f"--kv-cache-block-size is {block}, a block of the server has {facts.block_tokens} tokens"
    if process.flag("--router-mode") == "kv" and int(process.flag("--migration-limit", 0)) < 1:
        yield "--migration-limit is 0: requests of a worker that dies are lost"
    taken = process.hook + int(process.env.get("DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", 0))
    if process.grace < taken + ROOM:
        yield f"it is killed after {process.grace} s; a shutdown takes up to {taken} s, and {ROOM} s of room"
    for port in process.ports:
        if isinstance(port, str) and port.count(":") == 1:
            yield f"{port} opens the front end, which asks for no key, to every address of the host"


def together(name, processes):
    """Settings that front ends and workers share."""
    dynamo = [process for process in processes if process.role in ("worker", "frontend")]
    for setting in ("DYN_DISCOVERY_BACKEND", "DYN_FILE_KV", "ETCD_ENDPOINTS", "DYN_EVENT_PLANE"):
        values = {process.env.get(setting) for process in dynamo}
        if len(values) > 1:
            yield f"{name}: front ends and workers differ in {setting}: {', '.join(sorted(map(str, values)))}"
    for process in dynamo:
        folder = process.env.get("DYN_FILE_KV")
        holder = folder and mount_of(process, folder)
        if folder and (holder is None or holder.kind != "volume" or holder.name != "discovery"):
            yield f"{process.origin}: DYN_FILE_KV={folder} is not on the volume discovery"
    for flag, role in (("--served-model-name", "worker"), ("--model", "server"), ("--prefix-key", "server")):
        values = {process.flag(flag) for process in processes if process.role == role}
        if len(values) > 1:
            yield f"{name}: {role}s differ in {flag}"


def references(found):
    """Faults of names by which resources refer to one another."""
    labels = [(labels, spec) for _, _, labels, spec in manifests.pods(found)]
    workloads = {(resource["kind"], resource["metadata"]["name"]) for _, resource in found}
    services = {resource["metadata"]["name"]: resource for _, resource in found if resource["kind"] == "Service"}
    for path, resource in found:
        kind, name, spec = resource["kind"], resource["metadata"]["name"], resource.get("spec", {})
        where = f"{path}: {kind} {name}"
        if kind != "Namespace" and resource["metadata"].get("namespace") != "ruvllm":
            yield f"{where} is not in the namespace ruvllm"
        selector = {"Service": spec.get("selector"), "PodDisruptionBudget": spec.get("selector", {}).get("matchLabels"),
                    "NetworkPolicy": spec.get("podSelector", {}).get("matchLabels")}.get(kind)
        chosen = [pod for own, pod in labels if selector and selector.items() <= own.items()]
        if selector and not chosen:
            yield f"{where} selects no pod"
        names = {port.get("name") for pod in chosen for container in pod.get("initContainers", []) + pod["containers"]
                 for port in container.get("ports", [])}
        ports = [port["targetPort"] for port in spec.get("ports", [])] if kind == "Service" else [
            port["port"] for rule in spec.get("ingress", []) for port in rule.get("ports", [])] if kind == "NetworkPolicy" else []
        for port in ports:
            if isinstance(port, str) and chosen and port not in names:
                yield f"{where} refers to the port {port}, which no pod of its has"
        if kind == "HorizontalPodAutoscaler":
            target = spec["scaleTargetRef"]
            if (target["kind"], target["name"]) not in workloads:
                yield f"{where} scales {target['kind']} {target['name']}, which does not exist"
        if kind == "ConfigMap":
            for address in re.findall(r"https?://([\w.-]+):(\d+)", str(resource.get("data", {}))):
                if not is_served(address[0], int(address[1]), services, found):
                    yield f"{where} refers to {address[0]}:{address[1]}, which no Service has"


def is_served(host, port, services, found):
    """True if a host is a Service with this port, or a pod of a StatefulSet behind one."""
    pod, _, service = host.rpartition(".")
    known = services.get(service)
    if not known or port not in {served["port"] for served in known["spec"]["ports"]}:
        return False
    sets = [resource for _, resource in found if resource["kind"] == "StatefulSet"]
    return not pod or any(
        pod in {f"{resource['metadata']['name']}-{index}" for index in range(resource["spec"]["replicas"])}
        for resource in sets if resource["spec"].get("serviceName") == service)


def containerfiles(facts):
    """Faults of the files that images are built from."""
    features = re.search(r"^\[features\]\n(.*?)^\[", (facts.root / "crates/cli/Cargo.toml").read_text(), re.M | re.S)[1]
    for path in ("deploy/Containerfile", "deploy/worker/Containerfile"):
        text = (facts.root / path).read_text()
        for name in re.findall(r"^FROM (\S+)", text, re.M):
            if not re.search(r":[\w.-]*\d", name):
                yield f"{path}: the base image {name} has no version"
        for feature in re.findall(r"^ARG FEATURES=(\S+)", text, re.M):
            for one_of in feature.split(","):
                if not re.search(rf"^{one_of} = ", features, re.M):
                    yield f"{path}: the program has no feature {one_of}"
        for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.M):
            if not (facts.root / source).exists():
                yield f"{path}: {source} does not exist"
        user = re.findall(r"^USER (\S+)", text, re.M)
        if user != ["65532:65532"]:
            yield f"{path}: its user is {user}"
        words = re.search(r"^ENTRYPOINT (\[.*\])", text, re.M)
        for word in ast.literal_eval(words[1]) if words else []:
            folder = os.path.dirname(word).removeprefix("/opt/ruvllm/")
            if word.startswith("/opt/ruvllm/") and not (facts.root / folder / os.path.basename(word)).exists():
                yield f"{path}: {word} is no file of the repository"

