"""The agent's side of the spawner, with a real one, in a program from which it can be forked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TWO_KILLS = """
import asyncio, socket
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Exited

client = SpawnerClient()
heard = []

def wait_for_answers(count):
    # They are there when this returns, and are not taken yet.
    while client._channel.recv(4096, socket.MSG_PEEK).count(b"Empty") < count:
        pass

async def main():
    over = asyncio.Event()
    def hear(event):
        heard.append(type(event).__name__)
        if isinstance(event, Exited):
            over.set()
    for count in (1, 2):
        client.kill()
        client._channel.setblocking(True)
        wait_for_answers(count)
    client.listen(hear)
    client.spawn(0, [WorkerCommand(("true",), {})])
    await over.wait()
    print(*heard)

asyncio.run(main())
client.close()
"""


def test_an_answer_to_an_earlier_kill_is_no_answer() -> None:
    """Workers may have been started since, and the next kill would pass over them."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_KILLS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "Empty Spawned Exited\n"


FENCE = """
import asyncio, os, sys, time
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Fenced

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)

client = SpawnerClient()
heard = asyncio.Queue()
SLEEP = [WorkerCommand(("sleep", "1000"), {})]

async def until(name):
    while type(event := await heard.get()).__name__ != name:
        pass
    return event

async def main():
    client.listen(heard.put_nowait)
    await globals()[sys.argv[1]]()

async def held_up():
    client.fence(now() + 1000)
    client.spawn(0, SLEEP)
    pid = (await until("Spawned")).pids[0]
    end = now() + 0.3
    client.fence(end)
    while os.path.exists(f"/proc/{pid}"):  # the loop of this process does not go on
        time.sleep(0.01)
    assert now() >= end
    print(type(await heard.get()).__name__, (await until("Exited")).exit_code)

async def not_begun():
    client.fence(now() - 5)
    client.spawn(0, SLEEP)
    print(type(await heard.get()).__name__, client.left())

async def late():
    client.fence(now() + 1000)
    client.spawn(0, SLEEP)
    await until("Spawned")
    client.fence(now() - 5)
    print((await until("Fenced")).late_s >= 5)

async def repeated():
    client.fence(now() + 1000)
    client.spawn(0, [WorkerCommand(("true",), {})])
    await until("Exited")
    ended = now()
    while now() < ended + 0.3:
        pass
    late_s = []
    for _ in range(3):  # as each second while there is no leader
        client.fence(ended - 1.5)
        client.kill()
        while type(event := await heard.get()).__name__ != "Empty":
            late_s += [event.late_s] if isinstance(event, Fenced) else []
    print(len(late_s), late_s[0] <= 1.5)

async def said_later():
    client.fence(now() - 5)
    client.fence(now() + 1000)
    client.spawn(0, SLEEP)
    print(type(await heard.get()).__name__)

asyncio.run(main())
client.close()
"""


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("held_up", "Fenced -9"),
        ("not_begun", "Fenced []"),
        ("late", "True"),
        ("repeated", "1 True"),
        ("said_later", "Spawned"),
    ],
)
def test_workers_live_no_longer_than_the_fence_says(case: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FENCE, case], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{said}\n"


IN_BACKGROUND = """
import asyncio, sys
from ft_run.events.preload import PreloadSource
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Exited, ForkServerEvent

client = SpawnerClient()
heard = asyncio.Queue()
WORKER = (sys.executable, "-u", "-c", "import sys; sys.exit('slow' in sys.modules)")
states = []

async def event():
    event = await heard.get()
    if isinstance(event, ForkServerEvent):
        states.append(event.state.value)
    return event

async def work():
    client.spawn(0, [WorkerCommand(WORKER, {})])
    while not isinstance(exited := await event(), Exited):
        pass
    print("warm" if exited.exit_code else "cold")

async def main():
    client.listen(heard.put_nowait)
    client.preload(["slow"], WORKER, {}, source=PreloadSource.WORKERS)
    print(client.preloading)
    await work()
    with open("gate", "w"):
        pass
    while "ready" not in states:
        await event()
    await work()

asyncio.run(main())
client.close()
"""


