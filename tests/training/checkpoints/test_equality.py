"""State of several ranks is compared: a difference is refused, and a corrupt rank is named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.tests.harness.forked import run_forked
from ft_run.tests.harness.shared import compute_once
from ft_run.training import Checkpointer
from ft_run.training.checkpoints.common_tensors import distance
from torch import nn

PROGRAM = """
import contextlib, io, json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from ft_run.training import Checkpointer

torch.set_num_threads(1)


def model_of(kind, rank, size):
    torch.manual_seed(rank if kind == "stages" else 0)
    if kind == "stages":
        return nn.Linear(3, 1)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    if kind == "frozen":
        net[0].requires_grad_(False), net[1].requires_grad_(False)
        net = DistributedDataParallel(net)
    if kind == "averaged":
        net = AveragedModel(DistributedDataParallel(net, broadcast_buffers=False))
    if kind == "lacking" and rank == 1:
        net.append(nn.Linear(1, 1))
    if kind in ("fsdp2", "ignored"):
        ignored = {net[2].weight} if kind == "ignored" else set()
        fully_shard(net, mesh=init_device_mesh("cpu", (size,)), ignored_params=ignored)
    elif kind == "hsdp":
        names = ("replicas", "shards")
        fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=names))
    elif kind == "tp":
        layer = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(net[0], init_device_mesh("cpu", (size,)), layer)
    elif kind == "shards":  # as in Megatron: plain tensors, each rank has a part of the rows
        torch.manual_seed(rank)
        net[0] = nn.Linear(3, 4)
    elif kind == "experts":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["2.weight"])
        net = DistributedDataParallel(net)
    elif kind in ("ddp", "ema", "ema on rank 0"):
        net = DistributedDataParallel(net)
    return net


def weight_of(net, index):
    layer = getattr(net, "module", net)[index].weight
    return getattr(layer, "_local_tensor", layer)


def disturb(change, step, rank, net, optimizer, state):
    if change == "ema" and rank == 0:
        state["ema"].weight.data += step
    if change == "rounding" and step == 3 and rank == 2:
        weight_of(net, 2).data *= 1 + 1e-6
        net.module[2].bias.data *= 1 + 1e-6
    if change == "zeros" and step == 3:
        weight_of(net, 2).data.zero_().mul_(-1 if rank == 2 else 1)
    if change == "lacking" and (step, rank) == (7, 1):
        del optimizer.state[net.module[0].bias]
    if change == "slightly" and (step, rank) == (0, 1):
        weight_of(net, 0).data[0, 0] *= 1 + 1e-6
    if change == "weight" and (step, rank) == (4, 2):
        weight_of(net, 2).data.view(torch.int32)[0, 1] ^= 1 << 3
    if change == "start" and (step, rank) == (0, 2):
        weight_of(net, 2).data[0, 0] += 1
    if change == "moment" and (step, rank) == (3, 0):
        moment = optimizer.state[net.module[0].bias]["exp_avg"]
        moment.view(torch.int32)[1] ^= 1 << 24
    if change.startswith("every tensor") and (step, rank) == (3, int(change[-1])):
        for parameter in net.parameters():
            parameter.data *= 2
    if change == "nan" and step == 3:
        weight_of(net, 2).data.view(torch.int32)[0] = 0x7FC00000 + rank
    if change == "shard":
        if step == 0 and rank == 3:
            weight_of(net, 0).data.view(torch.int32)[0] ^= 1 << 23


def reduce(net, left_out):
    for name, parameter in net.named_parameters():
        if not name.startswith(left_out):
            dist.all_reduce(parameter.grad)


def train(folder, kind, change, options, rank, size):
    net = model_of(kind, rank, size)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    state = {"net": net, "optimizer": optimizer}
    if kind == "ema" or (kind == "ema on rank 0" and rank == 0):
        state["ema"] = nn.Linear(3, 1)
    step = -1
    try:
        checkpointer = Checkpointer(folder, state, seed=1, position="step", **options)
        for step in checkpointer.steps(8):
            torch.manual_seed(100 * step + rank * (kind != "tp"))
            optimizer.zero_grad()
            net(torch.randn(4, 3)).square().mean().backward()
            if kind in ("shards", "norms"):
                reduce(net, "0" if kind == "shards" else "1")
            optimizer.step()
            disturb(change, step, rank, net, optimizer, state)
        print("done")
    except RuntimeError as error:
        print(f"{step} {type(error).__name__} {error}")


