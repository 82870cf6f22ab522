"""State that each rank has of its own: a killed worker, replaced nodes, a new job, another size."""

import re
import signal
from typing import TYPE_CHECKING

import pytest
from ft_run import exit_codes

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

PRELOAD = ("--preload", "torch,torch._dynamo,ft_run.training.checkpointer")
SCRIPT = """
import hashlib, os, signal, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from ft_run.training import Checkpointer

kind, folder, total = sys.argv[1], sys.argv[2], int(sys.argv[3])
dies_at, stops_at = (set(map(int, text.split(","))) for text in sys.argv[4:6])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("gloo")


class Counter(nn.Module):
    "Counts the tokens of this rank: in a buffer, and in its extra state."

    def __init__(self):
        super().__init__()
        self.register_buffer("tokens", torch.zeros(2, dtype=torch.int64))
        self.seen = [0]

    def forward(self, inputs):
        self.tokens += torch.tensor([inputs.numel(), 1 + rank])
        self.seen.append(inputs.numel() * (1 + rank))
        return inputs

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def net(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4), *more)


torch.manual_seed(0)
state, steps = {}, []
if kind == "local":
    router, sharded = nn.Linear(6, 2), fully_shard(net(Counter()))
    torch.manual_seed(7 + rank)  # a stage has other shapes on each rank, experts do not
    stage, experts = nn.Linear(6, 2 + rank), nn.ModuleList(nn.Linear(6, 4) for _ in range(2))
    of_experts = torch.optim.Adam([*router.parameters(), *experts.parameters()], lr=0.02)
    of_stage, of_sharded = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (stage, sharded))
    state = {"router": router, "experts": experts, "of_experts": of_experts, "stage": stage}
    state |= {"of_stage": of_stage, "sharded": sharded, "of_sharded": of_sharded}
    if rank == 0:
        state["ema"] = torch.optim.swa_utils.AveragedModel(router)
else:
    model = DistributedDataParallel(net(Counter()), broadcast_buffers=kind == "broadcast")
    state = {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.01)}


def backward(inputs):
    if kind != "local":
        model(inputs).square().mean().backward()
        return
    weights = router(inputs).softmax(1)
    mixed = sum(weights[:, i : i + 1] * one(inputs) for i, one in enumerate(experts))
    (mixed.square().mean() + stage(inputs).square().mean()).backward()
    for parameter in router.parameters():
        dist.all_reduce(parameter.grad)
    sharded(inputs).square().mean().backward()


def digest(one):
    if isinstance(one, torch.Tensor):
        one = (one.to_local() if isinstance(one, DTensor) else one).detach()
        return one.numpy().tobytes()
    return repr(one).encode()


def digests():
    "Digests of each object, of modules also of their buffers and their extra state."
    found = {}
    for name, one in state.items():
        parts = {name: one.state_dict()}
        if isinstance(one, nn.Module):
            buffers = {key for key, _ in one.named_buffers()}
            for key, value in parts.pop(name).items():
                part = ".buffers" * (key in buffers) or ".extra" * key.endswith("_extra_state")
                parts.setdefault(name + part, []).append(value)
        for part, values in parts.items():
            data = b"".join(map(digest, tree_leaves(values)))
            found[part] = hashlib.sha256(data).hexdigest()
    return " ".join(f"{part}={value}" for part, value in found.items())


def say(words):
    os.write(1, f"{words}\\n".encode())


given = {"local": ["stage", "experts"]} if kind == "local" else {}
checkpointer = Checkpointer(folder, state, checkpoint_every=1000, seed=3, position="step", **given)
begun = checkpointer.restore()
say(f"rank {rank} begins at step {begun} with {digests()} .")
for step in checkpointer.steps(total):
    if step in dies_at and step > begun and rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if step in stops_at and step > begun:
        checkpointer.wait()
        say(f"rank {rank} waits at step {step} with {digests()} .")
        signal.pause()
    torch.manual_seed(1000 * step + rank)
    inputs = torch.randn(5, 6)
    for name, one in state.items():
        if isinstance(one, torch.optim.Optimizer):
            one.zero_grad()
    backward(inputs)
    for name, one in state.items():
        if isinstance(one, torch.optim.Optimizer):
            one.step()
    if "ema" in state:
        state["ema"].update_parameters(router)
say(f"rank {rank} ends at step {total} with {digests()} .")
dist.destroy_process_group()
"""


def seen(what: str, *commands: "Command") -> dict[tuple[int, int], dict[str, str]]:
    """Return the digests of all objects with which ranks begin, wait or end, by rank and step."""
    found = {}
    for one in commands:
        for line in re.findall(rf"rank (\d) {what} at step (\d+) with (.*) \.", one.stdout):
            objects = dict(text.split("=") for text in line[2].split())
            found[int(line[0]), int(line[1])] = objects
    return found