def test_workers_do_not_wait_for_an_import_in_the_background(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("open('gate').read()")
    os.mkfifo(tmp_path / "gate")
    done = subprocess.run(
        [sys.executable, "-c", IN_BACKGROUND],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["False", "cold", "warm"]


HANGS = """
import asyncio, sys
from ft_run.events.preload import PreloadSource
from ft_run.launcher.spawner import forkserver_host
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Exited, ForkServerEvent

forkserver_host._LOADING_MAX_S = 0.2
client = SpawnerClient()
heard = asyncio.Queue()
WORKER = (sys.executable, "-u", "-c", "print('ran')")
client.preload(["signal", "slow"], WORKER, {}, source=PreloadSource.TUNE_FILE)
client.spawn(0, [WorkerCommand(WORKER, {})])

async def main():
    client.listen(heard.put_nowait)
    while not isinstance(event := await heard.get(), Exited):
        if isinstance(event, ForkServerEvent):
            print(event.state.value, event.text, flush=True)

asyncio.run(main())
client.close()
"""


def test_the_first_workers_start_normally_if_modules_of_a_tune_file_hang(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import signal; signal.pause()")
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    late = "failed importing signal, slow takes longer than 0.2 s"
    assert done.stdout.splitlines() == ["loading ", late, "ran"]


WRITES = """
import os, stat, sys
for name in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{name}") and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
        os.write(int(name), MESSAGE)
"""
WRITTEN = """
import asyncio, sys
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Exited, ForkServerEvent

client = SpawnerClient()
heard = asyncio.Queue()
WORKER = (sys.executable, "-u", "-c", "print('ran')")
client.preload(["writes"], WORKER, {})
client.spawn(0, [WorkerCommand(WORKER, {})])

async def main():
    client.listen(heard.put_nowait)
    while not isinstance(event := await heard.get(), Exited):
        if isinstance(event, ForkServerEvent):
            print(event.state.value, event.text, flush=True)

asyncio.run(main())
client.close()
"""


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"hello", "invalid length 1751477356 of a message"),
        (b"\0\0\0\2[]", "Expected `object`, got `array`"),
        (b'\0\0\0\x0d{"pids":[{}]}', "Expected `int`, got `object` - at `$.pids[0]`"),
        (b"\0\1\0\0" + 65536 * b"[", "maximum recursion depth exceeded"),
    ],
)
def test_workers_start_normally_if_a_preloaded_module_writes_to_the_spawner(
    tmp_path: Path, message: bytes, why: str
) -> None:
    (tmp_path / "writes.py").write_text(WRITES.replace("MESSAGE", repr(message)))
    done = subprocess.run(
        [sys.executable, "-c", WRITTEN],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loading, failed, ran = done.stdout.splitlines()
    assert (loading, ran) == ("loading ", "ran")
    assert failed.startswith(f"failed importing writes writes to ft-run's socket ({why}")
    assert done.stderr == ""


NO_TEXT = """
import asyncio, os, sys
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Exited

client = SpawnerClient()
heard = asyncio.Queue()
SHOW = "import os, sys; print(os.fsencode(sys.argv[1]), os.environb[b'A'])"
WORKER = (sys.executable, "-u", "-c", SHOW)
if "warm" in sys.argv:
    client.preload(["colorsys"], (*WORKER, "a"), {})

async def main():
    client.listen(heard.put_nowait)
    byte = os.fsdecode(bytes([255]))
    client.spawn(0, [WorkerCommand((*WORKER, byte), {"A": byte})])
    while not isinstance(await heard.get(), Exited):
        pass

asyncio.run(main())
client.close()
"""


@pytest.mark.parametrize("way", ["cold", "warm"])
def test_bytes_that_are_no_text_reach_the_worker(way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_TEXT, way],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "b'\\xff' b'\\xff'\n"


BOUND = """
import asyncio, sys
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Exited

client = SpawnerClient()
heard = asyncio.Queue()
WORKER = (sys.executable, "-u", "-c", "print('ran')")
client.preload(["colorsys"], WORKER, {})

async def main():
    client.listen(heard.put_nowait)
    client.spawn(0, [WorkerCommand(WORKER, {"OMP_NUM_THREADS": "1"}, cpus=frozenset({100_000}))])
    while not isinstance(exited := await heard.get(), Exited):
        pass
    print(exited.exit_code)

asyncio.run(main())
client.close()
"""


def test_a_forked_worker_that_cannot_be_bound_to_its_cpus_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOUND],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout == "127\n"
    assert done.stderr == (
        "ft-run: the worker cannot be started: it cannot be bound to its CPUs (--numa-binding):"
        " Invalid argument\n"
    )


