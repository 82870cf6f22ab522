"""The agent's side of the spawner, with a real one, in a program from which it can be forked."""

import subprocess
import sys

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


STOPPED = """
import asyncio, signal, sys, time
from ft_run.launcher.spawner.client import (
    Exited, ForkServerEvent, ForkServerState, Spawned, SpawnerClient, WorkerCommand,
)

client = SpawnerClient()
client.preload(["colorsys"], [sys.executable, "-u", "script.py"], {}, differing=[])

def wakes(pid):
    lines = open(f"/proc/{pid}/status").readlines()
    return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))

async def main():
    heard = asyncio.Queue()
    client.listen(heard.put_nowait)
    while (event := await heard.get()).state is not ForkServerState.READY:
        pass
    client.spawn(0, [WorkerCommand(("sleep", "1000"), {})])
    assert isinstance(await heard.get(), Spawned)
    before = wakes(event.pid)
    client.stop(signal.SIGTERM)
    assert isinstance(await heard.get(), Exited)
    while wakes(event.pid) == before:
        time.sleep(0.01)

asyncio.run(main())
client.close()
"""


def test_a_stop_wakes_the_fork_server_which_is_soon_needed() -> None:
    """It looks at the files of its modules while the workers end."""
    subprocess.run([sys.executable, "-c", STOPPED], timeout=60, check=True)
