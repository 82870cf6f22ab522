"""State that each rank has of its own: through a restart, a replaced node and a new job."""

import json
from pathlib import Path
from typing import Any

from ft_run.tests.harness.forked import run_forked

PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from ft_run.training import Checkpointer
from ft_run.training.checkpoints import coordination, snapshot_manager
from ft_run.training.worker import snapshot_page as page
from ft_run.training.worker.snapshot_memory import Memory

store, folder, rank, size, kind = *sys.argv[1:3], *map(int, sys.argv[3:5]), sys.argv[5]
found = {}


def buffers():
    made = [os.memfd_create("test") for _ in range(1 + page.BUFFERS)]
    os.ftruncate(made[0], page.PAGE_BYTES)
    return made


def give(step, *memory):
    "Let the next Checkpointer resume from a step, with memory for itself and for replicas."
    made = [Memory(*(lambda fds: (fds[0], tuple(fds[1:])))([*map(os.dup, fds)]), step)
            for fds in memory]
    snapshot_manager.request_memory = lambda rank, replica=0: (
        made[replica] if replica < len(made) else None)
    turn = coordination.TURN
    turn._last, turn._buffers, turn._is_live = None, None, False


def give_none():
    snapshot_manager.request_memory = lambda rank, replica=0: None


class Notes:
    def __init__(self):
        self.seen = []

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def script(seed):
    "The objects of a script, with values that its start gives."
    torch.manual_seed(seed)
    norm = nn.BatchNorm1d(3) if kind.startswith("buffers") else nn.LayerNorm(3)
    model = nn.Sequential(nn.Linear(3, 3), norm)
    objects = {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1)}
    given = {}
    if kind.startswith(("local", "undeclared")):
        torch.manual_seed(seed + 1 + rank)
        objects["stage"] = nn.Linear(3, 2 + rank)
        objects["of_stage"] = torch.optim.Adam(objects["stage"].parameters(), lr=0.1)
        objects["notes"] = Notes()
        if kind.startswith("local"):
            given["local"] = ["stage", "notes"]
    if kind in ("first", "local", "local-later") and rank == 0:
        objects["ema"] = torch.optim.swa_utils.AveragedModel(model)
        objects["best"] = {"step": -1}
    if kind == "placeholder-later":
        objects["ema"] = torch.optim.swa_utils.AveragedModel(model) if rank == 0 else {}
    return objects, Checkpointer(
        folder, objects, checkpoint_every=None, position="step", seed=1, **given)


def train(objects, checkpointer, until):
    for step in checkpointer.steps(until):
        for name in ("", "of_stage"):
            if name and name not in objects:
                continue
            model = objects["stage" if name else "model"]
            optimizer = objects[name or "optimizer"]
            optimizer.zero_grad()
            given = torch.full((4, 3), step + 1.0) + torch.arange(4.0)[:, None]
            model(given + (0 if name else rank)).square().mean().backward()
            if not name:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
        if "notes" in objects:
            objects["notes"].seen.append([rank, step])
        if "ema" in objects:
            objects["ema"].update_parameters(objects["model"])
            objects["best"]["step"] = step


def shown(objects):
    found = {}
    for name, one in objects.items():
        state = one if isinstance(one, dict) else one.state_dict()
        found[name] = repr([*map(repr, tree_leaves(state))])
    return found


def compare(what, expected, begun, checkpointer, objects):
    found[what] = {name: shown(objects)[name] == value for name, value in expected.items()}
    found[what]["step"] = begun
    if kind == "buffers":
        found[what]["mean"] = objects["model"][1].running_mean.tolist()


from torch.utils._pytree import tree_leaves
dist.init_process_group("gloo", f"file://{store}", world_size=size, rank=rank)
def begin_later():
    give_none()
    try:
        _, checkpointer = script(50)
        found["step"] = checkpointer.restore()
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if kind.endswith("later"):
    begin_later()
