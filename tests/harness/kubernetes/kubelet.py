"""Pods in namespaces: each has a network, processes, users and limits as its manifest says.

A container sees a copy of this machine's files in memory, in which its user may read Python and
ft-run, and its volumes. A pod that was made anew has the same name, another address, and nothing of
the files of the one before. Needs root, as ``harness.hosts``.
"""

import contextlib
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ft_run.tests.harness.hosts import Network
from ft_run.tests.harness.kubernetes.manifests import Pod

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

ROOT = Path(__file__).resolve().parents[3]
_DOMAIN = "default.svc.cluster.local"
_CGROUPS = Path("/sys/fs/cgroup")
_UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}

# $1 is the work folder, $2 the host name; the rest is the command.
_SET_UP = """
set -e
work=$1 name=$2
shift 2
mount --make-rprivate /
hostname "$name"
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" overlay "$work/root"
root=$work/root
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
{steps}
cd "$root"
exec chroot "$root" "$@"
"""


class Container:
    """One run of a pod's container."""

    def __init__(self, command: "Command", inside: list[str]) -> None:
        self.command = command
        self._inside = inside

    @property
    def pid(self) -> int:
        """The process that is 1 inside."""
        pid = self.command.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    @property
    def is_set_up(self) -> bool:
        """Whether its command runs, in place of what sets it up."""
        with contextlib.suppress(OSError, ValueError):
            return "/root" in os.readlink(f"/proc/{self.pid}/root")
        return False

    def entering(self, words: list[str]) -> list[str]:
        """Return a command that runs another one inside, as ``kubectl exec`` and probes do."""
        spaces = ("--mount", "--uts", "--pid", "--net", "--root", "--wd=/")
        return ["nsenter", f"--target={self.pid}", *spaces, *self._inside, *words]


class Kubelet:
    """Runs pods, each on a host of its own; also plays the cluster's DNS and its volumes."""

    def __init__(self, ft: "Launcher", network: Network, image: Path, token: str) -> None:
        """Run nothing yet.

        Args:
            ft: starts the commands.
            network: where the pods' hosts are made.
            image: the folder that the image has at ``/examples``.
            token: what the Secret has under ``token``.
        """
        self._ft = ft
        self._network = network
        self._image = image
        self._token = token
        self._folder = ft.folder / "kubelet"
        self._folder.mkdir()
        self.claims = ft.folder / "claims"
        """Here a persistent volume claim is a folder of its name."""
        self.containers: dict[str, Container] = {}
        """The last one of each pod."""
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._hosts_files: dict[str, Path] = {}
        self._cgroups: list[Path] = []
        self._made = 0

    def start(self, pod: Pod) -> Container:
        """Make a pod, and start its container; another one of the same name must have ended."""
        self._made += 1
        host = self._network.add(f"{pod.name}.{self._made}")
        folder = self._folder / str(self._made)
        folder.mkdir()
        hosts_file = folder / "hosts"
        own = f"{host.address} {pod.name}.{pod.subdomain}.{_DOMAIN} {pod.name}\n"
        hosts_file.write_text(f"127.0.0.1 localhost\n{own}")
        self._hosts_files[pod.name] = hosts_file
        self._addresses[pod.name] = host.address
        self._write_names()
        inside = _as_user(pod, self._environment(pod, host.address))
        (folder / "work").mkdir()
        steps = [*self._image_steps(hosts_file), *self._volume_steps(pod, folder)]
        steps += _readable("/tmp" in {m["mountPath"] for m in _mounts(pod)})
        if pod.container.get("securityContext", {}).get("readOnlyRootFilesystem"):
            steps.append('mount -o remount,bind,ro "$root"')
        limit = "".join(f"echo $$ > {path}/cgroup.procs\n" for path in self._limit(pod))
        script = limit + _SET_UP.replace("{steps}", "\n".join(steps))
        words = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c")
        command = self._ft.start(
            *(script, "sh", folder / "work", pod.name, *inside, *pod.command(host.address)),
            program=words, host=host, cwd=Path("/"),
        )  # fmt: skip
        container = self.containers[pod.name] = Container(command, inside)
        return container

    def publish(self, pod: Pod) -> None:
        """Let the DNS resolve the name of a pod to its address; until then it has the old one."""
        self._names[f"{pod.name}.{pod.subdomain}"] = self._addresses[pod.name]
        self._write_names()

    def probe(self, pod: Pod, kind: str) -> bool:
        """Run a probe of a pod once; return whether it succeeds within its timeout."""
        probe = pod.container[kind]
        container = self.containers[pod.name]
        self._ft.wait_until(lambda: container.is_set_up, f"{pod.name} is set up")
        words = container.entering(probe["exec"]["command"])
        limit = ("timeout", "--signal=KILL", str(probe.get("timeoutSeconds", 1)))
        return self._ft.run(*words, program=limit).process.returncode == 0

    def close(self) -> None:
        """Remove the limits; every process must have ended."""
        for path in self._cgroups:
            is_empty = partial(_is_empty, path / "cgroup.procs")
            self._ft.wait_until(is_empty, f"no process is left in {path}")
            path.rmdir()

    # --- parts of a container ------------------------------------------------------------------

    def _environment(self, pod: Pod, address: str) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        mark = {"FT_RUN_TEST_ID": self._ft.mark}
        return {"PATH": path, "HOME": "/", **mark, **pod.environment(address)}

    def _image_steps(self, hosts_file: Path) -> list[str]:
        resolver = self._folder / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        return [
            'mkdir -p "$root/examples"',
            f'mount --bind {self._image} "$root/examples"',
            f'mount --bind {hosts_file} "$root/etc/hosts"',
            f'mount --bind {resolver} "$root/etc/resolv.conf"',
        ]

    def _volume_steps(self, pod: Pod, folder: Path) -> list[str]:
        steps = []
        group = pod.spec.get("securityContext", {}).get("fsGroup")
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        for mount in _mounts(pod):
            volume = volumes[mount["name"]]
            at = f'"$root"{mount["mountPath"]}'
            if "emptyDir" in volume:
                owner = f",mode=2777,gid={group}" if group is not None else ",mode=0777"
                steps += [f"mkdir -p {at}", f"mount -t tmpfs -o size=1g{owner} tmpfs {at}"]
                continue
            if "secret" in volume:
                path = self._secret(folder / mount["name"], volume["secret"], group)
            else:
                path = self.claims / volume["persistentVolumeClaim"]["claimName"]
                path.mkdir(parents=True, exist_ok=True)
                os.chown(path, 0, group or 0)
                path.chmod(0o2775)
            steps += [f"mkdir -p {at}", f"mount --bind {path} {at}"]
            if mount.get("readOnly"):
                steps.append(f"mount -o remount,bind,ro {at}")
        return steps

    def _secret(self, path: Path, secret: dict[str, Any], group: int | None) -> Path:
        """Write the files as the kubelet does, which lets the group of ``fsGroup`` read them."""
        (path / "..1").mkdir(parents=True)
        file = path / "..1" / "token"
        file.write_text(self._token)
        file.chmod(secret.get("defaultMode", 0o644) | (0o440 if group is not None else 0))
        os.chown(file, 0, group or 0)
        (path / "..data").symlink_to("..1")
        (path / "token").symlink_to("..data/token")
        return path

    def _limit(self, pod: Pod) -> list[Path]:
        """Return cgroups (v1, v2) with the container's limits."""
        limits = pod.container["resources"]["limits"]
        cpu = int(float(limits["cpu"]) * 100_000)
        memory = int(limits["memory"][:-2]) * _UNITS[limits["memory"][-2:]]
        is_v1 = (_CGROUPS / "cpu").exists()
        name = f"ft-run-test-{os.getpid()}-{self._ft.mark[:8]}-{self._made}"
        parents = (_CGROUPS / "cpu", _CGROUPS / "memory") if is_v1 else (_CGROUPS,)
        made = [parent / name for parent in parents]
        for path in made:
            path.mkdir()
            self._cgroups.append(path)
        wanted = {
            "cpu.cfs_quota_us": str(cpu), "memory.limit_in_bytes": str(memory),
            "cpu.max": f"{cpu} 100000", "memory.max": str(memory),
        }  # fmt: skip
        for path in made:
            for key, value in wanted.items():
                if (path / key).exists():
                    (path / key).write_text(value)
        return made

    def _write_names(self) -> None:
        """Have every pod's ``/etc/hosts`` end with what the DNS knows."""
        known = "".join(f"{address} {name} {name}.default\n"
                        for name, address in self._names.items())  # fmt: skip
        for file in self._hosts_files.values():
            own = file.read_text().splitlines(keepends=True)[:2]
            file.write_text("".join(own) + known)  # in place: it is mounted