STOPPED = """
import asyncio, os, signal, sys
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Exited, ForkServerEvent

client = SpawnerClient()
heard = asyncio.Queue()
WORKER = (sys.executable, "-u", "-c", "import sys; sys.exit('slow' in sys.modules)")

async def main():
    client.listen(heard.put_nowait)
    client.preload(["slow"], WORKER, {})
    client.spawn(0, [WorkerCommand(WORKER, {})])
    while not isinstance(event := await heard.get(), ForkServerEvent):
        pass
    os.kill(client._spawner_pid, signal.SIGSTOP)
    with open("gate", "w"):
        pass
    while not isinstance(event, Exited):
        event = await heard.get()
    print("warm" if event.exit_code else "cold")

asyncio.run(main())
client.close()
"""


def test_spawner_that_is_stopped_while_workers_wait_for_an_import_is_woken(tmp_path: Path) -> None:
    wait = "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.01)\n"
    (tmp_path / "slow.py").write_text(wait)
    done = subprocess.run(
        [sys.executable, "-c", STOPPED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "warm\n"


WOKEN = """
import asyncio, sys
from ft_run.launcher.spawner import client as module
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand

module._THAW_AGAIN_S = 0.001
client, end, heard, woken = SpawnerClient(), sys.argv[1], asyncio.Queue(), []

async def main():
    client.listen(heard.put_nowait)
    if end != "Spawned":
        client.preload(["slow"], ["slow"], {})
    client.spawn(0, [WorkerCommand((sys.executable, "-u", "-c", "pass"), {})])
    if end == "Empty":
        client.kill()
    elif end == "SpawnerGone":
        client.give_up()
    if end == "close":
        client.close()
    else:
        while type(await heard.get()).__name__ != end:
            pass
    client._thaw = lambda: woken.append(None)
    await asyncio.sleep(0.05)  # a timer of 1 ms comes before
    print(len(woken))

asyncio.run(main())
if end != "close":
    client.close()
"""


@pytest.mark.parametrize("end", ["Spawned", "Empty", "SpawnerGone", "close"])
def test_spawner_is_not_woken_when_workers_have_been_started_or_ended(
    tmp_path: Path, end: str
) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    words = [sys.executable, "-c", WOKEN, end]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"


REUSED = """
import asyncio, os, signal, subprocess
from ft_run.launcher.spawner.client import SpawnerClient
from ft_run.launcher.workers.orphans import adopt_orphans

start = ("sh", "-c", "sleep 60 >/dev/null & echo $!")
client, bystander = SpawnerClient(), int(subprocess.check_output(start))

async def main():
    client.listen(lambda event: None)
    adopt_orphans(asyncio.get_running_loop(), spare=client.siblings)
    await asyncio.sleep(0)
    os.kill(client.pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{client.pid}"):
        await asyncio.sleep(0.01)

asyncio.run(main())
client.pid = bystander  # the kernel has given the number to another process
client.close()
with open(f"/proc/{bystander}/stat") as file:
    print(file.read().split()[2])
os.kill(bystander, signal.SIGKILL)
"""


def test_process_with_the_pid_of_a_killed_guard_survives() -> None:
    """The agent has reaped the guard, so the kernel may give its PID to any process."""
    done = subprocess.run(
        [sys.executable, "-c", REUSED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "S\n"
