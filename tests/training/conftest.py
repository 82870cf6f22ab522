"""What tests of several modules need."""

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from ft_run.training.checkpoints import coordination, snapshot_manager
from ft_run.training.worker import snapshot_page as page
from ft_run.training.worker.snapshot_memory import Memory, SaverLink
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

Given = Callable[..., memoryview]


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    """A world of this process."""
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Each test is a process of its own: no earlier Checkpointer is live. Call it for another."""

    def forget() -> None:
        monkeypatch.setattr(coordination.TURN, "_last", None)
        monkeypatch.setattr(coordination.TURN, "_buffers", None)
        monkeypatch.setattr(coordination.TURN, "_is_live", False)
        monkeypatch.setattr(coordination.TURN, "has_trained", False)

    forget()
    return forget


@pytest.fixture
def fds() -> Iterator[tuple[int, ...]]:
    """A page and the buffers, as an agent holds them."""
    made = tuple(os.memfd_create("test") for _ in range(1 + page.BUFFERS))
    os.ftruncate(made[0], page.PAGE_BYTES)
    yield made
    for fd in made:
        os.close(fd)


@pytest.fixture
def memory(fds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> Given:
    """Call it with the step to resume from: the next Checkpointer is given memory, with a page."""

    def given(
        step: int,
        *,
        is_first_round: bool = True,
        saver: SaverLink | None = None,
        owner: int = 0,
    ) -> memoryview:
        mine = list(map(os.dup, fds))
        made = [Memory(mine[0], tuple(mine[1:]), step, saver, is_first_round, owner)]
        monkeypatch.setattr(snapshot_manager, "request_memory", lambda _: made.pop())
        return memoryview(mmap.mmap(fds[0], page.PAGE_BYTES))

    return given
