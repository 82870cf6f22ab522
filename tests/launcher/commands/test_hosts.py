"""``ft-run hosts`` where no host can be reached: programs that stand in for ssh."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from ft_run import exit_codes
from ft_run.errors import RendezvousError, UsageError
from ft_run.launcher.commands import hosts
from ft_run.launcher.hosts_options import HostsOptions, NodeCommand


def options(ssh: object, least: int = 2) -> HostsOptions:
    nodes = (NodeCommand("a", ("train.py",)), NodeCommand("b", ("train.py",)))
    return HostsOptions(nodes, least, (str(ssh),), {}, "/", "/opt/ft-run")


def write(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


class AtOnce:
    """A thread whose work is done when it has been started."""

    def __init__(self, target: Callable[..., None], args: tuple[object, ...], daemon: bool) -> None:
        self._work = lambda: target(*args)

    def start(self) -> None:
        self._work()

    def join(self) -> None:
        pass


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.parametrize("thread", [threading.Thread, AtOnce])
def test_hosts_that_end_before_it_looks_are_told_and_counted(
    thread: type,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ssh = tmp_path / "ssh"
    write(ssh, "echo no route >&2; exit 255")
    monkeypatch.setattr(threading, "Thread", thread)
    with pytest.raises(
        RendezvousError, match=r"of 2 hosts have not joined the job .*, and it needs 2"
    ):
        hosts.run_hosts(options(ssh))
    lines = capfd.readouterr().err.splitlines()
    assert sorted(lines) == [
        "[a] no route",
        "[b] no route",
        "ft-run hosts: a: ssh has not connected",
        "ft-run hosts: b: ssh has not connected",
    ]


def test_lost_connections_are_reported_as_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "ssh", r"printf 'welcome\n\0ft-run hosts-node\n'; echo of the job; exit 255")
    with pytest.raises(RendezvousError):
        hosts.run_hosts(options(tmp_path / "ssh"))
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == sorted(
        f"[{host}] {line}" for host in "ab" for line in ("welcome", "of the job")
    )
    assert sorted(err.splitlines()) == [
        "ft-run hosts: a: the connection is lost",
        "ft-run hosts: b: the connection is lost",
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [(255, r"^2 of 2 hosts .* \(a, b\)"), (143, r"^1 of 2 hosts .* \(a\)")],
    ids=["lost", "stopped by a signal"],
)
def test_the_error_names_every_failed_host(tmp_path: Path, code: int, message: str) -> None:
    """Host b ends when host a has failed; one that a signal stops has not failed."""
    write(
        tmp_path / "ssh",
        'case "$*" in *" a "*) exit 255;; esac\n'
        f'while read -r line; do case "$line" in SIGTERM) exit {code};; esac; done',
    )
    with pytest.raises(RendezvousError, match=f"{message}, and it needs 2"):
        hosts.run_hosts(options(tmp_path / "ssh"))


def test_an_ssh_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nosuch cannot be started here: No such file .* --ssh"):
        hosts.run_hosts(options(tmp_path / "nosuch"))


@pytest.mark.parametrize("order", ["[3]", '{"program": 1}', "[" * 9999], ids=len)
def test_an_order_of_another_release_is_one_error(order: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ft_run", "hosts-node"],
        input=f"{order}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == exit_codes.USAGE
    (line,) = done.stderr.splitlines()
    assert line.startswith("ft-run: error: ft-run hosts-node cannot read its order: ")
    assert line.endswith("; use the same release of ft-run on all hosts.")
