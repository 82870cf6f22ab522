"""What is said where the kernel gives no process or file."""

import errno
import os
import resource
from pathlib import Path

import pytest
from ft_run.launcher.machine.shortage import explained, no_process
from ft_run.launcher.spawner.client import Spawned


def machine(root: Path, pids: dict[str, tuple[str, str]]) -> Path:
    """A machine whose process is in the cgroup ``/pod/box`` (v2) with these limits and numbers."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/pod/box\n")
    (root / "proc/self/mountinfo").write_text(
        "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n"
    )
    for name, (most, used) in pids.items():
        folder = root / f"sys/fs/cgroup{name}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pids.max").write_text(f"{most}\n")
        (folder / "pids.current").write_text(f"{used}\n")
    return root


def error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.fixture
def unlimited() -> None:
    """For a user whose number of processes is limited, that is said as well."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit != resource.RLIM_INFINITY and os.geteuid() != 0:
        pytest.skip("ulimit -u is set")


def test_every_cgroup_above_that_has_a_limit_is_named(tmp_path: Path, unlimited: None) -> None:
    root = machine(tmp_path, {"/pod": ("100", "100"), "/pod/box": ("max", "7")})
    assert no_process(error(errno.EAGAIN), root) == (
        "no process can be made: Resource temporarily unavailable; processes and threads are"
        " limited to 100 for the container, of which 100 are used (pids.max): raise what is used up"
    )
    machine(tmp_path / "other", {"/pod": ("100", "9"), "/pod/box": ("8", "8")})
    assert (
        "limited to 8 for the container, of which 8 are used (pids.max), 100 for the container,"
    ) in no_process(error(errno.EAGAIN), tmp_path / "other")


def test_without_a_limit_it_is_the_hosts(tmp_path: Path, unlimited: None) -> None:
    text = no_process(error(errno.EAGAIN), machine(tmp_path, {"/pod/box": ("max", "7")}))
    assert text.endswith("; raise kernel.pid_max and kernel.threads-max of this host")


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (errno.ENFILE, "raise fs.file-max"),
        (errno.ENOMEM, "raise the memory limit of the container, or start fewer workers"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_what_to_raise(code: int, end: str) -> None:
    assert explained(error(code)).endswith(end)


def test_the_limit_on_open_files_is_that_of_this_process() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"a process may have {limit} open files here: raise ulimit -n" in explained(
        error(errno.EMFILE)
    )


@pytest.mark.parametrize(
    ("uid_map", "is_named"),
    [("0 0 4294967295", False), ("0 100000 65536", True), ("0 0 1\n1 100000 65535", True)],
)
def test_root_of_a_user_namespace_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid_map: str, is_named: bool
) -> None:
    root = machine(tmp_path, {"/pod/box": ("max", "7")})
    (root / "proc/self/uid_map").write_text(f"{uid_map}\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    assert ("(ulimit -u)" in no_process(error(errno.EAGAIN), root)) == is_named


def test_what_is_a_shortage() -> None:
    spawned = Spawned(
        0, (0, 0, 0, 7), errors={0: errno.ENOENT, 1: errno.EAGAIN}, unforked={2: errno.EPERM}
    )
    assert [spawned.is_shortage(rank) for rank in range(4)] == [False, True, True, False]
