"""What a worker does so that the agent gets the records of its collectives."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ft_run.launcher.processes.worker_watch import WorkerWatch, starter_env
from ft_run.launcher.stacks.control_plane import ControlPlane
from ft_run.training.worker import recorders
from ft_run.training.worker.page_layout import BACKENDS_AT, BACKENDS_BYTES
from ft_run.training.worker.recorders import note_backends, read_backends, write_backends

HAS_RECORDERS = hasattr(torch.distributed.distributed_c10d, "_maybe_attach_flight_recorder")

SERVES = """
import os, socket, sys
from torch._C import _distributed_c10d as c10d
from ft_run.training.worker import recorders

def dump(request, response):
    response.set_status(200)
    response.set_content("dumped", "text/plain")

recorders.serve()
path = os.environ["FT_RUN_RECORDER_SOCKETS"] + str(os.getpid())
if "fr_dump_file" not in c10d._get_handler_names():  # before torch 2.15
    print("without the handler:", os.path.exists(path))
    c10d._register_handler("fr_dump_file", dump)
    recorders.serve()
"""

FORKS = (
    SERVES
    + """
os.write(2, b"own line\\n")
recorders.serve()
sys.stdout.flush()  # else each child prints it again
for _ in range(3):
    pid = os.fork()
    if not pid:
        sys.exit()  # the interpreter ends normally, and destroys its objects
    print("child", os.waitpid(pid, 0)[1], flush=True)
with socket.socket(socket.AF_UNIX) as one:
    one.connect(path)
    one.sendall(b"POST /handler/ping HTTP/1.1\\r\\nContent-Length: 0\\r\\n\\r\\n")
    print(one.recv(15).decode())
"""
)

NOTES = """
import torch, torch.distributed as dist
from torch._C._distributed_c10d import Backend, ProcessGroupGloo

class Named(Backend):
    def __init__(self, gloo):
        super().__init__(gloo.rank(), gloo.size())
        self.gloo = gloo

    def getBackendName(self):
        return "nccl2"

    def allreduce(self, tensors, options):
        return self.gloo.allreduce(tensors, options)

def create(*arguments):
    gloo = ProcessGroupGloo(*arguments)  # before torch 2.15 no class of Python can be a backend
    has_recorders = hasattr(dist.distributed_c10d, "_maybe_attach_flight_recorder")
    return Named(gloo) if has_recorders else gloo

dist.Backend.register_backend("named", create, devices=["cpu"])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(dist.is_initialized(), flush=True)
input()
group = dist.new_group([0], backend="named")
dist.all_reduce(torch.ones(3), group=group)
print("noted", flush=True)
input()
dist.destroy_process_group()
"""


def page() -> Any:
    words = memoryview(bytearray(4096)).cast("Q")
    return SimpleNamespace(words=words, is_own=lambda: True)


def group(*names: str) -> Any:
    """A process group with a backend for each of its devices."""
    return SimpleNamespace(
        _device_types=[*range(len(names))],
        _get_backend=lambda kind: SimpleNamespace(name=lambda: names[kind]),
    )


def test_backends_of_groups_are_noted_and_served_once(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    monkeypatch.setattr(recorders, "serve", lambda: served.append("server"))
    mine = page()

    def attach(group: object, config: object, ranks: list[int]) -> int:
        return len(ranks)

    c10d = SimpleNamespace(_maybe_attach_flight_recorder=attach)
    note_backends(c10d, mine)
    assert c10d._maybe_attach_flight_recorder(group("gloo"), None, [0, 1]) == 2
    assert (read_backends(mine.words), served) == ((), [])
    for names in (("gloo", "nccl2"), ("nccl2",), ("nccl-lazy",)):
        c10d._maybe_attach_flight_recorder(group(*names), None, ranks=[0])
    assert read_backends(mine.words) == ("nccl-lazy", "nccl2")
    c10d._maybe_attach_flight_recorder(None, None, [])
    assert served == ["server"] * 2


def test_nothing_is_noted_of_a_forked_process_or_before_torch_2_15() -> None:
    mine = page()
    mine.is_own = lambda: False
    c10d = SimpleNamespace(_maybe_attach_flight_recorder=lambda *_: None)
    note_backends(c10d, mine)
    c10d._maybe_attach_flight_recorder(group("nccl2"), None, [])
    assert read_backends(mine.words) == ()
    note_backends(SimpleNamespace(), mine)


def test_backends_beyond_the_page_leave_a_name_without_a_dump() -> None:
    mine = page()
    write_backends(mine.words, {f"backend-number-{number:02}" for number in range(20)})
    names = read_backends(mine.words)
    assert names[0] == "backend-number-00"
    assert names[-1] == "..."
    assert all(name.startswith("backend-number-") for name in names[:-1])
    assert set(bytes(mine.words.cast("B"))[BACKENDS_AT + BACKENDS_BYTES :]) == {0}


def run(script: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "FT_RUN_RECORDER_SOCKETS": f"{folder}/c"}
    command = (sys.executable, "-c", script)
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_server_survives_processes_that_its_own_forks(tmp_path: Path) -> None:
    done = run(FORKS, tmp_path)
    lines = done.stdout.splitlines()
    if not HAS_RECORDERS:
        assert lines.pop(0) == "without the handler: False"
    assert lines == ["child 0", "child 0", "child 0", "HTTP/1.1 200 OK"], done.stderr
    assert (done.returncode, done.stderr) == (0, "own line\n")


def test_no_server_where_its_path_is_too_long(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    done = run(SERVES + "print(os.path.exists(path))", folder)
    assert done.stdout.splitlines()[-1] == "False"
    assert (done.returncode, done.stderr) == (0, "")


def test_backend_of_a_real_group_is_noted_and_dumped(tmp_path: Path) -> None:
    """Since torch 2.15: before, nothing is noted, and no server is started."""
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    assert (version >= (2, 15)) == HAS_RECORDERS, "torch has renamed the function that is wrapped"
    watch = WorkerWatch()
    variables: Mapping[str, str] = {
        **os.environ,
        "FT_RUN_RECORDER_SOCKETS": f"{tmp_path}/c",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_",
    }
    environ = {**variables, **starter_env(variables, watch.fds)}
    command = (sys.executable, "-c", NOTES)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environ, stdin=pipe, stdout=pipe, text=True, pass_fds=watch.fds
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None

        assert worker.stdout.readline() == "True\n"
        assert watch.backends() == ()
        print(file=worker.stdin, flush=True)
        assert worker.stdout.readline() == "noted\n"
        assert watch.backends() == (("nccl2",) if HAS_RECORDERS else ())

        async def dumped() -> list[str]:
            plane = ControlPlane(environ)
            if not plane.ask(0, worker.pid, watch.backends(), f"{tmp_path}/dump_0"):
                return []
            await asyncio.wait(plane._asked.values())
            entries = plane.finished()[0]["nccl2"]["entries"]
            return [entry["profiling_name"] for entry in entries]

        assert asyncio.run(dumped()) == (["nccl2:all_reduce"] if HAS_RECORDERS else [])
        print(file=worker.stdin, flush=True)
    assert worker.returncode == 0
    watch.close()
