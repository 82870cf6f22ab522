"""Values and generators of each rank after a kill, in a new job, and with other ranks."""

import json
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.tests.e2e.restarts.test_snapshots import loaded_by_dcp

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

SCRIPT = """
import json, os, random, signal, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from ft_run.training import Checkpointer

kind, folder, total, dies_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = json.loads(sys.argv[5])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
model = fully_shard(model) if kind == "fsdp" else DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
random.seed(rank)


class Loader:
    # The position of this rank's data, and a tensor.

    def __init__(self):
        self.next, self.left, self.seen = 1000 * rank, 4, torch.zeros(3)

    def __iter__(self):
        while self.left:
            self.seen[0] += self.next
            self.next += 1
            self.left -= 1
            yield torch.tensor([self.next - 1])
        self.left = 4

    def state_dict(self):
        return {"next": self.next, "left": self.left, "seen": self.seen}

    def load_state_dict(self, state):
        self.next, self.left = state["next"], state["left"]
        self.seen.copy_(state["seen"])


class Average:
    # Sharded as the model; each step adds another number to each element.

    def __init__(self, weight):
        self.value = torch.zeros_like(weight.detach())
        numbers = torch.arange(64.0).view(8, 8)
        self.numbers = distribute_tensor(numbers, weight.device_mesh, weight.placements)

    def state_dict(self):
        return {"weight": self.value}

    def load_state_dict(self, state):
        found, mine = state["weight"], self.value.to_local()
        if found.shape != mine.shape:  # that of all ranks, from a checkpoint
            shards = distribute_tensor(found, self.value.device_mesh, self.value.placements)
            found = shards.to_local()
        mine.copy_(found)


if kind == "torchdata":
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(
        torch.arange(1000 * rank, 1000 * rank + 10),
        batch_size=2,
        shuffle=True,
        num_workers=int(os.environ.get("LOADER_WORKERS", "0")),
    )
else:
    loader = Loader()
counts, names, late = {"epoch": 0, "deep": {"of": []}}, [], {"of": 0}
state = {"model": model, "optimizer": optimizer, "loader": loader, "counts": counts}
state |= {"names": names, "late": late}
average = Average(model[0].weight) if kind == "fsdp" else None
if average is not None:
    state["average"] = average
if kind == "torchdata":  # an iterator draws a number when it is made
    options["seed"] = 5
checkpointer = Checkpointer(f"{folder}/checkpoints", state, **options)
done = checkpointer.restore()
log = open(f"{folder}/log-{dist.get_world_size()}-{rank}", "a", buffering=1)
if average is not None:
    assert torch.equal(average.value.to_local(), done * average.numbers.to_local())
log.write(json.dumps(["from", done, counts, names]) + "\\n")
iterator = iter(loader)
for step in checkpointer.steps(total):
    if done < step == dies_at:
        checkpointer.wait()
        if rank == 1 and "PAUSES" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    try:
        batch = next(iterator)
    except StopIteration:
        counts["epoch"] += 1
        iterator = iter(loader)
        batch = next(iterator)
    numbers = [random.random(), torch.rand(1).item()]
    optimizer.zero_grad()
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    names[:] = [f"step {step}"]
    if step == 3 and "PAUSES" in os.environ:
        late["of"] = rank + 1
    if average is not None:
        average.value += average.numbers
    parts = [p.to_local() if kind == "fsdp" else p for p in model.parameters()]
    weights = sum(part.double().sum().item() for part in parts)
    log.write(json.dumps([step, batch.tolist(), numbers, counts["epoch"], weights]) + "\\n")
dist.destroy_process_group()
"""


