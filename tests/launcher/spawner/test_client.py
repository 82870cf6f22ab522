"""The agent's side of the spawner, with a real one, in a program from which it can be forked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TWO_KILLS = """
import asyncio, socket
from ft_run.launcher.spawner.client import Exited, SpawnerClient, WorkerCommand

client = SpawnerClient()
heard = []

def wait_for_answers(count):
    # They are there when this returns, and are not taken yet.
    while client._channel.recv(4096, socket.MSG_PEEK).count(b"empty") < count:
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
from ft_run.launcher.spawner.client import Fenced, SpawnerClient, WorkerCommand

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
        ("said_later", "Spawned"),
    ],
)
def test_workers_live_no_longer_than_the_fence_says(case: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FENCE, case], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{said}\n"


BLANKS = """
import asyncio, os, signal, sys, time
from ft_run.events.preload import PreloadState
from ft_run.launcher.processes.tree import children
from ft_run.launcher.spawner.client import (
    Empty, Exited, Spawned, SpawnerClient, WorkerCommand,
)

script = sys.argv[2]
PYTHON = (sys.executable, "-u")
client = SpawnerClient()
client.preload(["colorsys"], [*PYTHON, script], {}, differing=[])
heard = asyncio.Queue()

async def spawned(number, count=2):
    client.spawn(number, [WorkerCommand((*PYTHON, script), {})] * count)
    event = await heard.get()
    assert isinstance(event, Spawned) and not event.errors, event
    return list(event.pids)

async def stopped(count=2):
    client.stop(signal.SIGTERM)
    for _ in range(count):
        assert isinstance(await heard.get(), Exited)

async def blanks(count=2):
    spawner = client._spawner_pid
    def there():
        return [pid for pid in children(spawner) if pid != client._fork_server_pid]
    while len(found := there()) != count:
        await asyncio.sleep(0.01)
    return found

async def killed():
    client.kill()
    while not isinstance(await heard.get(), Empty):
        pass

async def main():
    client.listen(heard.put_nowait)
    while (await heard.get()).state is not PreloadState.READY:
        pass
    await spawned(0)
    if sys.argv[1] == "at_once":
        os.kill(client._fork_server_pid, signal.SIGSTOP)  # until workers are wanted
    await stopped()
    await globals()[sys.argv[1]]()

async def used():
    found = await blanks()
    await killed()  # what is left of the workers, as after each stop
    assert client.left() == []
    assert sorted(await spawned(1)) == sorted(found)
    assert sorted(client.left()) == sorted(found)
    await stopped()

async def failed():
    await blanks()
    now = await spawned(1)
    os.kill(now[0], signal.SIGKILL)
    assert isinstance(await heard.get(), Exited)
    next_ones = set(await blanks(3)) - {now[1]}  # before anything is stopped
    await stopped(1)
    assert set(await spawned(2)) == next_ones

async def dead():
    found = await blanks()
    os.kill(found[0], signal.SIGKILL)
    await blanks(1)
    assert not set(await spawned(1)) & set(found)
    there = await blanks()  # once the other one is gone
    assert sorted(client.left()) == sorted(there)

async def other_count():
    found = await blanks()
    now = await spawned(1, count=3)
    assert not set(now) & set(found)
    assert sorted(await blanks(3)) == sorted(now)
    await stopped(3)
    await blanks(3)

async def at_once():
    now = await spawned(1)  # the fork server hears of the stop and of them in one go
    assert sorted(await blanks()) == sorted(now)  # no others were forked ahead

asyncio.run(main())
server = client._fork_server_pid
family = children(client._spawner_pid)
client.close()
assert not any(os.path.exists(f"/proc/{pid}") for pid in family)
"""


@pytest.mark.parametrize("case", ["used", "failed", "dead", "other_count", "at_once"])
def test_workers_are_forked_while_those_before_end(case: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import signal; signal.pause()\n")
    command = [sys.executable, "-c", BLANKS, case, str(script)]
    subprocess.run(command, timeout=60, check=True)


IN_BACKGROUND = """
import asyncio, sys
from ft_run.events.preload import PreloadSource
from ft_run.launcher.spawner.client import Exited, ForkServerEvent, SpawnerClient, WorkerCommand

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
    client.preload(["slow"], WORKER, {}, source=PreloadSource.WORKERS, count=1)
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
from ft_run.launcher.spawner.client import Exited, ForkServerEvent, SpawnerClient, WorkerCommand

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


BOUND = """
import asyncio, sys
from ft_run.launcher.spawner.client import Exited, SpawnerClient, WorkerCommand

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