class Job:
    """A job of two nodes with a rank each, whose master is apart."""

    def __init__(self, ft: "Launcher", port: int, kind: str, *options: object) -> None:
        self.ft, self.kind, self.options = ft, kind, options
        self.script = ft.script(SCRIPT, "train.py")
        self.rendezvous = ("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", ft.mark)
        self.master = ft.start("master", "--bind", f"127.0.0.1:{port}")
        self.master.expect("listening")
        self.nodes: list[Command] = []

    def start(self, total: int, dies_at: str, stops_at: str) -> None:
        """Start two nodes."""
        self.arguments = (
            self.script,
            self.kind,
            self.ft.folder / "saved",
            total,
            dies_at,
            stops_at,
        )
        self.nodes = [self._node(), self._node()]

    def _node(self) -> "Command":
        job = ("--nnodes", 2, "--max-restarts", 5, *PRELOAD, *self.options)
        return self.ft.start(*job, *self.rendezvous, *self.arguments)

    def replace(self, rank: int, step: int) -> None:
        """Kill the node of a rank, where both wait before a step, and start another one."""
        for node in self.nodes:
            node.expect(rf"rank \d waits at step {step} ")
        (lost,) = (node for node in self.nodes if (rank, step) in seen("waits", node))
        lost.send(signal.SIGKILL)
        lost.wait()
        self.nodes[self.nodes.index(lost)] = self._node()

    def end(self) -> None:
        """Wait for the nodes and end the master."""
        assert [node.wait() for node in self.nodes] == [0, 0], self.nodes[0].stderr
        self.master.send(signal.SIGTERM)
        self.master.wait()


def alone(ft: "Launcher", kind: str, ranks: int, folder: str, *arguments: object) -> "Command":
    """Run a job on one node."""
    job = ("--standalone", "--nproc-per-node", ranks, "--max-restarts", 3, *PRELOAD)
    return ft.run(*job, ft.script(SCRIPT, "train.py"), kind, ft.folder / folder, *arguments)


@pytest.mark.slow
def test_local_state_survives_everything(ft: "Launcher", free_port: int) -> None:
    """A pipeline stage, experts with a router, FSDP2 with counters, an EMA on rank 0."""
    undisturbed = seen("ends", alone(ft, "local", 2, "undisturbed", 18, "-1", "-1"))
    assert [len(undisturbed[rank, 18]) for rank in (0, 1)] == [11, 9]
    for name in ("experts", "of_experts", "sharded"):
        assert undisturbed[0, 18][name] != undisturbed[1, 18][name]
    job = Job(ft, free_port, "local", "--snapshot-replicas", 1)
    job.start(14, "3", "6,10")
    job.replace(0, 6)
    job.replace(1, 10)
    job.end()
    again = alone(ft, "local", 2, "saved", 18, "-1", "-1")
    begun, ended = seen("begins", *job.nodes, again), seen("ends", *job.nodes, again)
    expected = {**seen("waits", *job.nodes), **seen("ends", *job.nodes)}
    for step in (6, 10, 14):
        for rank in (0, 1):
            if (rank, step) in expected:  # else the output of a lost node has it
                assert begun[rank, step] == expected[rank, step]
    assert {place: ended[place] for place in undisturbed} == undisturbed
    larger = alone(ft, "local", 3, "saved", 20, "-1", "-1")
    assert larger.process.returncode == exit_codes.POLICY_ENDED_JOB
    assert (
        "default rule state of another number of ranks=fail; 0 of 3 restarts used" in larger.stderr
    )
    assert "WorldSizeError: each of 2 ranks has saved its own" in larger.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "broadcast"])
def test_buffers_and_extra_state_return(ft: "Launcher", free_port: int, kind: str) -> None:
    """Also after the loss of node 0: its new rank takes those of the other one."""
    undisturbed = seen("ends", alone(ft, kind, 2, "undisturbed", 14, "-1", "-1"))
    for part in ("model.buffers", "model.extra"):
        assert undisturbed[0, 14][part] != undisturbed[1, 14][part]
    job = Job(ft, free_port, kind)
    job.start(10, "3", "6")
    job.replace(0, 6)
    job.end()
    again = alone(ft, kind, 2, "saved", 14, "-1", "-1")
    begun, ended = seen("begins", *job.nodes), seen("ends", *job.nodes)
    (survivor,) = seen("waits", *job.nodes).values()
    assert begun[0, 6] == begun[1, 6] == survivor
    assert ended[0, 10]["model.extra"] != ended[1, 10]["model.extra"]
    if kind == "broadcast":  # before the next forward pass anyway
        ended[1, 10]["model.buffers"] = ended[0, 10]["model.buffers"]
    assert seen("begins", again) == ended
    for rank in (0, 1):
        for part in ("model", "optimizer"):
            assert seen("ends", again)[rank, 14][part] == undisturbed[rank, 14][part]