folder, rank, cases = sys.argv[1:]
rank, found = int(rank), {}
for name, (size, kind, change, options) in json.loads(cases).items():
    if rank < size:
        os.environ["WORLD_SIZE"] = str(size)
        dist.init_process_group("gloo", f"file://{folder}/{name}.store", rank=rank, world_size=size)
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            train(f"{folder}/{name}", kind, change, options, rank, size)
        found[name] = written.getvalue()
        dist.destroy_process_group()
print(json.dumps(found), flush=True)
os._exit(0)
"""
EACH = {"verify_every": 1, "checkpoint_every": None}
SAVES = {**EACH, "checkpoint_every": 3}
CASES: dict[str, tuple[int, str, str, dict[str, Any]]] = {
    "ddp": (2, "ddp", "", SAVES),
    "fsdp2": (2, "fsdp2", "", SAVES),
    "hsdp": (4, "hsdp", "", SAVES),
    "tp": (2, "tp", "", SAVES),
    "ema on rank 0": (2, "ema on rank 0", "", SAVES),
    "averaged": (2, "averaged", "", EACH),
    "zeros": (4, "ddp", "zeros", EACH),
    "not a number": (2, "ddp", "nan", EACH),
    "stages": (2, "stages", "", {"checkpoint_every": None}),
    "plain": (2, "plain", "", {"checkpoint_every": None}),
    "lacking": (2, "lacking", "", {"checkpoint_every": None}),
    "shards": (2, "shards", "", {"checkpoint_every": None}),
    "experts": (2, "experts", "", {"checkpoint_every": None}),
    "norms": (2, "norms", "", {"checkpoint_every": None}),
    "ignored": (2, "ignored", "", {"checkpoint_every": None}),
    "ema": (2, "ema", "ema", {**EACH, "verify_every": 2}),
    "checkpoint": (2, "ema", "ema", {"verify_every": 99, "checkpoint_every": 3}),
    "warning": (2, "stages", "", {**EACH, "unequal": "warn"}),
    "slightly": (2, "ddp", "slightly", EACH),
    "frozen": (4, "frozen", "rounding", EACH),
    "optimizer lacks": (2, "ddp", "lacking", EACH),
    "replica of a shard": (4, "hsdp", "shard", EACH),
    "weight": (4, "ddp", "weight", EACH),
    "moment": (4, "ddp", "moment", EACH),
    "rank 0": (4, "ddp", "every tensor of 0", EACH),
    "rank 2": (4, "ddp", "every tensor of 2", EACH),
    "never equal": (4, "ddp", "start", EACH),
    "two ranks": (2, "ddp", "moment", EACH),
}
"""By name: number of ranks, model, what happens to the state, and arguments."""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the output of each rank of each case."""
    return compute_once(tmp_path_factory, "equality", lambda: run(tmp_path_factory.mktemp("cases")))


def run(folder: Path) -> dict[str, list[str]]:
    """Run each case in two or all of four processes."""
    calls = [(folder, rank, json.dumps(CASES)) for rank in range(4)]
    modules = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "ft_run.training")
    ranks = [
        json.loads(ended.output.splitlines()[-1]) for ended in run_forked(PROGRAM, calls, modules)
    ]
    found = {name: [ranks[rank][name] for rank in range(case[0])] for name, case in CASES.items()}
    found["files"] = [path.name for path in (folder / "checkpoint").glob("step-*")]
    return found


@pytest.mark.parametrize(
    "name",
    ["ddp", "fsdp2", "hsdp", "tp", "ema on rank 0", "averaged", "zeros", "not a number"],
)
def test_equal_state_causes_no_alarm(output: dict[str, list[str]], name: str) -> None:
    """Batches, buffers, objects of one rank and the bits of NaN differ."""
    for text in output[name]:
        assert text.endswith("done\n")
        assert "differ" not in text