def _is_empty(file: Path) -> bool:
    return not file.read_text()


def _mounts(pod: Pod) -> list[dict[str, Any]]:
    return list(pod.container.get("volumeMounts", ()))


def _readable(has_tmp: bool) -> list[str]:
    """Return steps by which any user can read Python, its environment and ft-run.

    They may lie under ``/tmp``, which is a volume, or in a folder of root's.
    """
    steps = []
    # The shortest first: one may lie in another, and what lies in it is there with it.
    for path in sorted({sys.prefix, sys.base_prefix, str(ROOT)}, key=len):
        at = f'"$root"{shlex.quote(path)}'
        steps.append(f"[ -e {at} ] || {{ mkdir -p {at}; mount --rbind {shlex.quote(path)} {at}; }}")
        closed = [parent for parent in Path(path).parents if not parent.stat().st_mode & 0o005]
        steps += [f'[ ! -e "$root"{parent} ] || chmod a+rx "$root"{parent}' for parent in closed]
    return steps


def _as_user(pod: Pod, environment: dict[str, str]) -> list[str]:
    """Return the beginning of a command inside: user, groups, rights, and only these variables."""
    context = pod.spec.get("securityContext", {})
    own = pod.container.get("securityContext", {})
    user, group = context.get("runAsUser", 0), context.get("runAsGroup", 0)
    assert not context.get("runAsNonRoot") or user != 0
    words = ["setpriv", f"--reuid={user}", f"--regid={group}"]
    extra = context.get("fsGroup")
    words.append("--clear-groups" if extra is None else f"--groups={extra}")
    if own.get("capabilities") == {"drop": ["ALL"]}:
        words += ["--bounding-set=-all", "--inh-caps=-all"]
    if own.get("allowPrivilegeEscalation") is False:
        words.append("--no-new-privs")
    return [*words, "env", "-i", *(f"{name}={value}" for name, value in environment.items())]