try:
    mine, replica = buffers(), buffers()
    give(-1, mine, replica)
    objects, checkpointer = script(5)
    train(objects, checkpointer, 3)
    expected = shown(objects)

    give(3, mine, replica)
    objects, checkpointer = script(50)
    compare("restart", expected, checkpointer.restore(), checkpointer, objects)
    checkpointer.wait()

    for lost in range(size):  # its node is replaced: memory with the same replicas is left
        give(-1, mine, replica)
        objects, checkpointer = script(5)
        train(objects, checkpointer, 3)
        fresh = [buffers(), buffers()]
        give(3, *([mine, replica] if rank != lost else fresh))
        objects, checkpointer = script(50)
        compare(f"lost {lost}", expected, checkpointer.restore(), checkpointer, objects)
        checkpointer.wait()

    give_none()
    objects, checkpointer = script(5)
    train(objects, checkpointer, 3)
    checkpointer.save(3)
    checkpointer.wait()
    objects, checkpointer = script(50)
    compare("new job", expected, checkpointer.restore(), checkpointer, objects)
except Exception as error:
    import traceback
    found["error"] = traceback.format_exc()
print(json.dumps(found))
dist.destroy_process_group()
"""
MODULES = ("torch._dynamo", "torch.distributed.checkpoint", "ft_run.training.checkpointer")


def run(tmp_path: Path, *worlds: tuple[str, int]) -> list[list[dict[str, Any]]]:
    """Return what the ranks of each world print."""
    calls = [
        (tmp_path / f"store-{kind}", tmp_path / "saved", rank, size, kind)
        for kind, size in worlds
        for rank in range(size)
    ]
    lines = [one.output.strip().splitlines()[-1] for one in run_forked(PROGRAM, calls, MODULES)]
    return [[json.loads(lines.pop(0)) for _ in range(size)] for _, size in worlds]


def test_local_state_returns_and_needs_the_same_ranks(tmp_path: Path) -> None:
    (found,) = run(tmp_path, ("local", 2))
    returned = {"model", "optimizer", "stage", "of_stage", "notes"}
    cases = ("restart", "lost 0", "lost 1", "new job")
    more: tuple[set[str], ...] = ({"ema", "best"}, set())
    for of_rank, own in zip(found, more, strict=True):
        expected = {**dict.fromkeys(returned | own, True), "step": 3}
        assert of_rank == dict.fromkeys(cases, expected)
    larger, undeclared, without = run(
        tmp_path, ("local-later", 3), ("undeclared-later", 2), ("later", 2)
    )
    words = "WorldSizeError: each of 2 ranks has saved its own"
    assert all(words in one["error"] for one in larger)
    words = "each rank has saved its own 'stage': pass local=['stage']"
    assert any(words in one["error"] for one in undeclared)
    assert without == [{"step": 3}] * 2


def test_buffers_of_each_rank_return(tmp_path: Path) -> None:
    """A replaced rank takes those of another rank, not those of a new module."""
    ((first, second),) = run(tmp_path, ("buffers", 2))
    means = first["restart"].pop("mean"), second["restart"].pop("mean")
    assert means[0] != means[1]
    for of_rank, mean in zip((first, second), means, strict=True):
        assert of_rank["restart"] == {"model": True, "optimizer": True, "step": 3}
        assert of_rank["new job"] == {**of_rank["restart"], "mean": mean}
    assert (first["lost 0"]["mean"], second["lost 0"]["mean"]) == (means[1], means[1])
    assert (first["lost 1"]["mean"], second["lost 1"]["mean"]) == (means[0], means[0])
    assert all(of_rank["lost 0"]["optimizer"] for of_rank in (first, second))


def test_object_of_rank_0_returns(tmp_path: Path) -> None:
    """A snapshot is that of all ranks: if the node of rank 0 is lost, only a checkpoint has it."""
    (first, second), placeholder = run(tmp_path, ("first", 2), ("placeholder-later", 2))
    of_second = {"model": True, "optimizer": True, "step": 3}
    of_first = {**of_second, "ema": True, "best": True}
    for case in ("restart", "lost 1", "new job"):
        assert (first[case], second[case]) == (of_first, of_second), case
    assert first["lost 0"]["step"] == second["lost 0"]["step"] == 0
    words = "TypeError: invalid value of type dict for state['ema'], which is a module on another"
    assert all(words in one["error"] for one in placeholder)