class Training:
    """One folder, and the jobs that train in it."""

    def __init__(self, ft: "Launcher", name: str, kind: str = "ddp") -> None:
        self.ft, self.kind, self.folder = ft, kind, ft.folder / name
        self.folder.mkdir()

    def arguments(self, total: int, dies_at: int, **options: Any) -> tuple[object, ...]:
        """Return the script and its arguments."""
        script = self.ft.script(SCRIPT, "train.py")
        options = {"checkpoint_every": 1000, **options}
        return (script, self.kind, self.folder, total, dies_at, json.dumps(options))

    def start(
        self, total: int, *, ranks: int = 2, dies_at: int = -1, restarts: int = 1, **options: Any
    ) -> "Command":
        """Train up to a step; ``dies_at``: rank 1 is killed once before this step."""
        return self.ft.start(
            *("--standalone", "--nproc-per-node", ranks, "--max-restarts", restarts),
            *("--preload", "torch,torch._dynamo,ft_run.training.checkpointer"),
            *self.arguments(total, dies_at, **options),
        )

    def run(self, total: int, *, restarts: int = 1, **more: Any) -> "Command":
        """Train up to a step, as ``start`` does, and wait for it."""
        command = self.start(total, restarts=restarts, **more)
        assert (command.wait() == 0) == (restarts > 0), command.stderr
        return command

    def lines(self, rank: int, ranks: int = 2) -> dict[int, Any]:
        """Return what a rank drew in each step, and its weights, the last time that it did it."""
        text = (self.folder / f"log-{ranks}-{rank}").read_text()
        found = [json.loads(line) for line in text.splitlines()]
        return {line[0]: line[1:] for line in found if line[0] != "from"}

    def begun(self, rank: int, ranks: int = 2) -> list[Any]:
        """Return step, dictionary and list after each start."""
        text = (self.folder / f"log-{ranks}-{rank}").read_text()
        found = [json.loads(line) for line in text.splitlines()]
        return [line[1:] for line in found if line[0] == "from"]


def check_same_world(ft: "Launcher", kind: str) -> tuple[Training, Training]:
    """Check a kill and a new job with the same ranks; return the trainings."""
    undisturbed, other = Training(ft, "undisturbed", kind), Training(ft, "other", kind)
    beside = undisturbed.start(13)
    other.run(7, dies_at=3)  # within an epoch: from the snapshot
    assert [begun[0] for begun in other.begun(1)] == [0, 3]
    other.run(13, dies_at=9)  # from the checkpoint, then over the end of an epoch
    assert beside.wait() == 0, beside.stderr
    expected = [undisturbed.lines(rank) for rank in (0, 1)]
    assert expected[0][3][:2] != expected[1][3][:2]
    assert [begun[0] for begun in other.begun(0)] == [0, 3, 7, 9]
    assert [other.lines(rank) for rank in (0, 1)] == expected
    return undisturbed, other


@pytest.mark.long
def test_the_same_ranks_have_their_values_back(ft: "Launcher") -> None:
    _, other = check_same_world(ft, "ddp")
    epochs = [begun[1] for begun in other.begun(1)]
    assert epochs == [{"epoch": count, "deep": {"of": []}} for count in (0, 0, 1, 2)]
    assert [begun[2] for begun in other.begun(1)] == [[], ["step 2"], ["step 6"], ["step 8"]]


@pytest.mark.slow
def test_other_ranks_have_the_values_that_there_are(ft: "Launcher") -> None:
    other = Training(ft, "other")
    other.run(13)
    more = other.run(16, ranks=3)
    (line,) = re.findall(r"ft-run (no saved .*)", more.stderr)
    assert line == "no saved random number generators, loader for rank 2: as at the start of a job"
    three = [other.lines(rank, 3) for rank in range(3)]
    assert [lines[13][0][0] for lines in three] == [13, 1013, 2000]  # of rank 2: as constructed
    assert len({lines[13][1][1] for lines in three}) == 3
    assert other.begun(2, 3)[0][1]["epoch"] == 3  # equal on all ranks
    fewer = other.run(17, ranks=1)
    (line,) = re.findall(r"ft-run (the saved .*)", fewer.stderr)
    assert line.endswith("loader of rank 1, 2 are not used: 3 ranks before, 1 now")
    assert other.lines(0, 1)[16][0] == [16]


