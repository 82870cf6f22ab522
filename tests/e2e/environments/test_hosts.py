"""``ft-run hosts`` over the system's ssh, to real sshds on hosts of their own."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from ft_run import exit_codes
from ft_run.rendezvous.trust.token import new_token, write_token
from ft_run.tests.e2e.conftest import FT_RUN, Command, Launcher
from ft_run.tests.harness.hosts import Host, Network

pytestmark = pytest.mark.root

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
        self,
        *options: object,
        script: object = None,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = (FT_RUN,),
    ) -> Command:
        """Start ``ft-run hosts`` on the launcher; the mark is passed on by ``--env``."""
        script = script or self._ft.script(WORKER)
        temporary = self._ft.folder / "of-nodes"  # a host that is lost leaves files
        temporary.mkdir()
        words = ("--ssh", self.command, "--env", "FT_RUN_TEST_ID", "--env", f"TMPDIR={temporary}",
                 *options)  # fmt: skip
        return self._ft.start(
            "hosts", *words, script, self.go_on, host=self.launcher, env=env, program=program
        )

    def none_is_left(self) -> None:
        """Wait until nothing of the job is on any host, also not what has no mark.

        An sshd keeps a connection that it cannot know to be gone until TCP gives it up.
        """
        self._ft.wait_until(
            lambda: not self._ft.processes() and not any(map(_others_than_sshd, self.hosts)),
            "nothing of the job is left",
        )


def _others_than_sshd(host: Host) -> list[str]:
    return [
        line for line in _command_lines(host) if not line.startswith(("sshd", "/usr/sbin/sshd"))
    ]


def _command_lines(host: Host) -> list[str]:
    lines = []
    for pid in host.pids():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return lines


TERMINAL = """\
import os, pty, signal, sys
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
signal.signal(signal.SIGUSR1, lambda *_: os.write(terminal, b"\\x03"))
try:
    while data := os.read(terminal, 65536):
        os.write(1, data)
except OSError:  # nothing has it open any more
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""A terminal for a command: SIGUSR1 is Ctrl-C, and it is closed when this is killed."""


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
    hostfile.write_text("# two\na slots=2\n\nb slots=1  # the last\n")
    job = ssh.job("--hostfile", hostfile, "--env", "SECRET", "--max-restarts", "1",
                  env={"SECRET": "x y"})  # fmt: skip
    workers = job.expect(rf"\[(a|b)\] rank \d 3 0 x y {ft.folder} (\d+)$", 3)
    assert sorted(worker[1] for worker in workers) == ["a", "a", "b"]
    assert "x y" not in "".join(ft.processes().values()), "nothing secret on a command line"
    os.kill(int(workers[0][2]), signal.SIGKILL)
    job.expect(r"\[(a|b)\] rank \d 3 1 ", 3)
    ssh.go_on.touch()
    assert job.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_job_in_order(ft: Launcher, ssh: Ssh, number: signal.Signals) -> None:
    job = ssh.job("--hosts", "a,b")
    job.expect(r"\[.\] rank \d 2 0 ", 2)
    job.send(number)
    assert job.wait() == exit_codes.SIGNAL_BASE + number
    job.expect(rf"\[.\] .*ft-run received {number.name}", 2)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Ctrl-C", "gone"])
def test_the_terminal_ends_the_job(ft: Launcher, ssh: Ssh, way: str) -> None:
    terminal = ft.script(TERMINAL, "terminal.py")
    job = ssh.job("--hosts", "a,b", program=(sys.executable, str(terminal), FT_RUN))
    job.expect(r"\[.\] rank \d 2 0 ", 2)
    if way == "Ctrl-C":
        job.send(signal.SIGUSR1)
        assert job.wait() == exit_codes.SIGNAL_BASE + signal.SIGINT
        job.expect(r"\[.\] .*ft-run received SIGINT", 2)
    else:
        job.send(signal.SIGKILL)
    ssh.none_is_left()


@pytest.mark.slow
def test_the_token_travels_by_ssh_and_is_in_no_list_of_processes(ft: Launcher, ssh: Ssh) -> None:
    secret = new_token()
    write_token(str(ft.folder / "job.token"), secret)
    job = ssh.job("--hosts", "a,b,c", "--token-file", ft.folder / "job.token", script=ft.script(
        "import os, pathlib, sys, threading\n"
        "os.write(1, f'token {os.environ.get(\"FT_RUN_TOKEN\")}\\n'.encode())\n"
        "while not pathlib.Path(sys.argv[1]).exists(): threading.Event().wait(0.05)\n"
    ))  # fmt: skip
    job.expect(r"\[.\] token None$", 3)
    lines = [line for host in (ssh.launcher, *ssh.hosts) for line in _command_lines(host)]
    assert sum("hosts-node" in line for line in lines) >= 3
    assert not any(secret.reveal() in line for line in lines)
    asked = ft.run("status", "a", host=ssh.hosts[1])
    assert "requires a token" in asked.stderr
    ssh.go_on.touch()
    assert job.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "no ssh", "no network"])
def test_nothing_stays_when_the_launcher_is_gone(ft: Launcher, ssh: Ssh, way: str) -> None:
    job = ssh.job("--hosts", "a,b")
    job.expect(r"\[.\] rank \d 2 0 ", 2)
    if way == "killed":
        job.send(signal.SIGKILL)
    elif way == "no ssh":
        for pid, line in ft.processes().items():
            if line.startswith("ssh "):
                os.kill(pid, signal.SIGKILL)
    else:
        ssh.launcher.cut()
    ssh.none_is_left()
    assert job.wait() == (-signal.SIGKILL if way == "killed" else exit_codes.RENDEZVOUS_FAILED)


@pytest.mark.slow
def test_a_host_that_cannot_be_reached_ends_the_job(ft: Launcher, ssh: Ssh) -> None:
    ssh.daemons["b"].kill()
    ssh.daemons["b"].wait()
    shutil.copy(ssh.folder / "other.pub", ssh.folder / "strangers")
    ssh.daemons["b"] = ssh.start(ssh.hosts[1], "strangers")
    ssh.hosts[2].cut()
    ssh.command += " -o ConnectTimeout=2"
    job = ssh.job("--hosts", "a,b,c,nosuchhost")
    assert job.wait() == exit_codes.RENDEZVOUS_FAILED
    job.expect(r"\[b\] .*Permission denied \(publickey")
    job.expect(r"\[c\] .*(timed out|No route to host)")
    job.expect(r"\[nosuchhost\] .*Could not resolve hostname")
    for name in ("b", "c", "nosuchhost"):
        job.expect(f"ft-run hosts: {name}: ssh has not connected")
    job.expect(
        r"ft-run: error: 3 of 4 hosts have not joined .* \(b, c, nosuchhost\), and it needs 4"
    )


@pytest.mark.slow
def test_a_lost_host_is_survived_where_the_job_can(ft: Launcher, ssh: Ssh) -> None:
    job = ssh.job(
        *("--hosts", "a,b,c", "--nnodes", "2", "--max-restarts", "1"),
        *("--rdzv-endpoint", "a:29400"),  # a stays, and leads
    )
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
