"""Failures of each part beside a load of two requests at a time: the rows of the table in docs/deployment.md.

    python3 main.py --program ruvllm --dynamo PYTHON --model FOLDER --failures

Processes are those of `stack.py`. What Docker or Kubernetes would restart is restarted here after some seconds.
"""

import os
import signal
import subprocess
import tempfile
import threading
import time

import live
import sandbox
import stack as stacks

# Seconds that a fault lasts, and of load before and after it.
LASTS, BESIDE = 15, 2
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def kill(stack, *names):
    for name in names:
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
            body = b'{"prompt": "Once upon a time", "max_tokens": 128, "ignore_eos": true, "stream": true}'
            request = live.urllib.request.Request(f"{url}/v1/completions", body, {
                "content-type": "application/json", "authorization": f"Bearer {stack.key}"})
            try:
                with live.urllib.request.urlopen(request, timeout=120) as answer:
                    outcomes.append(b"[DONE]" in answer.read())
            except OSError:
                outcomes.append(False)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        time.sleep(1.5 if count else 0.2)
        start = time.monotonic()
        stack.box.signal(server, signal.SIGTERM)
        stack.box.running[server.origin].wait(60)
        took = time.monotonic() - start
        for thread in threads:
            thread.join(60)
        print(f"| {count} | {took:.2f} | {outcomes.count(False)} |", flush=True)
        stack.start("server-1")


def full_folder(stack):
    """Fills the file system of the prefix folder, which is a tmpfs where this process may mount one."""
    server = stack.processes["server-1"]
    volume = next(mount for mount in server.mounts if mount.name == "prefixes")
    return stack.box.source(server, volume)


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
            keys = stack.box.source(stack.processes["server-1"], next(
                mount for mount in stack.processes["server-1"].mounts if mount.name == "keys.toml"))
            for overlap, words in (("1h", "with an overlap"), ("0s", "without one")):
                keys.chmod(0o600)
                done = subprocess.run([facts.program, "key", "rotate", "worker", "--overlap", overlap, "--file", str(keys)],
                                      capture_output=True, text=True)
                stack.box.secrets["keys.toml"] = keys.read_text()
                for name in stack.of_role("server"):
                    stack.box.signal(stack.processes[name], signal.SIGHUP)
                time.sleep(1)
                print(f"  key rotated {words} ({done.stderr.strip()[:100]}): {before[0]} -> {stack.complete('Once upon a time')}, "
                      f"{stack.workers()} workers known", flush=True)
        finally:
            stack.stop()


def main(facts, dynamo, model):
    with tempfile.TemporaryDirectory() as folder:
        stack = stacks.Stack(facts, folder, dynamo, model)
        prefixes = full_folder(stack)
        mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(prefixes)], check=False).returncode == 0
        try:
            fault = stack.start_all()
            if fault:
                print(fault)
                return 1
            print("| fault | requests | lost | median, s | slowest, s | front end knows after, s | whole again, s |\n"
                  "|---|---:|---:|---:|---:|---:|---:|")
            stop, go = signal.SIGSTOP, signal.SIGCONT
            send = lambda name, number: stack.box.signal(stack.processes[name], number)
            beside_load(stack, "none", lambda: None, lambda: None)
            beside_load(stack, "server killed", lambda: kill(stack, "server-1"), lambda: restart(stack, "server-1"))
            beside_load(stack, "worker killed", lambda: kill(stack, "worker-1"), lambda: restart(stack, "worker-1"))
            beside_load(stack, "both killed (node lost)", lambda: kill(stack, "worker-1", "server-1"),
                        lambda: restart(stack, "server-1", "worker-1"))
            beside_load(stack, "server stopped (SIGSTOP)", lambda: send("server-1", stop), lambda: send("server-1", go))
            beside_load(stack, "worker stopped (SIGSTOP)", lambda: send("worker-1", stop), lambda: send("worker-1", go))
            beside_load(stack, "front end killed", lambda: kill(stack, "frontend"), lambda: restart(stack, "frontend"),
                        watch=False)
            if mounted:
                filler = prefixes / "filler"

                def fill():
                    with open(filler, "wb") as file:
                        try:
                            file.write(bytes(16 << 20))
                        except OSError:
                            pass

                beside_load(stack, "prefix folder full", fill, filler.unlink)
            discovery = stack.box.source(stack.processes["frontend"], next(
                mount for mount in stack.processes["frontend"].mounts if mount.name == "discovery"))
            beside_load(stack, "discovery read-only", lambda: discovery.chmod(0o500), lambda: discovery.chmod(0o755))
            drains(stack)
        finally:
            stack.stop()
            if mounted:
                subprocess.run(["umount", str(prefixes)], check=False)
    rotated(facts, dynamo, model)
    return 0