@pytest.mark.slow
def test_ranks_without_a_saver_have_their_values_back(ft: "Launcher") -> None:
    """The workers write the checkpoints."""
    undisturbed, other = Training(ft, "undisturbed"), Training(ft, "other")
    undisturbed.run(13)
    for total in (7, 13):
        other.run(total, snapshot_every=None)
    saved = loaded_by_dcp(other.folder / "checkpoints/step-00000007")
    assert json.loads(saved["ft_run_ranks"]["origin"])[:2] == [2, 0]
    assert [other.lines(rank) for rank in (0, 1)] == [undisturbed.lines(rank) for rank in (0, 1)]


@pytest.mark.slow
def test_values_of_an_older_step_are_not_used(ft: "Launcher") -> None:
    """The job saves its last snapshot when its workers are dead: that has only rank 0's values."""
    undisturbed, other = Training(ft, "undisturbed"), Training(ft, "other")
    undisturbed.run(8)
    other.run(8, dies_at=6, restarts=0, checkpoint_every=4)
    saved = loaded_by_dcp(other.folder / "checkpoints/step-00000006")
    origin = json.loads(saved["ft_run_ranks"]["origin"])
    assert (origin[:2], saved["loader"]["next"]) == ([2, 0], 6)
    after = other.run(8)
    after.expect("no saved random number generators, loader for rank 1: as at the start of a job$")
    mine, expected = other.lines(0), undisturbed.lines(0)
    assert [mine[step] for step in range(6)] == [expected[step] for step in range(6)]
    # The weights depend on what rank 1 draws.
    assert [mine[step][:3] for step in (6, 7)] == [expected[step][:3] for step in (6, 7)]
    mine, expected = other.lines(1), undisturbed.lines(1)
    assert [mine[step] for step in range(6)] == [expected[step] for step in range(6)]
    assert mine[6][0] == [1000]  # as constructed
    assert mine[6][1] not in (expected[6][1], expected[0][1], undisturbed.lines(0)[6][1])
    assert mine[6][2] == expected[6][2]  # equal on both ranks


@pytest.mark.slow
def test_a_rank_on_a_new_node(
    ft: "Launcher", free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values that are equal come from the other node, and it draws numbers of its own.

    An object differs since the last step but one.
    """
    monkeypatch.setenv("PAUSES", "1")
    training = Training(ft, "training")
    nodes_of = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", ft.mark)
    job = (*nodes_of, "--max-restarts", 2, *training.arguments(9, 5, checkpoint_every=None))
    nodes = [*ft.start_two(*job)]
    logs = [training.folder / f"log-2-{rank}" for rank in (0, 1)]
    ft.wait_until(
        lambda: all(log.exists() and log.read_text().count("\n") == 6 for log in logs),
        "both ranks have done five steps and begun the next",
    )
    nodes[1].send(signal.SIGKILL)
    nodes[1].wait()
    nodes[1] = ft.start(*job)
    assert [node.wait() for node in nodes] == [0, 0]
    text = "".join(node.stderr for node in nodes)
    (new,) = map(int, re.findall(r"generators, late, loader for rank (\d): as at the start", text))
    lines = [training.lines(rank)[5] for rank in (0, 1)]
    assert lines[new][0] == [1000 * new]  # as constructed
    assert lines[1 - new][0] == [1000 * (1 - new) + 5]
    assert lines[new][1] != lines[1 - new][1]
    assert lines[0][2] == lines[1][2] == 1


@pytest.mark.slow
def test_ranks_with_shards_have_their_values_back(ft: "Launcher") -> None:
    check_same_world(ft, "fsdp")
    other = Training(ft, "larger", "fsdp")
    other.run(3)
    other.run(5, ranks=3)  # shards are no values of a rank: they fit a world of another size
