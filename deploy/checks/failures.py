"""Failures of each part beside a load of two requests at a time: the rows of the table in docs/deployment.md.

    python3 main.py --program ruvllm --dynamo PYTHON --model FOLDER --failures

Processes are those of `stack.py`. What Docker or Kubernetes would restart is restarted here after some seconds.
"""

import http.client
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

import live
import sandbox
import stack as stacks

# Seconds that a fault lasts, and of load before and after it.
LASTS, BESIDE = 15, 2


def kill(stack, *names):
    for name in names:
        if stack.box.running[stack.processes[name].origin].poll() is not None:
            continue
        stack.box.signal(stack.processes[name], signal.SIGKILL)


def restart(stack, *names):
    for name in names:
        fault = stack.start(name)
        if fault:
            print(f"  {fault}")


def beside_load(stack, name, inject, recover, watch=True):
    """Runs a fault beside a load and prints its row."""
    load = stacks.Load(stack)
    time.sleep(BESIDE)
    start = time.monotonic()
    inject()
    noticed = None
    while time.monotonic() < start + LASTS:
        if watch and noticed is None and stack.workers() != 3:
            noticed = time.monotonic() - start
        time.sleep(0.1)
    during = time.monotonic()
    recover()
    back = stack.wait_for_workers(3, 60)
    healed = time.monotonic() - during
    time.sleep(BESIDE)
    done = load.end()
    lost = [(text, end - start) for begun, end, good, text in done if not good]
    slowest = max((end - begun for begun, end, good, _ in done if good), default=0)
    usual = sorted(end - begun for begun, end, good, _ in done if good)
    print(f"| {name} | {len(done)} | {len(lost)} | {usual[len(usual) // 2] if usual else 0:.1f} | {slowest:.1f} | "
          f"{'-' if noticed is None else f'{noticed:.1f}'} | {'not' if back else f'{healed:.1f}'} |", flush=True)
    for text, after in lost[:2]:
        print(f"  lost {after:.1f} s after the fault: {text[:200]}", flush=True)


def drains(stack):
    """Seconds from SIGTERM to the end of a server alone, by running requests."""
    print("| running requests | SIGTERM to end, s | cut |\n|---:|---:|---:|")
    server = stack.processes["server-1"]
    for count in (0, 1, 8, 32):
        url = f"http://{stack.box.address(server.network)}:{server.probes[0].port}"
        outcomes = []

        def ask():
            body = b'{"prompt": "Once upon a time", "max_tokens": 32, "ignore_eos": true, "stream": true}'
            request = urllib.request.Request(f"{url}/v1/completions", body, {
                "content-type": "application/json", "authorization": f"Bearer {stack.key}"})
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    outcomes.append(b"[DONE]" in answer.read())
            except (OSError, http.client.HTTPException):
                outcomes.append(False)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        start = time.monotonic()
        stack.box.signal(server, signal.SIGTERM)
        stack.box.running[server.origin].wait(60)
        took = time.monotonic() - start
        for thread in threads:
            thread.join(60)
        print(f"| {count} | {took:.2f} | {outcomes.count(False)} |", flush=True)
        stack.start("server-1")


def volume(stack, service, name):
    """Folder behind a volume."""
    process = stack.processes[service]
    return stack.box.source(process, next(mount for mount in process.mounts if mount.name == name))


def rotated(facts, dynamo, model):
    """A key that is taken away: the worker has the old one."""
    with tempfile.TemporaryDirectory() as folder:
        stack = stacks.Stack(facts, folder, dynamo, model)
        try:
            fault = stack.start_all()
            if fault:
                print(f"  {fault}")
                return
            before = stack.complete("Once upon a time")
            keys = stack.box.keys() / "keys.toml"
            for overlap, words in (("1h", "with an overlap"), ("0s", "without one")):
                keys.chmod(0o600)
                done = subprocess.run([facts.program, "key", "rotate", "worker", "--overlap", overlap, "--file", str(keys)],
                                      capture_output=True, text=True)
                for name in stack.of_role("server"):
                    stack.box.signal(stack.processes[name], signal.SIGHUP)
                time.sleep(1)
                print(f"  {(done.stdout + done.stderr).strip()[-200:]}")
                print(f"  key rotated {words}: {before[0]} -> {stack.complete('Once upon a time')}, "
                      f"{stack.workers()} workers known", flush=True)
        finally:
            stack.stop()


