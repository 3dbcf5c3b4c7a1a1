"""Front end, workers and servers of the compose file, run as processes: they start in order, answer, and drain."""

import json
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import agreement
import live
import manifests
import sandbox

NAME = "base"


class Stack:
    """All services of the compose file. Needs the packages of scale-out/dynamo."""

    def __init__(self, facts, folder, dynamo, model, values=None):
        # One thread and little memory for each: three servers share the machine.
        values = {**agreement.VALUES, "THREADS": "1", "KV_BUDGET": "64MiB", "PREFIX_LIMIT": "64MiB", **(values or {})}
        text = (facts.root / manifests.COMPOSE).read_text()
        self.processes = {process.origin.split()[1]: process for process in manifests.compose(facts.root, values)}
        self.box = sandbox.Sandbox(facts.root, folder, facts.program, str(Path(dynamo).absolute()))
        self.box.model = Path(model).resolve()
        self.facts = facts
        self.key = live.secrets(self.box, facts, text, "compose")
        for process in self.processes.values():
            if "RUVLLM_API_KEY" in process.env:
                process.env["RUVLLM_API_KEY"] = self.key

    @property
    def url(self):
        return f"http://{self.box.address('frontend')}:{self.processes['frontend'].probes[0].port}"

    def of_role(self, role):
        return [name for name, process in self.processes.items() if process.role == role]

    def start(self, name, seconds=180):
        """Starts a service and waits for its healthcheck; gives a fault."""
        process = self.processes[name]
        self.box.start(process)
        if not process.probes:
            return None
        return self.box.wait(process, process.probes[0], seconds)

    def start_all(self):
        """Starts services in the order of `depends_on`; the first fault ends it."""
        waiting = dict(self.processes)
        while waiting:
            for name, process in list(waiting.items()):
                if any(other in waiting for other in process.after):
                    continue
                del waiting[name]
                fault = self.start(name)
                if fault:
                    return fault
        return self.wait_for_workers(len(self.of_role("worker")))

    def wait_for_workers(self, count, seconds=30):
        """Waits until the front end knows so many workers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.workers() == count:
                return None
            time.sleep(0.05)
        return f"the front end knows {self.workers()} workers instead of {count}"

    def workers(self):
        """Workers that the front end knows."""
        _, text = sandbox.get(f"{self.url}/health")
        found = json.loads(text or "{}").get("instances", [])
        return len({instance["instance_id"] for instance in found if instance.get("endpoint") == "generate"})

    def complete(self, prompt, tokens=16, timeout=60):
        """Text of a completion, and its cached tokens; the status of an error instead."""
        body = json.dumps({"model": NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
                           "ignore_eos": True, "stream_options": {"include_usage": True}}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"content-type": "application/json"})
        text, ended = "", False
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                for line in answer:
                    if line.startswith(b"data: [DONE]"):
                        ended = True
                    elif line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        if "choices" not in event:
                            return False, str(event)[:160]
                        text += "".join(choice.get("text") or "" for choice in event["choices"])
        except urllib.error.HTTPError as error:
            return False, f"{error.code} {error.read()[:160].decode(errors='replace')}"
        except (OSError, ValueError) as error:
            return False, f"{type(error).__name__} {error}"
        return ended, text if ended else "the stream was cut"

    def stop(self):
        self.box.stop()


class Load:
    """Requests one after another from some threads, with times and outcomes."""

    def __init__(self, stack, threads=2, tokens=48):
        self.stack, self.done, self.over = stack, [], threading.Event()
        self.tokens = tokens
        self.threads = [threading.Thread(target=self.run, args=(index,), daemon=True) for index in range(threads)]
        for thread in self.threads:
            thread.start()

    def run(self, index):
        count = 0
        while not self.over.is_set():
            start = time.monotonic()
            good, text = self.stack.complete(f"Once upon a time, story {index} of {count % 5}:", self.tokens)
            self.done.append((start, time.monotonic(), good, text))
            count += 1
            if not good:
                time.sleep(0.2)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join(90)
        return self.done


def check(facts, dynamo, model):
    """Faults of a run: start in order, the same text from each worker, a worker that leaves loses no request."""
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(facts, folder, dynamo, model)
        try:
            fault = stack.start_all()
            if fault:
                yield fault
                return
            yield from replaced(stack)
            yield from over_tls(stack)
        finally:
            stack.stop()


def over_tls(stack):
    """TLS between a worker and its server: with the server's certificate it serves, with another one it does not."""
    server, worker = stack.processes["server-3"], stack.processes["worker-3"]
    for process in (worker, server):
        stack.box.signal(process, signal.SIGTERM)
        stack.box.running[process.origin].wait(process.grace)
    for name, host in (("own", stack.box.address(server.network)), ("other", "127.9.9.9")):
        line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=check", "-addext",
                f"subjectAltName=IP:{host}", "-keyout", f"{name}-key.pem", "-out", f"{name}.pem"]
        subprocess.run(line, cwd=stack.box.folder, check=True, capture_output=True)
        for part in (f"{name}.pem", f"{name}-key.pem"):
            stack.box.secrets[part] = (stack.box.folder / part).read_text()
    mount = lambda name: manifests.Mount(f"/run/tls/{name}", kind="secret", name=name, read_only=True, mode=0o400)
    server.mounts += [mount("own.pem"), mount("own-key.pem")]
    server.argv += ["--tls-certificate=/run/tls/own.pem", "--tls-key=/run/tls/own-key.pem"]
    worker.mounts += [mount("own.pem"), mount("other.pem")]
    stack.box.start(server)
    plain = list(worker.argv)
    for name, expected in (("other", 2), ("own", 3)):
        worker.argv = [*plain, f"--tls-ca=/run/tls/{name}.pem"]
        child = stack.box.start(worker)
        if expected == 2 and child.wait(60) == 0:
            yield "a worker with another certificate ends without an error"
        fault = stack.wait_for_workers(expected, 60)
        if fault:
            yield f"TLS with {name}.pem: {fault}: {child.log.read_text()[-300:]}"
    failed = [text for good, text in (stack.complete(f"Over TLS, {index}:") for index in range(6)) if not good]
    if failed:
        yield f"TLS: {len(failed)} of 6 requests failed: {failed[0]}"


def replaced(stack):
    """The same text from each worker; a worker and its server that are replaced beside a load lose no request."""
    texts = {stack.complete("Once upon a time there was a turtle")[1] for _ in range(6)}
    if len(texts) != 1:
        yield f"workers give different texts: {sorted(texts)}"
    load = Load(stack)
    time.sleep(2)
    for name in ("worker-1", "server-1"):
        process = stack.processes[name]
        stack.box.signal(process, signal.SIGTERM)
        stack.box.running[process.origin].wait(process.grace)
    fault = stack.wait_for_workers(2)
    if fault:
        yield fault
    time.sleep(1)
    for name in ("server-1", "worker-1"):
        fault = stack.start(name)
        if fault:
            yield fault
    fault = stack.wait_for_workers(3)
    if fault:
        yield fault
    done = load.end()
    lost = [text for _, _, good, text in done if not good]
    if lost or not done:
        yield f"{len(lost)} of {len(done)} requests failed while a worker was replaced: {lost[:2]}"
