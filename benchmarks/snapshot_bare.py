"""A minimal launcher for ``snapshot_worker.py``, as the baseline of ``snapshots.py``.

    snapshot_bare.py FOLDER STEPS PARAMETERS STEP_S

A process that has imported torch forks two ranks, waits until one dies, kills the other, and forks
both again. It holds the memory with the state, and does nothing else.
"""

import os
import runpy
import signal
import socket
import sys
from pathlib import Path

import ft_run.training.checkpointer  # noqa: F401 - as preloaded by ft-run
import torch._dynamo  # noqa: F401 - as preloaded by ft-run
from ft_run.training.checkpoints.memory_files import mapped

WORKER = str(Path(__file__).with_name("snapshot_worker.py"))
HEADER_BYTES = 64
"""Before the state: the number of completed steps, and padding."""


def fork(memory: list[int], restarts: int) -> list[int]:
    """Fork one rank per memory; return the process ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank, fd in enumerate(memory):
        pids.append(os.fork())
        if not pids[-1]:
            os.environ |= {
                "BARE_MEMORY": str(fd),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "TORCHELASTIC_RESTART_COUNT": str(restarts),
                "WORLD_SIZE": str(len(memory)),
            }
            sys.argv[:1] = [WORKER, "bare"]
            runpy.run_path(WORKER, run_name="__main__")
            os._exit(0)
    return pids


def main() -> None:
    """Run the job, and restart it once."""
    size = HEADER_BYTES + 12 * int(sys.argv[3])
    memory = [os.memfd_create("bare") for _ in range(2)]
    for fd in memory:
        os.ftruncate(fd, size)
        mapped(fd, size)
    pids = fork(memory, restarts=0)
    dead, _ = os.wait()
    (other,) = set(pids) - {dead}
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    for pid in fork(memory, restarts=1):
        if os.waitpid(pid, 0)[1]:
            sys.exit(1)


if __name__ == "__main__":
    main()
