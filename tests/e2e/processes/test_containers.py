"""Where containers differ from a machine: PID 1, users, folders, names and networks that lack."""

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run import exit_codes
from ft_run.tests.harness.family import state_of

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces"),
]

RANKS = """import os
os.write(1, "rank {RANK} of {WORLD_SIZE}\\n".format_map(os.environ).encode())  # ranks do not mix
"""


def in_namespaces(ft: "Launcher", *flags: str, prepare: str = ":") -> tuple[str, ...]:
    """Return ft-run in namespaces of its own, after some shell commands; they end with it."""
    return ("unshare", *flags, "sh", "-ec", f'{prepare}\nexec "$@"', "sh", *ft.program)


def child_of(pid: int) -> int:
    """Return the only child of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def children_of(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(child) for task in tasks for child in (task / "children").read_text().split()}


# --- PID 1 ---------------------------------------------------------------------------------------


AS_PID_1 = ("--pid", "--fork", "--kill-child", "--mount-proc")

WAITING = """
import os, threading
if os.fork() == 0:  # a grandchild that no process waits for
    os.setsid()
    if os.fork():
        os._exit(3)
    threading.Event().wait()
name = open("/proc/1/cmdline").read().split("\\0")[1]
os.write(1, f"waiting {name}\\n".encode())  # whole, beside the other worker
threading.Event().wait()
"""


def test_pid_1_reaps_what_comes_from_outside_and_stops_in_order(ft: "Launcher") -> None:
    """As by ``kubectl exec`` into the container, and then ``docker stop``."""
    program = in_namespaces(ft, *AS_PID_1)
    command = ft.start("--standalone", "--nproc-per-node", 2, ft.script(WAITING), program=program)
    assert all(match.string.rstrip().endswith("ft-run") for match in command.expect("^waiting", 2))
    agent = child_of(command.pid)
    gate = ft.folder / "gate"
    os.mkfifo(gate)
    before = children_of(agent)
    enter = ("nsenter", "--target", str(agent), "--pid", "--mount", "sh", "-c")
    ft.run(f"cat {gate} & :", program=enter)  # the shell ends, what it started goes to PID 1
    ft.wait_until(lambda: len(children_of(agent) - before) == 1, "PID 1 has adopted it")
    (stranger,) = children_of(agent) - before
    os.close(os.open(gate, os.O_WRONLY))
    ft.wait_until(lambda: state_of(stranger) == "", "PID 1 has reaped it")
    assert [pid for pid in children_of(agent) if state_of(pid) == "Z"] == []
    os.kill(agent, signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert "received SIGTERM: stopping 2 worker(s)" in command.stderr
    assert "Traceback" not in command.stderr


@pytest.mark.root
@pytest.mark.parametrize(
    ("words", "flags", "prepare", "wrong"),
    [
        (
            ("--standalone", "--no-python", "true"),
            ("--pid", "--fork", "--kill-child"),
            ":",
            r"this process is 1 here and \d+ in /proc",
        ),
        (
            ("check",),
            ("--mount",),
            "umount --lazy /proc",
            r"/proc/self cannot be read \(No such file .*\)",
        ),
    ],
    ids=["another", "none"],
)
def test_a_proc_that_shows_other_processes_is_refused(
    ft: "Launcher", words: tuple[str, ...], flags: tuple[str, ...], prepare: str, wrong: str
) -> None:
    done = ft.run(*words, program=in_namespaces(ft, *flags, prepare=prepare))
    assert done.process.returncode == exit_codes.USAGE
    assert re.fullmatch(
        rf"ft-run: error: /proc is not that of this PID namespace: {wrong}; ft-run finds and ends "
        r"processes by it\. Mount one here \(`unshare --pid --fork --mount-proc`, or "
        r"`mount -t proc proc /proc`\)\.\n",
        done.stderr,
    )


# --- users and folders ---------------------------------------------------------------------------


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach and write."""
    folder = Path(tempfile.mkdtemp(prefix="ft-run-test-"))
    folder.chmod(0o777)
    (folder / "script.py").write_text(RANKS)
    yield folder
    shutil.rmtree(folder)


def test_a_user_without_a_name_or_a_home(ft: "Launcher", public: Path) -> None:
    """As on OpenShift: a number that is in no passwd file."""
    # It may read everything: root's Python and the test's folder may be root's alone.
    read = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
    unknown_user = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", *read)
    command = ft.run(
        "--nnodes", 1, "--nproc-per-node", 2, "--tee", 3, "script.py",
        program=(*unknown_user, "env", "--unset=HOME", *ft.program),
        cwd=public, env={"TMPDIR": str(public)},
    )  # fmt: skip
    assert command.process.returncode == 0, command.stderr
    assert sorted(command.stdout.splitlines()) == [
        f"[default{rank}]:rank {rank} of 2" for rank in range(2)
    ]
    assert [path.name for path in public.iterdir()] == ["script.py"]


