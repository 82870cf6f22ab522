"""The state of objects comes back as it was, from a snapshot and from a checkpoint."""

import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from ft_run.training.checkpoints.folder import CheckpointFolder
from ft_run.training.checkpoints.snapshot_file import SnapshotFile
from ft_run.training.checkpoints.state import State, names_in
from ft_run.training.ranks import Ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import LBFGS, Adam, Optimizer, SparseAdam
from torch.optim.lr_scheduler import MultiStepLR
from torch.optim.swa_utils import AveragedModel

Move = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


class Holder:
    """Anything with state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


@pytest.fixture(params=["snapshot", "snapshot of another host", "checkpoint"])
def move(request: pytest.FixtureRequest, tmp_path: Path) -> Move:
    """Give objects the state of others."""

    def by_snapshot(of: Mapping[str, Any], to: Mapping[str, Any]) -> None:
        fd = os.memfd_create("test")
        file = SnapshotFile(fd)
        file.lay_out(State(of).collect())
        found = SnapshotFile(fd)
        found.open(file.data_bytes, file.layout_bytes)
        State(to).load(found, is_trusted=request.param == "snapshot").finish()
        os.close(fd)

    def by_checkpoint(of: Mapping[str, Any], to: Mapping[str, Any]) -> None:
        folder = CheckpointFolder(tmp_path, 1, Ranks())
        assert folder.save(1, State(of).collect()) is None
        folder.load(1, State(to))

    return by_checkpoint if request.param == "checkpoint" else by_snapshot


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"empty": {}, "newest": 3},
        {1: "one", 2.5: "two", None: "three"},
        {"milestones": Counter({30: 1, 80: 2})},
        {"order": OrderedDict(z=1, a=2)},
        {"list": [{}, {"a": 1}, {}], "deep": [[{}]]},
        {"layers": {0: {"past": [1.5, None], 5: {6: {7: 8}}}, 1: {}}},
        {"tuple": ({1: 2}, {}), "nothing": None},
    ],
    ids=str,
)
def test_dictionaries_come_back_as_they_were(move: Move, state: Any) -> None:
    found = Holder(None)
    move({"it": Holder(state)}, {"it": found})
    assert found.state == state
    kinds = [{key: type(value) for key, value in one.items()} for one in (found.state, state)]
    assert kinds[0] == kinds[1]


def test_keys_of_other_types_return(move: Move) -> None:
    found = Holder(None)
    state = {(1, (b"b", None)): "pair", frozenset((1,)): 2, "tensors": {3: torch.ones(2)}}
    move({"it": Holder(state)}, {"it": found})
    assert found.state[(1, (b"b", None))] == "pair"
    assert found.state[frozenset((1,))] == 2
    assert torch.equal(found.state["tensors"][3], torch.ones(2))


class Script:
    """What is trained by one optimizer, in one life."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        first, second, weight = nn.Linear(4, 4), nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        parameters = [*first.parameters(), *second.parameters(), weight]
        self.objects: dict[str, Any] = {"first": first}
        if kind != "train":
            self.objects["second"] = second
        else:  # the name of a method of every module
            self.objects["train"] = second
        if kind == "in no module":
            self.objects["weight"] = Holder({"it": weight.detach()})
        else:
            parameters.pop()
        optimizer: Optimizer = Adam(parameters, lr=0.1)
        if kind == "closure":
            optimizer = LBFGS(parameters, lr=0.1, max_iter=2)
        self.objects["optimizer"] = optimizer
        self.objects["schedule"] = self.schedule = MultiStepLR(optimizer, [2, 5])
        self.optimizer, self.network = optimizer, nn.Sequential(first, second)
        self.weight = weight

    def train(self, begin: int, end: int) -> None:
        """Do some steps."""
        for step in range(begin, end):
            torch.manual_seed(step)
            batch = torch.randn(5, 4)

            def loss(batch: torch.Tensor = batch) -> torch.Tensor:
                self.optimizer.zero_grad()
                value: torch.Tensor = (self.network(batch) * self.weight).square().sum()
                value.backward()
                return value

            self.optimizer.step(loss)  # type: ignore[arg-type]  # it may return a tensor
            self.schedule.step()

    def everything(self) -> str:
        """Return all that it has learned."""
        names = ("first", "optimizer", "schedule")
        return str([self.weight, *(self.objects[name].state_dict() for name in names)])


