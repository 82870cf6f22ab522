"""``ft-run hosts`` over the system's ssh, to real sshds on hosts of their own."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from ft_run import exit_codes
from ft_run.tests.e2e.conftest import Command, Launcher
from ft_run.tests.harness.hosts import Host, Network

# One of some ten runs beside others failed and is not understood yet: they are run every night.
pytestmark = [pytest.mark.root, pytest.mark.slow]

WORKER = """\
import os, pathlib, sys, threading
words = [os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"]]
words += [os.environ.get("SECRET"), os.getcwd(), os.getpid()]
os.write(1, f"rank {' '.join(map(str, words))}\\n".encode())  # whole: both ranks have one pipe
go_on = pathlib.Path(sys.argv[1])
while not go_on.exists():
    threading.Event().wait(0.05)
"""


class Ssh:
    """Hosts with an sshd each, and a host from which they are reached by key."""

    def __init__(self, ft: Launcher, network: Network) -> None:
        self._ft = ft
        self.launcher = network.add("head")
        self.hosts = [network.add(name) for name in ("a", "b", "c")]
        self.folder = ft.folder / "ssh"
        self.folder.mkdir()
        self.go_on = ft.folder / "go-on"
        for key in ("user", "host", "other"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True
            )
        shutil.copy(self.folder / "user.pub", self.folder / "authorized")
        Path("/run/sshd").mkdir(exist_ok=True)
        self.daemons = {host.name: self.start(host, "authorized") for host in self.hosts}
        self.command = (
            f"ssh -F none -p 2222 -i {self.folder}/user -o StrictHostKeyChecking=no"
            f" -o UserKnownHostsFile={self.folder}/known -o LogLevel=ERROR"
        )

    def start(self, host: Host, keys: str) -> "subprocess.Popen[bytes]":
        """Start the sshd of a host, which lets in those of a file of keys."""
        log = self.folder / f"sshd-{host.name}.log"
        log.unlink(missing_ok=True)
        daemon = subprocess.Popen(
            [
                *host.enter, "/usr/sbin/sshd", "-D", "-E", str(log), "-f", "/dev/null",
                "-p", "2222", "-h", str(self.folder / "host"),
                "-o", f"AuthorizedKeysFile={self.folder / keys}", "-o", "StrictModes=no",
                "-o", "UsePAM=no", "-o", "PidFile=none", "-o", "PermitRootLogin=yes",
            ],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._ft.wait_until(
            lambda: log.exists() and "listening" in log.read_text(),
            f"sshd of {host.name} listens",
        )
        return daemon

    def job(
        self, *options: object, script: object = None, env: Mapping[str, str] | None = None
    ) -> Command:
        """Start ``ft-run hosts`` on the launcher; the mark is passed on by ``--env``."""
        script = script or self._ft.script(WORKER)
        temporary = self._ft.folder / "of-nodes"  # a host that is lost leaves files
        temporary.mkdir()
        words = ("--ssh", self.command, "--env", "FT_RUN_TEST_ID", "--env", f"TMPDIR={temporary}",
                 *options)  # fmt: skip
        return self._ft.start("hosts", *words, script, self.go_on, host=self.launcher, env=env)

    def none_is_left(self) -> None:
        """Wait until nothing of the job is on any host."""
        self._ft.wait_until(lambda: not self._ft.processes(), "nothing of the job is left")


@pytest.fixture
def ssh(ft: Launcher, network: Network) -> Iterator[Ssh]:
    """Three hosts with sshd."""
    if not os.path.exists("/usr/sbin/sshd"):
        pytest.skip("Debian's openssh-server is not installed: there is no sshd")
    ssh = Ssh(ft, network)
    yield ssh
    for command in ft.commands:
        if command.process.poll() is None:  # the test has failed
            command.send(signal.SIGKILL)
    ssh.none_is_left()
    for daemon in ssh.daemons.values():
        daemon.kill()
        daemon.wait()


def test_a_job_on_the_hosts_of_a_file(ft: Launcher, ssh: Ssh) -> None:
    hostfile = ft.folder / "hosts"
    hostfile.write_text("# three\na slots=2\nb slots=1\n\nc slots=1  # the last\n")
    job = ssh.job("--hostfile", hostfile, "--exclude", "c", "--env", "SECRET",
                  "--max-restarts", "1", env={"SECRET": "x y"})  # fmt: skip
    workers = job.expect(rf"\[(a|b)\] rank \d 3 0 x y {ft.folder} (\d+)$", 3)
    assert sorted(worker[1] for worker in workers) == ["a", "a", "b"]
    assert "x y" not in "".join(ft.processes().values()), "nothing secret on a command line"
    os.kill(int(workers[0][2]), signal.SIGKILL)
    job.expect(r"\[(a|b)\] rank \d 3 1 ", 3)
    ssh.go_on.touch()
    assert job.wait() == 0


def test_ctrl_c_ends_the_job_in_order(ft: Launcher, ssh: Ssh) -> None:
    job = ssh.job("--hosts", "a,b")
    job.expect(r"\[.\] rank \d 2 0 ", 2)
    job.send(signal.SIGINT)
    assert job.wait() == exit_codes.SIGNAL_BASE + signal.SIGINT
    job.expect(r"\[.\] .*ft-run received SIGINT", 2)


@pytest.mark.parametrize("way", ["killed", pytest.param("cut", marks=pytest.mark.slow)])
def test_nothing_stays_when_the_launcher_is_gone(ft: Launcher, ssh: Ssh, way: str) -> None:
    job = ssh.job("--hosts", "a,b")
    job.expect(r"\[.\] rank \d 2 0 ", 2)
    if way == "killed":
        job.send(signal.SIGKILL)
    else:
        for pid, line in ft.processes().items():
            if line.startswith("ssh "):
                os.kill(pid, signal.SIGKILL)
    ssh.none_is_left()
    assert job.wait() == (-signal.SIGKILL if way == "killed" else exit_codes.RENDEZVOUS_FAILED)


def test_a_host_that_cannot_be_reached_ends_the_job(ft: Launcher, ssh: Ssh) -> None:
    ssh.daemons["b"].kill()
    ssh.daemons["b"].wait()
    shutil.copy(ssh.folder / "other.pub", ssh.folder / "strangers")
    ssh.daemons["b"] = ssh.start(ssh.hosts[1], "strangers")
    job = ssh.job("--hosts", "a,b,nosuchhost")
    assert job.wait() == exit_codes.RENDEZVOUS_FAILED
    job.expect(r"\[b\] .*Permission denied \(publickey")
    job.expect(r"\[nosuchhost\] .*Could not resolve hostname")
    job.expect(r"ft-run: error: \d of 3 hosts are not in the job .*, and it needs 3; right would")


@pytest.mark.slow
def test_a_lost_host_is_survived_where_the_job_can(ft: Launcher, ssh: Ssh) -> None:
    job = ssh.job("--hosts", "a,b,c", "--nnodes", "2", "--max-restarts", "1")
    (worker,) = job.expect(r"\[b\] rank \d 2 0 |\[c\] rank \d 2 0 ")
    lost = next(host for host in ssh.hosts if host.name == worker[0][1])
    lost.kill()
    job.expect(rf"ft-run hosts: {lost.name}: the connection is lost")
    job.expect(r"\[.\] rank \d 2 1 ", 2)
    ssh.go_on.touch()
    assert job.wait() == 0


@pytest.mark.slow
def test_100_mb_of_output_arrive(ft: Launcher, ssh: Ssh) -> None:
    script = ft.script(
        "import sys\nfor _ in range(100): sys.stdout.write(('x' * 1023 + '\\n') * 1024)\n"
    )
    job = ssh.job("--hosts", "a,b", script=script)
    assert job.wait() == 0
    lines = job.stdout.splitlines()
    assert len(lines) == 2 * 100 * 1024
    assert {len(line) for line in lines} == {len("[a] ") + 1023}


@pytest.mark.slow
def test_this_host_can_be_a_node(ft: Launcher, ssh: Ssh) -> None:
    job = ssh.job("--launcher-as-node", "--hosts", "a")
    job.expect(r"\[here\] rank 0 2 0 ")
    job.expect(r"\[a\] rank 1 2 0 ")
    ssh.go_on.touch()
    assert job.wait() == 0
