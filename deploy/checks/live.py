"""Servers of the manifests, run and asked: configuration, keys, probes, metrics, drain."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

import agreement
import manifests
import sandbox

missing = sandbox.missing
# Families of metrics in comments and targets.
METRIC = r"\bruvllm_[a-z_]+\b"


def check(facts):
    """Faults of the first server of each manifest."""
    faults = []
    base = manifests.KUBERNETES[0]
    for read, secret_file in (
        (lambda: manifests.compose(facts.root, agreement.VALUES), manifests.COMPOSE),
        (lambda: manifests.kubernetes(facts.root, base), f"{base}/secret.yaml"),
    ):
        processes = read()
        server = next(process for process in processes if process.role == "server")
        with tempfile.TemporaryDirectory() as folder:
            box = sandbox.Sandbox(facts.root, folder, facts.program)
            box.model = box.folder / "model"
            box.model.mkdir()
            shutil.copy(facts.root / "models/base-q8_0.gguf", box.model / "model.gguf")
            try:
                key = secrets(box, facts, (facts.root / secret_file).read_text(), server.origin)
                faults += served(box, facts, processes, server, key)
            except manifests.Fault as fault:
                faults.append(str(fault))
            finally:
                box.stop()
    return faults


def secrets(box, facts, text, origin):
    """Makes keys by the commands in the comments of a manifest; gives the worker's key."""
    line = re.search(r"ruvllm (key new .*?--file (?:keys/)?keys\.toml)", text)
    if not line:
        raise manifests.Fault(f"{origin}: no comment says how keys are made")
    words = line[1].replace("keys/", "").split()
    made = subprocess.run([facts.program, *words, "--json"], cwd=box.folder, capture_output=True, text=True)
    if made.returncode != 0:
        raise manifests.Fault(f"{origin}: `ruvllm {line[1]}`: {made.stderr.strip()}")
    box.secrets = {"keys.toml": (box.folder / "keys.toml").read_text(), "prefix.key": os.urandom(32)}
    return json.loads(made.stdout)["key"]


def served(box, facts, processes, server, key):
    """Starts a server with what comes before it, and asks it."""
    yield from checked(box, server)
    for process in processes:
        # Init containers end; the container that owns a network in the compose file does not.
        if process.network == server.network and process.role == "other" and process.origin.startswith("kubernetes"):
            done = box.run(process, process.argv)
            if done.returncode != 0:
                yield f"{process.origin}: {done.stderr.strip()}"
    box.start(server)
    for probe in server.probes:
        fault = box.wait(server, probe, probe.patience if probe is server.probes[0] else 5)
        if fault:
            yield fault
            return
    healthcheck = health_command(server, facts)
    if healthcheck:
        done = box.run(server, healthcheck)
        if done.returncode != 0:
            yield f"{server.origin}: the command of the healthcheck fails at a server that is ready: {done.stderr.strip()}"
    yield from called(box, server, facts, key)
    yield from metrics(box, server, facts, key)
    yield from drained(box, server, key)


def checked(box, server):
    """`serve --check` with the configuration as it is in the manifest."""
    local, box.local = box.local, lambda text, network: text
    try:
        done = box.run(server, [word for word in server.argv if not word.startswith("--prefix-key")] + ["--check"])
    finally:
        box.local = local
    if done.returncode != 0:
        yield f"{server.origin}: serve --check: {done.stderr.strip()}"


def health_command(server, facts):
    """Command of a healthcheck of the compose file."""
    if not server.origin.startswith("compose"):
        return None
    document = manifests.documents((facts.root / manifests.COMPOSE).read_text(), manifests.COMPOSE)[0]
    return document["services"][server.origin.split()[1]]["healthcheck"]["test"][1:]


def called(box, server, facts, key):
    """Calls of a worker, with the worker's key."""
    import grpc
    port = manifests.configuration(server, facts.root)[1]["grpc"]["port"]
    protos, services = messages(facts.root)
    with grpc.insecure_channel(f"{box.address(server.network)}:{port}") as channel:
        metadata = (("authorization", f"Bearer {key}"),)
        try:
            found = services.WorkerStub(channel).DescribeModel(
                protos.DescribeModelRequest(), metadata=metadata, timeout=20, wait_for_ready=True)
            if found.block_tokens != facts.block_tokens:
                yield f"{server.origin}: a block has {found.block_tokens} tokens, front ends get {facts.block_tokens}"
            message = protos.GenerateRequest(max_tokens=2)
            message.tokens.ids.extend([1, 2, 3])
            events = list(services.InferenceStub(channel).Generate(message, metadata=metadata, timeout=60))
            if not any(event.WhichOneof("event") == "finish" for event in events):
                yield f"{server.origin}: Generate has no end"
        except grpc.RpcError as error:
            yield f"{server.origin}: a worker's call: {error.code().name}: {error.details()}"


def messages(root):
    """Messages and stubs of the server's `.proto` file; a process reads it once."""
    import sys
    import grpc
    proto = str(root / "crates/server/proto")
    if proto not in sys.path:
        sys.path.insert(0, proto)
    return grpc.protos_and_services("ruvllm/v1/inference.proto")


def metrics(box, server, facts, key):
    """Metrics that the folder `deploy/kubernetes` names."""
    url = f"http://{box.address(server.network)}:{server.probes[0].port}/metrics"
    status, text = sandbox.get(url, {"authorization": f"Bearer {key}"})
    if status != 200:
        yield f"{server.origin}: /metrics: status {status} with the worker's key"
        return
    named = {name for path in (facts.root / "deploy/kubernetes").rglob("*.yaml")
             for name in re.findall(METRIC, path.read_text())} - {"ruvllm_worker"}
    for name in sorted(named):
        if not re.search(rf"^{name}[{{ ]", text, re.M):
            yield f"{server.origin}: a manifest names the metric {name}, which the server has not"


def drained(box, server, key):
    """SIGTERM beside a stream: the stream ends whole, readiness ends at once, the process ends in time."""
    url = f"http://{box.address(server.network)}:{server.probes[0].port}"
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 48, "ignore_eos": True, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {
        "content-type": "application/json", "authorization": f"Bearer {key}"})
    lines, begun = [], threading.Event()

    def read():
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                lines.append(line)
                begun.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    if not begun.wait(30):
        yield f"{server.origin}: a stream does not begin"
        return
    start = time.monotonic()
    box.signal(server, signal.SIGTERM)
    reader.join(60)
    if not any(b"[DONE]" in line for line in lines):
        yield f"{server.origin}: a stream that ran at SIGTERM was cut after {len(lines)} lines"
    child = box.running[server.origin]
    try:
        child.wait(server.grace)
    except subprocess.TimeoutExpired:
        yield f"{server.origin}: the process runs {time.monotonic() - start:.0f} s after SIGTERM"
