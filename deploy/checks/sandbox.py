"""Containers of a manifest as processes: a root file system of its own, the manifest's mounts, user and command.

Not a container engine: processes share the network of the machine, so each pod has an address of 127.0.1.0/24 in place
of its own `0.0.0.0` and `127.0.0.1`. Needs the program `bwrap` (bubblewrap).
"""

import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import manifests

READ_ONLY = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ssl", "/etc/alternatives", "/etc/ld.so.cache", "/etc/passwd",
             "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf"]
USER = "65532"


def missing():
    """What a run of containers lacks, or `None`."""
    if not shutil.which("bwrap"):
        return "no bwrap (Debian: apt-get install bubblewrap)"
    tried = subprocess.run(["bwrap", "--ro-bind", "/", "/", "--unshare-user", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"bwrap: {tried.stderr.strip()}"


class Sandbox:
    """Pods of one manifest; volumes are folders below `folder`."""

    def __init__(self, root, folder, program, dynamo=None):
        self.root, self.folder, self.program, self.dynamo = root, Path(folder), program, dynamo
        self.addresses, self.running, self.names = {}, {}, {}
        # What the manifests leave to the operator: texts of secrets by name, folder of the model.
        self.secrets, self.model = {}, None
        # Text of servers' configurations in place of the manifest's.
        self.change = lambda text: text

    def address(self, network):
        return self.addresses.setdefault(network, f"127.0.1.{len(self.addresses) + 1}")

    def local(self, text, network):
        """Addresses of the pod in the machine's network."""
        return re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1|localhost)\b", self.address(network), text)

    def source(self, process, mount):
        """File or folder behind a mount."""
        scope = "shared" if process.origin.startswith("compose") else process.network
        place = self.folder / scope / re.sub(r"\W", "_", f"{mount.kind}-{mount.name}")
        if mount.kind == "claim" or (mount.kind == "bind" and mount.path.startswith("/models")):
            return self.model
        if mount.kind == "keys":
            return self.keys()
        if mount.kind in ("secret", "file", "bind"):
            text = self.secrets.get(mount.name) if mount.kind == "secret" else mount.text
            if mount.kind == "bind":
                text = (self.root / "deploy/compose" / mount.source).read_text()
            if mount.kind != "secret":
                place = self.folder / process.network / place.name
                text = self.change(self.local(text, process.network))
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.exists():
                place.chmod(0o600)
            place.write_bytes(text if isinstance(text, bytes) else text.encode())
            place.chmod(mount.mode or 0o444)
            return place
        if mount.kind == "tmpfs" or mount.name == "tmp":
            place = self.folder / process.origin.replace("/", "_") / "tmp"
        place.mkdir(parents=True, exist_ok=True)
        return place

    def keys(self):
        """Folder with the secrets, as an operator makes it."""
        place = self.folder / "keys"
        place.mkdir(exist_ok=True)
        for name, text in self.secrets.items():
            if not (place / name).exists():
                (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())
                (place / name).chmod(0o400)
        return place

    def command(self, process, argv):
        """A command inside of the process's file system."""
        line = ["bwrap", "--unshare-user", "--uid", USER, "--gid", USER, "--unshare-pid", "--unshare-ipc", "--die-with-parent",
                "--proc", "/proc", "--dev", "/dev"]
        line += [word for path in READ_ONLY if os.path.exists(path) for word in ("--ro-bind", path, path)]
        line += ["--ro-bind", self.program, "/opt/bin/ruvllm"]
        path = "/opt/bin:/usr/bin:/bin"
        if self.dynamo:
            venv = str(Path(self.dynamo).parents[1])
            path = f"{venv}/bin:{path}"
            # The interpreter that a virtual environment links to.
            base = str(Path(self.dynamo).resolve().parents[1])
            line += [] if base.startswith("/usr") else ["--ro-bind", base, base]
            line += ["--ro-bind", venv, venv, "--ro-bind", self.root / "scale-out/dynamo", "/opt/ruvllm/scale-out/dynamo",
                     "--ro-bind", self.root / "crates/server/proto", "/opt/ruvllm/crates/server/proto"]
        for mount in sorted(process.mounts, key=lambda mount: mount.path):
            line += ["--ro-bind" if mount.read_only else "--bind", self.source(process, mount), mount.path]
        line += ["--remount-ro", "/", "--clearenv", "--setenv", "PATH", path, "--setenv", "HOME", "/tmp"]
        line += ["--setenv", "PYTHONDONTWRITEBYTECODE", "1"]
        if process.role in ("worker", "frontend"):
            own = self.address(process.network)
            for name in ("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST", "DYN_SYSTEM_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"):
                line += ["--setenv", name, own]
        for name, value in process.env.items():
            value = self.secrets.get(value.removeprefix("secret:"), value) if value.startswith("secret:") else value
            line += ["--setenv", name, self.named(value)]
        return [str(word) for word in line] + [self.local(word, process.network) for word in argv]

    def named(self, text):
        """Names of services in addresses, as the machine's network has them."""
        for name, address in self.names.items():
            text = text.replace(f"//{name}:", f"//{address}:")
        return text

    def start(self, process):
        """Starts a container; its output goes to a file."""
        log = self.folder / f"{process.origin.replace(' ', '-').replace('/', '-')}.log"
        with open(log, "ab") as output:
            child = subprocess.Popen(self.command(process, process.argv), stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=output, start_new_session=True)
        self.running[process.origin] = child
        child.log = log
        return child

    def run(self, process, argv):
        """Runs a command to its end inside of the process's file system."""
        return subprocess.run(self.command(process, argv), capture_output=True, text=True, timeout=60)

    def inner(self, process):
        """Identifier of the container's first process, as the machine sees it."""
        pid = self.running[process.origin].pid
        # bwrap, its child that reaps, the command.
        for _ in range(2):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if not children:
                break
            pid = int(children[0])
        return pid

    def signal(self, process, number):
        os.kill(self.inner(process), number)

    def probe(self, process, probe):
        """Status of a probe's answer, 0 without one."""
        return get(f"http://{self.address(process.network)}:{probe.port}{probe.path}")[0]

    def wait(self, process, probe, seconds):
        """Waits until a probe has status 200; a fault otherwise."""
        end = time.monotonic() + seconds
        child = self.running[process.origin]
        while time.monotonic() < end and child.poll() is None:
            if self.probe(process, probe) == 200:
                return None
            time.sleep(0.1)
        tail = " | ".join(child.log.read_text(errors="replace").splitlines()[-3:])
        ended = f"ended with {child.poll()}" if child.poll() is not None else f"no answer in {seconds} s"
        return f"{process.origin}: {probe.path} at port {probe.port}: {ended}: {tail}"

    def stop(self):
        for child in self.running.values():
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        self.running.clear()


def get(url, headers=None, timeout=5):
    """Status and text of an answer; status 0 without one."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=timeout) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""
