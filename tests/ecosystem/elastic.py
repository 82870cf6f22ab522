"""Trains with a library, and compares the weights with those of a plain loop.

    elastic.py LIBRARIES FOLDER DROPOUT WORLD@STEP … WORLD

So many forked ranks train until they are killed in that step, then others, at last until the end.
Under ft-run it is one rank, and waits in each STEP until the job has WORLD ranks (``WORLD@STEP``).
"""

import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from ft_run.training import ElasticBatches
from torch import nn
from torch.utils.data import Dataset

SAMPLES, BATCH, MICRO_BATCH, EPOCHS, SEED = 22, 6, 2, 3, 5
LENGTH, WORDS = 6, 11


class Numbers(Dataset):
    """A line to be fitted."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        x = torch.tensor([index / SAMPLES, 1.0], dtype=torch.float64)
        return {"index": index, "x": x, "labels": x[:1].sin()}


class Sentences(Dataset):
    """Sequences of tokens, of which some are ignored."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        words = torch.arange(LENGTH) * (index + 2) % WORDS
        labels = torch.where(torch.arange(LENGTH) < index % LENGTH, -100, words)
        return {"index": index, "input_ids": words, "labels": labels}


def network(dropout: float) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(2, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))
    model = nn.Sequential(*layers).double()
    if fits := int(os.environ.get("FITS", "0")):
        batches = iter(range(10**6))

        def run_out(_: nn.Module, inputs: tuple[torch.Tensor]) -> None:
            # In the third step, if parts are of MICRO_BATCH samples.
            if model.training and next(batches) > 6 and len(inputs[0]) > fits:
                raise torch.OutOfMemoryError("CUDA out of memory")

        model.register_forward_pre_hook(run_out)
    return model


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Check that what is done is refused."""
    try:
        yield
    except (TypeError, ValueError) as error:
        found = str(error)
    else:
        found = "nothing"
    assert message in found, f"{found} instead of {message}"


class Log:
    """Notes what a rank computes, and kills it in a step, or waits there for other ranks."""

    def __init__(self, folder: Path, deadly: int | None, worlds: dict[int, int]) -> None:
        self.file = (folder / f"log-{os.getpid()}").open("a", buffering=1)
        self.losses = (folder / f"losses-{os.getpid()}").open("a", buffering=1)
        self.deadly, self.worlds = deadly, worlds

    def note(self, step: int, index: torch.Tensor) -> None:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if step == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.worlds.get(step, world) != world:
            os.write(1, f"rank {rank} of {world} waits at {step}\n".encode())
            threading.Event().wait(300)
        print(json.dumps([step, world, rank, index.tolist()]), file=self.file)

    def note_loss(self, step: int, loss: float) -> None:
        print(json.dumps([step, loss]), file=self.losses)


def last_of(library: str) -> Any:
    """Return what becomes of the end of an epoch: ``lightning-carry``."""
    return next((one for one in library.split("-")[1:] if one in ("drop", "carry")), "short")


def steps_of(library: str, data: ElasticBatches) -> int:
    """Return the number of steps of the whole training, e.g. that of ``lightning-max``."""
    return 11 if "max" in library else data.total(EPOCHS)


def plain_loop(library: str, model, dataset: Dataset, loss_of, rate_of, momentum=0.9) -> Any:
    """Train in one process: each step sees the batch of all ranks.

    Returns:
        The weights and the losses of the steps.
    """
    data = ElasticBatches(SAMPLES, BATCH, seed=SEED, last=last_of(library))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    losses = []
    for step in range(steps_of(library, data)):
        optimizer.param_groups[0]["lr"] = rate_of(step)
        items = [dataset[index] for index in data.samples(step).tolist()]
        batch = {
            name: torch.stack([torch.as_tensor(one[name]) for one in items]) for name in items[0]
        }
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return list(model.parameters()), losses


def one_rank(library: str, folder: Path, dropout: float, log: Log) -> None:
    torch.set_num_threads(1)
    values, is_first = module_of(library).train(library, folder, dropout, log)
    if is_first:
        whole = torch.cat([value.detach().flatten() for value in values]).tolist()
        (folder / "result").write_text(json.dumps(whole))


def module_of(library: str) -> Any:
    return importlib.import_module(f"elastic_{library.partition('-')[0]}")


def play(library: str, folder: Path, dropout: float, world: int, deadly: int | None) -> None:
    """Fork the ranks of a job that ends, or of which the last rank is killed in a step."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world), "GROUP_WORLD_SIZE": "1", "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "elastic",
    }  # fmt: skip
    pids = []
    for rank in range(world):
        pid = os.fork()
        if not pid:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            log = Log(folder, deadly if rank == world - 1 else None, {})
            one_rank(library, folder, dropout, log)
            sys.stdout.flush()
            os._exit(0)
        pids.append(pid)
    if deadly is not None:
        _, status = os.waitpid(pids.pop(), 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    codes = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
    # The others may also have noticed that a connection is gone.
    assert codes <= ({0} if deadly is None else {1, -signal.SIGKILL}), codes


def check_samples(library: str, folder: Path) -> None:
    """Check that each step had its samples, with any number of ranks."""
    data = ElasticBatches(SAMPLES, BATCH, seed=SEED, last=last_of(library))
    found: dict[int, set[int]] = {}
    for path in folder.glob("log-*"):
        for step, _, _, samples in map(json.loads, path.read_text().splitlines()):
            found.setdefault(step, set()).update(samples)
    steps = range(steps_of(library, data))
    expected = {step: set(data.samples(step).tolist()) for step in steps}
    assert found == expected


def difference(library: str, folder: Path) -> float:
    """Return how much the weights differ from those of a plain loop; check the losses."""
    found = torch.tensor(json.loads((folder / "result").read_text()), dtype=torch.float64)
    expected, losses = module_of(library).expected(library)
    for path in folder.glob("losses-*"):
        for step, loss in map(json.loads, path.read_text().splitlines()):
            assert abs(loss - losses[step]) < 1e-3, (step, loss, losses[step])
    whole = torch.cat([value.detach().flatten() for value in expected]).double()
    return float((found - whole).abs().max())


def main() -> None:
    libraries, folder, dropout = sys.argv[1].split(","), Path(sys.argv[2]), float(sys.argv[3])
    plan = [(int(one.partition("@")[0]), one.partition("@")[2]) for one in sys.argv[4:]]
    if "RANK" in os.environ:
        worlds = {int(step): world for world, step in plan}
        one_rank(libraries[0], folder, dropout, Log(folder, None, worlds))
        return
    for library in libraries:
        (folder / library).mkdir()
        module_of(library)
        for world, deadly in plan:
            play(library, folder / library, dropout, world, int(deadly) if deadly else None)
        del os.environ["WORLD_SIZE"]
        check_samples(library, folder / library)
        print(f"{library} differs by {difference(library, folder / library):.3g}", flush=True)
        module_of(library).check_refused(library, folder / library)


if __name__ == "__main__":
    main()
