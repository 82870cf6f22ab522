"""Containers by podman and runc, with netavark, aardvark-dns and iptables, all Debian's.

Their image is one that was built, or the files of this machine: then a container gets what the
Dockerfile says of its user, variables and command as options.
"""

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROGRAMS = ("podman", "podman-compose", "runc", "iptables")
_LOCK = Path("/tmp/ft-run-test-podman.lock")
_CONF = """\
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "none"
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""


def unavailable() -> str | None:
    """Return why there can be no containers here; None where there can."""
    if os.geteuid() != 0:
        return "podman is run as root"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if not Path("/usr/lib/podman/aardvark-dns").exists():
        missing.append("aardvark-dns")
    return f"Debian's {' and '.join(missing)} are not installed" if missing else None


@dataclass
class Stage:
    """What the last stage of a Dockerfile says of a container."""

    user: str = ""
    folder: str = "/"
    stop_signal: str = "SIGTERM"
    entrypoint: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Stage":
        """Read a Dockerfile."""
        text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
        last = text.rpartition("\nFROM ")[2].splitlines()[1:]
        said = dict(line.split(" ", 1) for line in last if line)
        return cls(
            said["USER"],
            said["WORKDIR"],
            said["STOPSIGNAL"],
            json.loads(said["ENTRYPOINT"]),
            json.loads(said["HEALTHCHECK"].partition(" CMD ")[2]),
        )


class Podman:
    """Containers with storage and a network of their own, for one test at a time."""

    def __init__(self) -> None:
        self._folder = folder = Path(tempfile.mkdtemp(prefix="ft-run-podman-"))  # a short path
        self._lock = _LOCK.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        conf = folder / "containers.conf"
        conf.write_text(_CONF.format(folder=folder))
        self._environment = os.environ | {"CONTAINERS_CONF": str(conf)}
        self._command = ["podman", f"--root={folder}/storage", f"--runroot={folder}/run"]
        self._mark = f"ft-run-test-{uuid.uuid4().hex[:8]}"
        self.names: list[str] = []
        try:
            self.run("network", "create", self._mark)
        except BaseException:
            self._lock.close()
            raise

    def run(self, *words: object, check: bool = True) -> str:
        """Run a podman command to its end; return what it printed."""
        done = subprocess.run(
            [*self._command, *map(str, words)],
            env=self._environment, capture_output=True, text=True, timeout=1500,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"podman {shlex.join(map(str, words))}: {done.stderr}{done.stdout}")
        return done.stdout.strip()

    def start(self, name: str, options: list[str], image: list[str], words: list[str]) -> None:
        """Start a container that others of the test know by its name."""
        self.names.append(name)
        own = ["--detach", f"--name={name}", f"--network={self._mark}", *options]
        self.run("run", *own, *image, *words)

    def compose(self, file: Path, *words: str) -> None:
        """Have podman-compose do something with a compose file, whose images are there."""
        program = self._folder / "podman"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(self._command)} "$@"\n')
        program.chmod(0o700)
        subprocess.run(
            ["podman-compose", f"--podman-path={program}", f"--file={file}", *words],
            env=self._environment, cwd=file.parent, check=True, timeout=1500,
        )  # fmt: skip

    def of_service(self, service: str) -> str:
        """Return the name of the container that ``compose`` has made for a service."""
        wanted = f"--filter=label=com.docker.compose.service={service}"
        name = self.run("ps", "--all", wanted, "--format={{.Names}}")
        self.names.append(name)
        return name

    def state(self, name: str) -> dict[str, Any]:
        """Return what podman says of a container's state."""
        (found,) = json.loads(self.run("inspect", "--type=container", name))
        return dict(found["State"])

    def is_healthy(self, name: str) -> bool:
        """Run the health check of a container's image once."""
        try:
            self.run("healthcheck", "run", name)
        except RuntimeError:
            return False
        return True

    def log(self, name: str) -> str:
        """Return what a container has printed on both of its outputs."""
        done = subprocess.run(
            [*self._command, "logs", name], env=self._environment, stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    def close(self) -> None:
        """Remove everything."""
        for name in self.names:
            self.run("rm", "--force", "--time=0", "--volumes", name, check=False)
        self.run("network", "rm", "--force", self._mark)
        self.run("system", "reset", "--force", check=False)
        # Below what is left of a container may be this machine's own files.
        if str(self._folder) not in Path("/proc/mounts").read_text():
            shutil.rmtree(self._folder)
        self._lock.close()


def compose_options(service: dict[str, Any], secrets: dict[str, Path]) -> list[str]:
    """Return podman's options for a service of a compose file; an unknown key is an error."""
    options = []
    for key, value in service.items():
        if key in ("image", "build", "command", "secrets", "volumes"):
            continue
        flag = {"hostname": "hostname", "restart": "restart", "cpus": "cpus", "mem_limit": "memory",
                "shm_size": "shm-size"}.get(key)  # fmt: skip
        if flag is not None:
            options.append(f"--{flag}={value}")
        elif key == "environment":
            options += [f"--env={name}={text}" for name, text in value.items()]
        elif key == "stop_grace_period":
            options.append(f"--stop-timeout={value.removesuffix('s')}")
        elif key == "read_only":
            options += ["--read-only", "--read-only-tmpfs=false"]
        elif key == "tmpfs":
            options += [f"--tmpfs={path}:notmpcopyup" for path in value]
        elif key == "cap_drop":
            options += [f"--cap-drop={name}" for name in value]
        elif key == "security_opt":
            assert value == ["no-new-privileges:true"]
            options.append("--security-opt=no-new-privileges")
        else:
            raise KeyError(f"compose.yaml has {key}")
    for name in service.get("secrets", ()):
        options.append(f"--volume={secrets[name]}:/run/secrets/{name}:ro")
    return options


def host_base(path: Path) -> None:
    """Write the files of a small image with this machine's Python: what others have as a base."""
    prefix = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = Path(sys.executable).resolve()
    tools = [found for name in ("sh", "ls", "id", "mkdir", "chown", "sleep", "env", "true")
             if (found := shutil.which(name))]  # fmt: skip
    modules = map(str, (prefix / "lib" / version / "lib-dynload").glob("*.so"))
    libraries = set()
    for program in (*tools, str(python), *modules):
        linked = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        libraries |= set(re.findall(r"(/\S+\.so\S*)", linked))
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    of_torch = "libstdc++ libgcc_s libresolv libgomp libpthread libdl librt libutil libm"
    for name in (f"{word}.so" for word in of_torch.split()):
        libraries |= set(re.findall(rf"{re.escape(name)}\.\d \(.*x86-64.*=> (\S+)", known))
    files = (
        "/etc/passwd",
        "/etc/group",
        "/etc/nsswitch.conf",
        "/etc/ssl/certs/ca-certificates.crt",
        sysconfig.get_config_var("WHEEL_PKG_DIR") or "",  # pip for ensurepip, on Debian
    )
    with tarfile.open(path, "w", dereference=True) as tar:
        for name in (*sorted(libraries), *filter(os.path.exists, files)):
            tar.add(name, name.lstrip("/"))
        for tool in tools:
            tar.add(tool, f"bin/{Path(tool).name}")
        tar.add(prefix / "lib" / version, f"usr/local/lib/{version}", filter=_of_base)
        tar.add(python, "usr/local/bin/python3")
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)


def _of_base(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    is_extra = re.search(r"site-packages/.|/tests?/|__pycache__|\.a$", entry.name)
    return None if is_extra else entry