@pytest.mark.parametrize("kind", ["of two modules", "in no module", "closure", "train"])
def test_an_optimizer_goes_on(move: Move, kind: str) -> None:
    undisturbed, before, after = Script(kind), Script(kind), Script(kind)
    undisturbed.train(0, 7)
    before.train(0, 3)
    move(before.objects, after.objects)
    if kind == "in no module":
        after.weight.data.copy_(after.objects["weight"].state["it"])
    after.train(3, 7)
    assert after.everything() == undisturbed.everything()


def test_types_of_an_optimizer_of_other_tensors_return(move: Move) -> None:
    """Torch would cast the moments to the type of the parameter."""
    before, after = (
        Adam([torch.ones(2, dtype=torch.bfloat16, requires_grad=True)]) for _ in range(2)
    )
    moment = torch.full((2,), 0.1)
    before.state[before.param_groups[0]["params"][0]] = {
        "step": torch.tensor(1.0),
        "exp_avg": moment,
    }
    move({"optimizer": before}, {"optimizer": after})
    (restored,) = after.state.values()
    assert restored["exp_avg"].dtype == torch.float32
    assert restored["exp_avg"].equal(moment)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_names_are_those_of_dcp(is_compiled: bool) -> None:
    """An attribute ``module`` is no wrapper, as in ``AveragedModel``."""
    network: nn.Module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    if is_compiled:
        network = cast(nn.Module, torch.compile(network, backend="eager"))
    averaged = AveragedModel(network)
    expected = get_model_state_dict(averaged)
    assert {*names_in(averaged, expected).values()} == {*expected}


def test_the_state_of_an_optimizer_is_restored_on_the_device_of_its_parameters() -> None:
    """In place of a GPU: the device without memory. ``step`` stays on the CPU, as in torch."""
    written, restored = (nn.Linear(3, 2, bias=False, device=kind) for kind in ("cpu", "meta"))
    written(torch.ones(3)).sum().backward()
    before, optimizer = Adam(written.parameters()), Adam(restored.parameters())
    before.step()
    fd = os.memfd_create("test")
    file = SnapshotFile(fd)
    file.lay_out(State({"model": written, "optimizer": before}).collect())
    saved = [(item.path, item.dtype, item.shape) for item in file.items]
    state = State({"model": restored, "optimizer": optimizer})
    found = state.prepare(saved, is_local=True)
    os.close(fd)
    assert not optimizer.state
    assert {key: value.device.type for key, value in found.items() if "state" in key} == {
        "optimizer.state.weight.step": "cpu",
        "optimizer.state.weight.exp_avg": "meta",
        "optimizer.state.weight.exp_avg_sq": "meta",
    }


def test_an_optimizer_that_takes_only_sparse_gradients_goes_on(move: Move) -> None:
    lives: list[dict[str, Any]] = []
    for _ in range(3):
        torch.manual_seed(0)
        table = nn.Embedding(5, 3, sparse=True)
        lives.append({"table": table, "optimizer": SparseAdam(table.parameters(), lr=0.1)})

    def train(life: dict[str, Any], begin: int, end: int) -> None:
        for step in range(begin, end):
            life["optimizer"].zero_grad()
            life["table"](torch.tensor([step, 0])).square().sum().backward()
            life["optimizer"].step()

    undisturbed, before, after = lives
    train(undisturbed, 0, 4)
    train(before, 0, 2)
    move(before, after)
    train(after, 2, 4)
    assert str(State(after).collect()) == str(State(undisturbed).collect())


@pytest.mark.usefixtures("mesh")
@pytest.mark.filterwarnings("ignore:FSDP is switching")  # of one rank there are no shards
def test_fsdp_of_the_first_kind_is_refused() -> None:
    model = nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))
    with pytest.raises(TypeError, match=r"for state\['model'\]: Fully.*: expected .*\.fully_shard"):
        State({"model": model})


def test_zero_redundancy_optimizer_is_refused() -> None:
    class ZeroRedundancyOptimizer(Adam):
        """Torch's needs a process group; it is known by its name, as it is slow to import."""

    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"state\['zero'\]: ZeroRedundancyOptimizer, whose state"):
        State({"model": model, "zero": ZeroRedundancyOptimizer(model.parameters())})