@pytest.mark.parametrize(
    ("name", "step", "message"),
    [
        ("stages", 0, "weights of 'net' differ between ranks 0 and 1 (weight)"),
        ("plain", 0, "weights of 'net' differ between ranks 0 and 1 (0.weight)"),
        ("lacking", 0, "3.weight of 'net' is missing on rank 0"),
        ("shards", 0, "weights of 'net' differ between ranks 0 and 1 (0.weight)"),
        ("experts", 0, "weights of 'net' differ between ranks 0 and 1 (2.weight)"),
        ("norms", 0, "weights of 'net' differ between ranks 0 and 1 (1.weight)"),
        ("ignored", 0, "weights of 'net' differ between ranks 0 and 1 (2.weight)"),
        ("ema", 2, "weights of 'ema' differ between ranks 0 and 1 (weight)"),
        ("checkpoint", 2, "weights of 'ema' differ between ranks 0 and 1 (weight)"),
        ("replica of a shard", 0, "weights of 'net' differ between ranks 1 and 3 (0.weight)"),
        ("never equal", 0, "weights of 'net' differ between ranks 0 and 2 (2.weight)"),
        ("rank 0", 3, "weights of 'net' differ between ranks 0 and 1 (0.weight)"),
    ],
)
def test_unequal_state_is_refused(
    output: dict[str, list[str]], name: str, step: int, message: str
) -> None:
    for text in output[name]:
        assert re.search(rf"^{step} UnequalStateError (the )?{re.escape(message)}", text, re.M)
        assert 'unequal="warn"' in text
    assert not output["files"]


def test_warning_is_one_line(output: dict[str, list[str]]) -> None:
    assert all(text.endswith("done\n") for text in output["warning"])
    assert output["warning"][0].count("differ") == 1
    assert "differ" not in output["warning"][1]


def test_slight_difference_is_a_warning_with_its_size(output: dict[str, list[str]]) -> None:
    for name, key in (("slightly", "1 (0.weight)"), ("frozen", "2 (2.weight)")):
        assert all(text.endswith("done\n") for text in output[name])
        line = rf"'net' differs slightly between ranks 0 and {re.escape(key)}: \de-0\d"
        assert len(re.findall(line, output[name][0])) == 1


def test_optimizer_state_that_a_rank_lacks_is_a_warning(output: dict[str, list[str]]) -> None:
    assert all(text.endswith("done\n") for text in output["optimizer lacks"])
    assert output["optimizer lacks"][0].count("of 'optimizer' is missing on rank 1") == 1


@pytest.mark.parametrize(
    ("name", "odd", "step", "tensor"),
    [
        ("weight", 2, 4, "net.2.weight"),
        ("moment", 0, 3, "optimizer.state.0.bias.exp_avg"),
        ("rank 2", 2, 3, "net.0.weight"),
    ],
)
def test_flipped_bit_is_named_with_its_rank(
    output: dict[str, list[str]], name: str, odd: int, step: int, tensor: str
) -> None:
    text = output[name][odd]
    assert f"{step} CorruptStateError {tensor} of rank {odd} has changed" in text
    assert "host " in text
    for rank, other in enumerate(output[name]):
        assert "UnequalStateError" not in other
        assert rank == odd or "CorruptStateError" not in other
        assert "done" not in other


def test_flipped_bit_on_one_of_two_ranks_is_unequal(output: dict[str, list[str]]) -> None:
    for text in output["two ranks"]:
        assert "CorruptStateError" not in text
        assert "UnequalStateError" in text


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 4.5], [3.0, 4.0], 0.1),
        ([-3.0, -4.0], [3.0, 4.0], 1.0),
        ([0.0, 1.0], [-0.0, 1.0], 0.0),
        ([1.0], [0.0], 1.0),
        ([NAN, INFINITY], [NAN, INFINITY], 0.0),
        ([NAN, 4.5], [NAN, 4.0], 0.125),
        ([NAN, 4.0], [3.0, 4.0], 1.0),
        ([INFINITY, 4.0], [-INFINITY, 4.0], 1.0),
    ],
)
def test_distance_is_relative_and_ignores_common_nan(
    mine: list[float], theirs: list[float], expected: float
) -> None:
    assert distance(torch.tensor(mine), torch.tensor(theirs)) == expected


@pytest.mark.parametrize(
    "options", [{"unequal": "ignore"}, {"verify_every": 0}, {"verify_every": True}], ids=str
)
def test_invalid_value_is_refused(tmp_path: Path, options: Any) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"for {name}: expected"):
        Checkpointer(tmp_path, {"net": nn.Linear(1, 1)}, **options)
