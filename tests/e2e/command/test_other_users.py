"""What another user of the host finds of a job: its processes, files and sockets, one by one."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.training.worker import preemption, snapshot_page, work_messages

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

pytestmark = pytest.mark.root

STRANGER = 65534

WORKER = """
import os, pathlib, sys, threading
os.write(1, f"up {os.environ['RANK']}\\n".encode())
while not pathlib.Path(sys.argv[1]).exists():
    threading.Event().wait(0.05)
"""

# As workers ask their agent for the memory of their snapshots, and for a page of notices.
REQUESTS = {
    "snapshots": [snapshot_page.REQUEST.pack(snapshot_page.MAGIC, rank) for rank in range(2)],
    "notices": [preemption.REQUEST.pack(preemption.MAGIC, 0, preemption.ASK, -1)],
    "work": [
        work_messages.OPEN.pack(work_messages.MAGIC, rank, 7, 1) + b"name" for rank in range(2)
    ],
}

# Tries all that it is told of, and prints what it could do; of root it becomes the other user.
SNOOP = """
import json, os, socket, sys
tried = json.load(sys.stdin)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))

def can(action, *args):
    try:
        return action(*args) is not None or True
    except OSError:
        return False

def opened(path, flags):
    os.close(os.open(path, flags | os.O_NONBLOCK))

def answered(name, request):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(60)
        channel.connect("\\0" + name)
        channel.send(bytes.fromhex(request))
        if not channel.recv(64):
            raise ConnectionResetError

print(json.dumps({
    "signalled": [pid for pid in tried["processes"] if can(os.kill, pid, 0)],
    "read": [path for path in tried["private"] if can(opened, path, os.O_RDONLY)],
    "followed": [path for path in tried["links"] if can(os.readlink, path)],
    "listed": [path for path in tried["folders"] if can(os.listdir, path)],
    "written": [path for path in tried["private"] if can(opened, path, os.O_WRONLY)],
    "answered": [name for name, request in tried["sockets"] if can(answered, name, request)],
    "seen": [open(f"/proc/{pid}/cmdline").read() for pid in tried["processes"]],
}))
"""


@pytest.fixture
def user() -> int:
    """The job's user, which has no other processes."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    return 2_000_000 + os.getpid()


@pytest.fixture
def home(user: int) -> Iterator[Path]:
    """A folder of the job's user that others may look into."""
    home = Path(tempfile.mkdtemp(prefix="ft-run-home-"))
    home.chmod(0o755)
    os.chown(home, user, user)
    yield home
    shutil.rmtree(home)
    shutil.rmtree(f"/tmp/ft-run-{user}")


def what_there_is(processes: dict[int, str], user: int, home: Path) -> dict[str, list[Any]]:
    """Return what another user could try: as root, which sees all of it."""
    found: dict[str, list[Any]] = {
        "processes": [*processes], "private": [], "links": [], "folders": [], "sockets": [],
    }  # fmt: skip
    inodes = set()
    for pid in processes:
        of_process = f"/proc/{pid}"
        found["private"] += [f"{of_process}/{name}" for name in ("environ", "mem", "maps", "auxv")]
        found["links"] += [f"{of_process}/{name}" for name in ("cwd", "exe", "root")]
        found["folders"] += [f"{of_process}/{name}" for name in ("fd", "map_files")]
        for descriptor in os.listdir(f"{of_process}/fd"):
            found["private"].append(f"{of_process}/fd/{descriptor}")
            target = os.readlink(f"{of_process}/fd/{descriptor}")
            inodes |= set(re.findall(r"socket:\[(\d+)\]", target))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if words[6] in inodes and words[7:] and words[7].startswith("@"):
            name = words[7][1:]
            requests = REQUESTS[name.split("-")[2]]
            found["sockets"] += [(name, request.hex()) for request in requests]
    for top in (home, Path(f"/tmp/ft-run-{user}"), Path("/dev/shm")):
        for path in (top, *top.rglob("*")):
            if path.lstat().st_uid == user and path not in (home, home / "gate"):
                found["folders" if path.is_dir() else "private"].append(str(path))
    return found


def test_another_user_finds_nothing(ft: "Launcher", free_port: int, user: int, home: Path) -> None:
    """The workers of one node are forked, those of the other executed."""
    secret = secrets.token_hex(32)
    temporary = home / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    # Python may be in a folder of root.
    read = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
    become = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *read)
    own = {"FT_RUN_TOKEN": secret, "TMPDIR": str(temporary), "HOME": str(home)}
    own["TORCHELASTIC_ENABLE_FILE_TIMER"] = "1"
    arguments = (
        "--nnodes", 2, "--rdzv-id", f"u-{ft.mark}", "--rdzv-endpoint", f"127.0.0.1:{free_port}",
        "--hang-timeout", 600, "--tee", 3, ft.script(WORKER), home / "gate",
    )  # fmt: skip
    agents = [
        ft.start(*preload, *arguments, env=own, program=(*become, *ft.program))
        for preload in (("--preload", "json"), ())
    ]
    for agent in agents:
        agent.expect("^.*up .$")
    tried = what_there_is(ft.processes(), user, home)

    def could(*become: str) -> dict[str, list[Any]]:
        snoop = [*become, sys.executable, "-I", "-c", SNOOP, str(STRANGER)]
        done = subprocess.run(
            snoop, input=json.dumps(tried), capture_output=True, text=True, check=True
        )
        return dict(json.loads(done.stdout))

    stranger, owner = could(), could(*become)
    (home / "gate").touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    print(*(f"\n{what}: {len(of)}" for what, of in tried.items()))
    seen = stranger.pop("seen")
    assert len(seen) == len(tried["processes"])
    assert secret not in str(seen)
    assert not any(stranger.values()), stranger
    # All of it is there: its owner can.
    assert owner["signalled"] == tried["processes"]
    assert {*owner["answered"]} == {name for name, _ in tried["sockets"]}
    assert len({*owner["answered"]}) == len(REQUESTS) * len(agents)
    assert owner["listed"] == tried["folders"]
    assert owner["followed"] == tried["links"]
    assert {path for path in tried["private"] if path.endswith("/environ")} <= {*owner["read"]}
    assert any(path.startswith(f"/tmp/ft-run-{user}/") for path in owner["written"])
    assert any("/torchelastic_" in path for path in owner["read"])
