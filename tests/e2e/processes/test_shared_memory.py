"""Workers that attack the memory which they share with their agent."""

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

TRUNCATES = """
import os, sys, threading, torch
from ft_run.training import Checkpointer, preempted

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
checkpointer = Checkpointer(sys.argv[1], {"model": model, "optimizer": optimizer})
assert not preempted()
for step in checkpointer.steps(3):
    optimizer.step()
names = set()
for number in os.listdir("/proc/self/fd"):
    try:
        name = os.readlink(f"/proc/self/fd/{number}")
        if name.startswith("/memfd:ft-run"):
            names.add(name.split()[0])
            os.ftruncate(int(number), 0)
    except OSError:
        pass
print("truncated", *sorted(names), flush=True)
threading.Event().wait(1000)
"""


def test_a_worker_that_truncates_shared_memory_does_not_end_its_agent(
    ft: "Launcher", free_port: int
) -> None:
    endpoint = f"localhost:{free_port}"
    job = ft.start(
        *("--rdzv-endpoint", endpoint, "--hang-timeout", 300),
        *("--shutdown-timeout", 1, ft.script(TRUNCATES), ft.folder / "checkpoints"),
    )
    (found,) = job.expect("truncated (.*)")
    assert found[1].split() == [
        f"/memfd:ft-run-{name}" for name in ("notices", "page", "snapshot", "stacks")
    ]
    for command in ("status", "stacks"):
        assert ft.run(command, endpoint).process.returncode == 0
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM, job.stderr
