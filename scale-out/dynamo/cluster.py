"""Front end, servers and workers of one machine, on loopback: for tests and measurements."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = HERE.parents[1] / "models"
NAME = "base"
# Seconds that a part has to begin.
START = 90


def free_port():
    """A port that is free now; Dynamo takes signed 16 bits for one of them."""
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return listener.getsockname()[1]


def get(url, timeout=5):
    """The JSON document at an address."""
    with urllib.request.urlopen(url, timeout=timeout) as reply:
        return json.load(reply)


def text_at(url, timeout=5):
    """The text at an address."""
    with urllib.request.urlopen(url, timeout=timeout) as reply:
        return reply.read().decode()


def wait_until(true, what, seconds=START):
    """Returns the first true value of `true()`; errors of connections count as false."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if found := true():
                return found
        time.sleep(0.1)
    raise TimeoutError(f"{what}: not within {seconds} s")


class Process:
    """A child with its log."""

    def __init__(self, command, log, environment):
        self.log = log
        self.child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=open(log, "wb"),
            stderr=subprocess.STDOUT, env=environment)

    def is_running(self):
        return self.child.poll() is None

    def kill(self):
        """kill -9."""
        self.child.kill()
        self.child.wait()

    def end(self, seconds=60):
        """TERM, and the exit status."""
        self.child.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds=60):
        """The exit status; kills after so many seconds."""
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def output(self):
        return self.log.read_text(errors="replace")


class Server(Process):
    """A `ruvllm serve` with gRPC."""

    def __init__(self, cluster, name, options=(), model=None, ports=None):
        self.port, self.grpc = ports or (free_port(), free_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = name
        words = [
            *cluster.pinned(), cluster.program, "serve", "--model", model or cluster.model, "--alias", NAME,
            "--port", self.port, "--grpc-port", self.grpc, "--threads", 1, *options]
        super().__init__(words, cluster.folder / f"{name}.server.log", os.environ.copy())

    def is_ready(self):
        if not self.is_running():
            raise RuntimeError(f"the server has ended: {self.output()[-500:]}")
        return get(f"{self.url}/health")


class Worker(Process):
    """A worker in front of a server."""

    def __init__(self, cluster, server, options=(), script=None, prefix=(), environment=None):
        self.server, self.system = server, free_port()
        words = [
            *prefix, *cluster.pinned(), sys.executable, script or HERE / "ruvllm_worker.py",
            "--server", f"127.0.0.1:{server.grpc}", "--model-path", cluster.tokenizer,
            "--served-model-name", NAME, *options]
        # Each worker has a port of its own for metrics.
        environment = cluster.environment | {"DYN_SYSTEM_PORT": str(self.system)} | (environment or {})
        super().__init__(words, cluster.folder / f"{server.name}.worker{cluster.number()}.log", environment)

    def metrics(self):
        return text_at(f"http://127.0.0.1:{self.system}/metrics")


class Cluster:
    """All parts; they end with the `with` block."""

    def __init__(self, program, folder, model=MODELS / "base-q8_0.gguf", cores=None):
        self.program, self.folder, self.model, self.cores = Path(program), Path(folder), Path(model), cores
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "discovery").mkdir(parents=True)
        self.tokenizer = self.folder / NAME
        subprocess.run(
            [sys.executable, HERE / "tokenizer_folder.py", self.model, self.tokenizer], check=True)
        self.environment = os.environ | {
            "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(self.folder / "discovery"),
            "DYN_EVENT_PLANE": "zmq", "DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_SELF_HOST_METADATA": "0", "DYN_SDK_DISABLE_ANSI_LOGGING": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "2", "HF_HUB_OFFLINE": "1",
            "DYN_SYSTEM_HOST": "127.0.0.1",
        }
        self.parts, self.count, self.front = [], 0, None

    def __enter__(self):
        # The parts of a program that is told to end would run on.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        return self

    def __exit__(self, *_):
        for part in reversed(self.parts):
            if part.is_running():
                part.kill()

    def number(self):
        self.count += 1
        return self.count

    def pinned(self):
        """Words that keep a server or a worker on the given cores."""
        return ["taskset", "-c", self.cores] if self.cores else []

    def add(self, part):
        self.parts.append(part)
        return part

    def server(self, name, options=(), model=None, ports=None):
        """Starts a server and waits for it."""
        found = self.add(Server(self, name, options, model, ports))
        wait_until(found.is_ready, f"server {name}")
        return found

    def worker(self, server, *, wait=True, **options):
        """Starts a worker; waits until the front end knows one more unless told otherwise."""
        before = self.instances()
        found = self.add(Worker(self, server, **options))
        if wait:
            def is_there():
                if not found.is_running():
                    raise RuntimeError(f"the worker has ended: {found.output()[-2000:]}")
                return self.instances() - before
            wait_until(is_there, f"worker of {server.name}")
        return found

    def front_end(self, *options):
        """Starts the front end."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", port,
                 *options]
        self.front = self.add(Process(words, self.folder / f"front{self.number()}.log", self.environment))
        wait_until(lambda: get(f"{self.url}/health"), "front end")
        return self.front

    def instances(self):
        """Workers in the folder of discovery; one that was killed is there until its lease ends."""
        folder = self.folder / "discovery" / "v1" / "instances"
        return {path.name for path in folder.rglob("*") if "%2Fgenerate%2F" in path.name}

    def wait_for_model(self, timeout=START):
        """Waits until the front end serves the model."""
        def is_served():
            return [m["id"] for m in get(f"{self.url}/v1/models")["data"]] == [NAME] and self.answers()
        wait_until(is_served, f"model {NAME} at the front end", timeout)

    def answers(self):
        """True if the front end has an answer to a short request."""
        body = json.dumps({"model": NAME, "prompt": "Hi", "max_tokens": 1}).encode()
        request = urllib.request.Request(
            f"{self.url}/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status == 200
