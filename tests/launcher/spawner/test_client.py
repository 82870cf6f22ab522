"""The agent's side of the spawner, with a real one, in a program from which it can be forked."""

import subprocess
import sys

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