def main(facts, dynamo, model, only):
    with tempfile.TemporaryDirectory() as folder:
        stack = stacks.Stack(facts, folder, dynamo, model)
        # File systems that can be filled, where this process may mount them.
        folders = [volume(stack, "server-1", "prefixes"), volume(stack, "frontend", "discovery")]
        mounted = [folder for folder in folders if os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=False).returncode == 0]
        try:
            fault = stack.start_all()
            if fault:
                print(fault)
                return 1
            if not only:
                print("| fault | requests | lost | median, s | slowest, s | front end knows after, s | whole again, s |\n"
                      "|---|---:|---:|---:|---:|---:|---:|")
            for row in rows(stack, mounted):
                if only in row[0]:
                    beside_load(stack, *row)
            if only in "drain":
                drains(stack)
        finally:
            stack.stop()
            for folder in mounted:
                subprocess.run(["umount", "--lazy", str(folder)], check=False)
    if only in "key":
        rotated(facts, dynamo, model)
    return 0


def rows(stack, mounted):
    """Name of each fault, its beginning and its end."""
    send = lambda name, number: lambda: stack.box.signal(stack.processes[name], number)
    fail = lambda *names: lambda: kill(stack, *names)
    back = lambda *names: lambda: restart(stack, *names)
    discovery = volume(stack, "frontend", "discovery")
    yield "none", lambda: None, lambda: None
    yield "server killed", fail("server-1"), back("server-1")
    yield "worker killed", fail("worker-1"), back("worker-1")
    yield "both killed (node lost)", fail("worker-1", "server-1"), back("server-1", "worker-1")
    yield "server stopped (SIGSTOP)", send("server-1", signal.SIGSTOP), send("server-1", signal.SIGCONT)
    yield "worker stopped (SIGSTOP)", send("worker-1", signal.SIGSTOP), lambda: resumed(stack, "worker-1")
    yield "front end killed", fail("frontend"), back("frontend")
    if mounted:
        prefixes = volume(stack, "server-1", "prefixes")
        yield "prefix folder full", lambda: fill(prefixes / "filler"), (prefixes / "filler").unlink
        yield "discovery full, worker restarted", lambda: unregistered(stack, discovery), lambda: emptied(stack, discovery)


def resumed(stack, name):
    """Lets a stopped worker go on; one that the front end has forgotten is restarted."""
    process = stack.processes[name]
    stack.box.signal(process, signal.SIGCONT)
    if stack.wait_for_workers(3, 20):
        print(f"  {name} goes on and is unknown after 20 s; its {process.probes[0].path} has status "
              f"{stack.box.probe(process, process.probes[0])}")
        kill(stack, name)
        restart(stack, name)


def unregistered(stack, discovery):
    """A worker that starts while the discovery takes no entry."""
    fill(discovery / "filler")
    kill(stack, "worker-1")
    stack.box.running[stack.processes["worker-1"].origin].wait(10)
    stack.box.start(stack.processes["worker-1"])


def emptied(stack, discovery):
    """Room again; a worker that has ended is restarted, as Docker would."""
    process = stack.processes["worker-1"]
    (discovery / "filler").unlink()
    print(f"  worker-1: exit status {stack.box.running[process.origin].poll()}, "
          f"{process.probes[0].path} has status {stack.box.probe(process, process.probes[0])}")
    if stack.wait_for_workers(3, 10):
        kill(stack, "worker-1")
        restart(stack, "worker-1")


def fill(path):
    """Writes until the file system is full."""
    with open(path, "wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        except OSError:
            return
