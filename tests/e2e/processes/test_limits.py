"""Where the kernel makes no more processes or files: one sentence that says which limit it was."""

import os
import re
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

TOO_MANY = "Too many open files; a process may have 32 open files here: raise ulimit -n"
NO_PROCESS = (
    r"no process can be made: Resource temporarily unavailable; there are too many processes and "
    r"threads: raise pids\.max of the container( \(now \d+\))?, ulimit -u, or .* of this host"
)
WAITING = "import threading\nthreading.Event().wait()\n"


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup for processes, v1 or v2, yet without a limit."""
    if os.geteuid() != 0:
        pytest.skip("cgroups need root")
    root = Path("/sys/fs/cgroup")
    parent = root / "pids" if (root / "pids").exists() else root
    path = parent / f"ft-run-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    if (path / "pids.max").exists():
        yield path
        path.rmdir()
    else:
        path.rmdir()
        pytest.skip("there is no pids controller here")


def root_cause(command: "Command") -> str:
    """What the report names; it is in the last line too, and no part of ft-run broke."""
    assert "Traceback" not in command.stderr
    (named,) = re.findall(r"^Root cause: (.*)$", command.stderr, re.MULTILINE)
    assert named in command.stderr.splitlines()[-1]
    return str(named)


@pytest.mark.root
@pytest.mark.parametrize("options", [(), ("--preload", "colorsys")], ids=["cold", "warm"])
def test_a_container_that_allows_too_few_processes(
    ft: "Launcher", cgroup: Path, options: tuple[str, ...]
) -> None:
    """Agent, guard and spawner have theirs; the fork server has one for as long as it is there."""
    (cgroup / "pids.max").write_text("5")
    enter = ("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$0" "$@"', *ft.program)
    command = ft.run(
        "--standalone", "--nproc-per-node", 3, *options, ft.script(WAITING), program=enter
    )
    assert command.process.returncode == 1
    named = rf"rank [12] on node 0 \(\S+\) could not be started: {NO_PROCESS}"
    assert re.fullmatch(named, root_cause(command))


@pytest.mark.root
def test_a_user_who_may_have_too_few_processes(ft: "Launcher") -> None:
    """The limit is that of the user, whatever starts the processes: this user has no others."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    user = 2_000_000 + os.getpid()
    read = ("--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override")
    become = ("setpriv", f"--reuid={user}", "--clear-groups", *read)
    limit = ("prlimit", "--nproc=3")
    command = ft.run(
        *("--standalone", "--nproc-per-node", 3, ft.script(WAITING)),
        program=(*limit, *become, *ft.program),
    )
    assert command.process.returncode == 1
    assert re.search(NO_PROCESS, root_cause(command))


@pytest.mark.root
def test_a_launcher_that_gets_no_process_at_all(ft: "Launcher", cgroup: Path) -> None:
    (cgroup / "pids.max").write_text("1")
    enter = ("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$0" "$@"', *ft.program)
    command = ft.run("--standalone", ft.script(WAITING), program=enter)
    assert command.process.returncode == 1
    assert re.fullmatch(rf"ft-run: error: {NO_PROCESS}\.\n", command.stderr)


@pytest.mark.root
@pytest.mark.parametrize("limit", range(3, 11))
def test_limit_without_room_for_the_threads_of_grpc_is_named(
    ft: "Launcher", cgroup: Path, free_port: int, limit: int
) -> None:
    (cgroup / "pids.max").write_text(str(limit))
    enter = ("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$0" "$@"', *ft.program)
    options = ("--nnodes", 1, "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", ft.mark)
    command = ft.run(*options, "--no-python", "true", program=enter)
    assert command.process.returncode == 1
    assert f"raise pids.max of the container (now {limit})" in command.stderr
    assert "Traceback" not in command.stderr


@pytest.mark.root
@pytest.mark.parametrize(
    "command", [("master", "--bind"), ("status",), ("stacks",)], ids=lambda words: words[0]
)
def test_other_commands_name_the_limit_on_threads(
    ft: "Launcher", cgroup: Path, free_port: int, command: tuple[str, ...]
) -> None:
    (cgroup / "pids.max").write_text("3")
    enter = ("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$0" "$@"', *ft.program)
    ended = ft.run(*command, f"localhost:{free_port}", program=enter)
    assert ended.process.returncode == 1
    assert re.fullmatch(
        r"ft-run: error: connections need \d+ threads, and 2 can be started: Resource temporarily "
        r"unavailable; .* raise pids\.max of the container \(now 3\), .*\n",
        ended.stderr,
    )


@pytest.mark.root
def test_agent_reconnects_when_its_workers_have_used_up_the_limit(
    ft: "Launcher", cgroup: Path, free_port: int
) -> None:
    """gRPC keeps its threads between two connections: it could not start them again."""
    master = ft.start("master", "--bind", f"127.0.0.1:{free_port}")
    master.expect("listening")
    enter = ("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$0" "$@"', *ft.program)
    gate = ft.folder / "gate"
    wait = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)"
    options = ("--nnodes", 1, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", ft.mark)
    node = ft.start(*options, ft.script(wait), gate, program=enter)
    node.expect("round=0 .*started")
    master.send(signal.SIGKILL)
    node.expect("no connection to the master")
    (cgroup / "pids.max").write_text("4")  # agent, guard, spawner, worker: more are not ended
    ft.start("master", "--bind", f"127.0.0.1:{free_port}")
    node.expect("reconnected to the master")
    gate.touch()
    assert node.wait() == 0


def test_what_ran_out_may_be_there_again_and_is_no_usage_error(ft: "Launcher") -> None:
    command = ft.run(
        *("--standalone", "--nproc-per-node", 40, "--tee", 3, "--max-restarts", 2),
        ft.script(WAITING),
        program=("prlimit", "--nofile=32:32", *ft.program),
    )
    assert command.process.returncode == 1
    assert TOO_MANY in root_cause(command)
    assert "2 of 2 restarts used" in command.stderr.splitlines()[-1]


@pytest.mark.parametrize("limit", [6, 16])
def test_too_few_open_files_are_refused(ft: "Launcher", limit: int) -> None:
    enter = ("sh", "-c", f'ulimit -n {limit} && exec "$0" "$@"', *ft.program)
    command = ft.run("--standalone", "--tee", 3, "--no-python", "true", program=enter)
    assert command.process.returncode == 1
    assert command.stderr == (
        f"ft-run: error: a process may have {limit} open files here, and an agent needs 32: raise "
        "ulimit -n.\n"
    )
