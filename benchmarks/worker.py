"""The worker of ``compare.py``: plain Python without torch, so that only launchers are compared.

    worker.py FOLDER MODE [MODULE]

It imports MODULE, writes one line, ``bench ATTEMPT RANK WORLD_SIZE RESTART_COUNT PID TIME_NS``, and
then, by MODE: ``exit``: exits; ``die-once``: rank 0 of the first attempt kills itself when all
workers have started; ``wait``: waits for a byte in the pipe FOLDER/release, or for SIGTERM: then it
writes ``told RANK TIME_NS`` and exits.

Attempts are counted by files in FOLDER: torchrun's TORCHELASTIC_RESTART_COUNT differs from node
to node of one attempt.
"""

import os
import signal
import sys
import time

_SETTLE_S = 0.5
"""Time for the launcher to become idle before the death."""


def main() -> None:
    """Run one worker."""
    folder, mode = sys.argv[1:3]
    for module in sys.argv[3:]:
        __import__(module)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = _attempt(folder, rank)
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    line = f"bench {attempt} {rank} {size} {restarts} {os.getpid()} {time.time_ns()}\n"
    os.write(1, line.encode())
    if mode == "wait":
        signal.signal(signal.SIGTERM, lambda *_: _told(rank))
        if (watched := sys.modules.get("_ft_run_hook")) is not None:
            watched.progress(-1)  # until the first step, the agent looks for it
        os.read(os.open(f"{folder}/release", os.O_RDONLY), 1)
    elif mode == "die-once" and attempt == 0:
        if rank == 0:
            _die(folder, size)
        signal.pause()


def _told(rank: int) -> None:
    os.write(1, f"told {rank} {time.time_ns()}\n".encode())
    os._exit(0)


def _attempt(folder: str, rank: int) -> int:
    attempt = 0
    while os.path.exists(path := f"{folder}/attempt-{attempt}-{rank}"):
        attempt += 1
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))  # only one process at a time has this rank
    return attempt


def _die(folder: str, size: int) -> None:
    while sum(name.startswith("attempt-0-") for name in os.listdir(folder)) < size:
        time.sleep(0.01)
    time.sleep(_SETTLE_S)
    with open(f"{folder}/death", "wb", buffering=0) as file:
        file.write(b"%d" % time.time_ns())
        os.kill(os.getpid(), signal.SIGKILL)


main()
