"""A rank of ``snapshots.py``: trains a model whose step is a pause.

    snapshot_worker.py MODE FOLDER STEPS PARAMETERS STEP_S

MODE is ``checkpointer``, ``torch-save`` (every 20 steps, written by rank 0), ``async-save`` (every
20 steps, torch.distributed.checkpoint) or ``bare`` (see ``snapshot_bare.py``): rank 0 kills itself
once, in the middle of a step half way between two saves. Or ``stall``: one process measures the
overhead of snapshots. Measurements are written to FOLDER as lines of JSON.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ft_run.training import Checkpointer
from ft_run.training.checkpoints.memory_files import mapped
from torch import nn

DIES_AT = 30
SAVES_EVERY = 20
LAYER = 500_000
"""Parameters per tensor."""
MODE, FOLDER, STEPS, PARAMETERS, STEP_S = (
    kind(w) for kind, w in zip((str, Path, int, int, float), sys.argv[1:], strict=True)
)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and Adam: 12 bytes per parameter after the first step."""
    layers = range(PARAMETERS // LAYER)
    model = nn.ModuleList([nn.Linear(1000, LAYER // 1000, bias=False) for _ in layers])
    return model, torch.optim.Adam(model.parameters())


def give_state(optimizer: torch.optim.Optimizer) -> None:
    """Take the first step, which creates the optimizer's state."""
    parameters = optimizer.param_groups[0]["params"]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameters[0])
    optimizer.step()


def note(**values: object) -> None:
    """Write a measurement."""
    with open(FOLDER / f"lines-{os.environ['RANK']}", "a") as file:
        file.write(json.dumps(values) + "\n")


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[int]:
    """Save with ``torch.save`` and a rename."""
    path, begin = FOLDER / "checkpoint.pt", 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    for step in range(begin, STEPS):
        yield step
        if (step + 1) % SAVES_EVERY == 0 and dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, f"{path}.new")
            os.replace(f"{path}.new", path)


def by_async_save(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[int]:
    """Save with ``async_save`` of torch, in the background."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import async_save

    def state() -> dict[str, Any]:
        return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))

    latest, begin = FOLDER / "latest", 0
    saving: object = None
    group = dist.new_group(backend="gloo")  # used concurrently with the steps
    if latest.exists():
        begin = int(latest.read_text())
        saved = state()
        load(saved, checkpoint_id=FOLDER / str(begin))
        set_state_dict(
            model,
            optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
        )
    for step in range(begin, STEPS):
        yield step
        if (step + 1) % SAVES_EVERY == 0:
            path = FOLDER / str(step + 1)
            saving = async_save(state(), checkpoint_id=path, process_group=group)
            assert isinstance(saving, Future)

            def complete(_: object, done: int = step + 1) -> None:
                latest.write_text(str(done))

            if dist.get_rank() == 0:
                saving.add_done_callback(complete)
    if isinstance(saving, Future):
        saving.result()


def by_bare_copies(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[int]:
    """Copy the state to memory that survives the rank, and back."""
    fd = int(os.environ["BARE_MEMORY"])
    memory = torch.frombuffer(mapped(fd, os.fstat(fd).st_size, is_there=True), dtype=torch.float32)
    begin, kept = int(memory[0]), torch.split(memory[-3 * PARAMETERS :], LAYER)
    parameters = [*model.parameters()]
    if begin:
        for parameter in parameters:
            moments = (torch.empty_like(parameter) for _ in range(2))
            optimizer.state[parameter] = dict(zip(("exp_avg", "exp_avg_sq"), moments, strict=True))
            optimizer.state[parameter]["step"] = torch.tensor(float(begin))

    def copy(*, back: bool) -> None:
        states = [optimizer.state[parameter] for parameter in parameters]
        values = [*parameters, *(state[k] for state in states for k in ("exp_avg", "exp_avg_sq"))]
        with torch.no_grad():
            for value, place in zip(values, kept, strict=True):
                to, of = (value.view(-1), place) if back else (place, value.view(-1))
                to.copy_(of)

    if begin:
        copy(back=True)
    for step in range(begin, STEPS):
        yield step
        copy(back=False)
        memory[0] = step + 1


def train() -> None:
    """Train, and kill rank 0 once."""
    dist.init_process_group("gloo")
    model, optimizer = make()
    state = {"model": model, "optimizer": optimizer}
    if MODE == "checkpointer":
        steps = Checkpointer(FOLDER / "c", state, checkpoint_every=None).steps(STEPS)
    else:
        ways = {"torch-save": by_hand, "async-save": by_async_save, "bare": by_bare_copies}
        steps = ways[MODE](model, optimizer)
    is_first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in steps:
        if is_first_life and step == DIES_AT and dist.get_rank() == 0:
            time.sleep(STEP_S / 2)
            note(death=time.time())
            os.kill(os.getpid(), signal.SIGKILL)
        if not optimizer.state:
            give_state(optimizer)
        time.sleep(STEP_S)
        dist.barrier()  # as the all-reduce of gradients in a real step
        note(step=step, time=time.time())
    dist.destroy_process_group()


def timed(action: Callable[[], object]) -> float:
    """Return the duration of an action in seconds."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def stall() -> None:
    """Measure a plain copy of the state, and steps with and without a snapshot, in alternation.

    A step is a pause or a computation with one thread, followed by an optimizer step.
    """
    model, optimizer = make()
    give_state(optimizer)
    state = {"model": model, "optimizer": optimizer}
    checkpointer = Checkpointer(FOLDER / "c", state, checkpoint_every=None)
    checkpointer.restore()
    tensors = [*model.state_dict().values()]
    tensors += [value for one in optimizer.state.values() for value in one.values()]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    square = torch.randn(500, 500)
    rest_s = max(0.0, STEP_S - min(timed(optimizer.step) for _ in range(3)))
    count = int(rest_s / min(timed(lambda: square @ square) for _ in range(20)))

    def copy() -> None:
        for to, tensor in zip(copies, tensors, strict=True):
            to.copy_(tensor)

    def pause() -> None:
        time.sleep(rest_s)
        optimizer.step()

    def compute() -> None:
        for _ in range(count):
            square @ square
        optimizer.step()

    with torch.no_grad():
        for number in range(1, 2 * STEPS + 1):
            step = compute if number % 2 else pause
            bare, plain = timed(copy), timed(step)
            snapshot = timed(lambda number=number: checkpointer.step(number))  # type: ignore[misc]  # bound now
            after = timed(step)
            if number > 4:  # later steps reuse the memory
                slowdown = (snapshot + after) / plain - 1
                note(bare=bare, snapshot=snapshot, **{step.__name__: slowdown})


torch.manual_seed(0)  # equal ranks, as DDP makes them
torch.set_num_threads(1)
(stall if MODE == "stall" else train)()