READ_ONLY = """
mount --make-rprivate /
mount --bind /tmp /tmp
while read -r _ point _; do
    case $point in /tmp|/tmp/*|/proc|/proc/*|/dev|/dev/*) ;;
    *) mount -o remount,bind,ro "$point" 2>/dev/null || :;;
    esac
done </proc/self/mounts
"""


def test_a_read_only_root_with_a_writable_tmp(ft: "Launcher") -> None:
    script = ft.script(
        RANKS + "try:\n    open('/ft-run-test', 'w')\nexcept OSError as e:\n    print(e.strerror)\n"
    )
    program = in_namespaces(ft, "--mount", prepare=READ_ONLY)
    job = f"read-only-{os.getpid()}"
    command = ft.run(
        "--standalone", "--rdzv-id", job, "--tee", 3, script,
        program=program, cwd=Path("/"), env={"TMPDIR": ""},
    )  # fmt: skip
    assert command.process.returncode == 0, command.stderr
    assert command.stdout.splitlines() == [
        "[default0]:rank 0 of 1",
        "[default0]:Read-only file system",
    ]
    assert list(Path("/tmp").glob(f"torchelastic_*/{job}_*")) == []


# --- names and networks --------------------------------------------------------------------------


def test_a_host_name_that_does_not_resolve(ft: "Launcher", free_port: int) -> None:
    name = f"no-such-host-{os.getpid()}"
    program = in_namespaces(ft, "--uts", prepare=f"hostname {name}")
    args = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "uts",
            ft.script(RANKS))  # fmt: skip
    agents = [ft.start(*args, program=program) for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0], [agent.stderr for agent in agents]
    assert sorted(agent.stdout for agent in agents) == ["rank 0 of 2\n", "rank 1 of 2\n"]
    assert all(f" node_id={name}/" in agent.stderr for agent in agents)


MEET = """
import os, socket, threading

where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(where, family=socket.AF_INET6) as server:
        server.accept()[0].close()
else:
    while True:
        try:
            socket.create_connection(where).close()
            break
        except ConnectionRefusedError:  # rank 0 does not listen yet
            threading.Event().wait(0.01)
print(where[0], "met", flush=True)
"""


def test_a_network_without_ipv4(ft: "Launcher", free_port: int) -> None:
    """Not even 127.0.0.1; several nodes, and one by itself."""
    no_ipv4 = "ip link set lo up\nip address del 127.0.0.1/8 dev lo"
    script = ft.script(MEET)
    args = ("--nnodes", 2, "--rdzv-endpoint", f"[::1]:{free_port}", "--rdzv-id", "v6", script)
    first = ft.start(*args, program=in_namespaces(ft, "--net", prepare=no_ipv4))
    first.expect("hosted here")
    enter = ("nsenter", "--target", str(first.pid), "--net", *ft.program)
    agents = [first, ft.start(*args, program=enter)]
    alone = ft.script(RANKS + "import socket\nhost, port = map(os.environ.get, ('MASTER_ADDR',"
                      "'MASTER_PORT'))\nserver = socket.create_server((host, int(port)),"
                      "family=socket.AF_INET6)\nprint(host)\n", "alone.py")  # fmt: skip
    by_itself = ft.start("--standalone", alone, program=enter)
    assert by_itself.wait() == 0, by_itself.stderr
    assert by_itself.stdout == "rank 0 of 1\n::1\n"
    assert [agent.wait() for agent in agents] == [0, 0], [agent.stderr for agent in agents]
    assert [agent.stdout for agent in agents] == ["::1 met\n", "::1 met\n"]
    assert re.search(r" store=::1:\d+", first.stderr)


# --- a CPU quota ---------------------------------------------------------------------------------


@pytest.fixture
def half_a_cpu() -> Iterator[Path]:
    """A cgroup of the v1 CPU controller with a quota, and one within it that has none."""
    mount = Path("/sys/fs/cgroup/cpu")
    if not os.access(mount / "cpu.cfs_quota_us", os.W_OK):
        pytest.skip("needs a writable v1 cpu controller at /sys/fs/cgroup/cpu")
    outer = mount / f"ft-run-test-quota-{os.getpid()}"
    inner = outer / "inner"
    inner.mkdir(parents=True)
    (outer / "cpu.cfs_quota_us").write_text("50000")
    try:
        yield inner
    finally:
        inner.rmdir()
        outer.rmdir()


def test_workers_are_counted_by_a_real_quota(ft: "Launcher", half_a_cpu: Path) -> None:
    enter = ("sh", "-c", f'echo $$ >"{half_a_cpu}/cgroup.procs"; exec "$@"', "sh", *ft.program)
    script = ft.script(RANKS)
    for word in ("cpu", "auto"):
        command = ft.run("--standalone", "--accelerator", "cpu", "--nproc-per-node", word, script,
                         program=enter)  # fmt: skip
        assert (command.process.returncode, command.stdout) == (0, "rank 0 of 1\n")
        assert re.search(
            r"nproc_per_node=1 \(cgroup v1 cpu.cfs_quota_us 50000/100000 at /\S*"
            + re.escape(half_a_cpu.parent.name)
            + r"\b",
            command.stderr,
        )
