"""Trains in many ways, each of which the comparison of ranks must accept; prints a row for each.

Each rank is a process: ``python no_alarm.py FOLDER RANK SIZE [NAME...]``.
"""

import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everywhere
from ft_run.training import Checkpointer
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

STEPS = 6
Body = Callable[[int], None]
Kind = Callable[[], tuple[dict[str, Any], Body]]
KINDS: dict[str, Kind] = {}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": torch.optim.Adagrad,
    "Adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "Muon": lambda p: torch.optim.Muon([one for one in p if one.ndim == 2], lr=0.01),
}


def kind(make: Kind) -> Kind:
    """Add a kind of training."""
    KINDS[make.__name__.replace("_", " ")] = make
    return make


class Net(nn.Module):
    """Has a batch norm, so that buffers differ between ranks, dropout and a frozen layer."""

    def __init__(self, *, frozen: bool = True, norm: type[nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), norm(16)
        self.middle, self.last = nn.Linear(16, 16), nn.Linear(16, 4)
        self.middle.requires_grad_(not frozen)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(torch.relu(self.norm(self.first(batch))), 0.1)
        found: torch.Tensor = self.last(torch.relu(self.middle(hidden)))
        return found


def batch() -> torch.Tensor:
    """Return a different batch on each rank: the generators are seeded from step and rank."""
    return torch.randn(8, 8)


def adam(net: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam((p for p in net.parameters() if p.requires_grad), lr=0.01)


def plain(
    net: Any, optimizer: torch.optim.Optimizer | None = None, **more: Any
) -> tuple[dict[str, Any], Body]:
    """Return the state and the body of the simplest loop."""
    optimizer = optimizer or adam(net)

    def body(_: int) -> None:
        optimizer.zero_grad()
        net(batch()).square().mean().backward()
        optimizer.step()

    return {"net": net, "optimizer": optimizer, **more}, body


def ddp(net: Any = None, **options: Any) -> Any:
    return DistributedDataParallel(Net() if net is None else net, **options)


@kind
def ddp_batch_norm_not_broadcast() -> tuple[dict[str, Any], Body]:
    return plain(ddp(broadcast_buffers=False))


@kind
def ddp_find_unused() -> tuple[dict[str, Any], Body]:
    net = ddp(Net(frozen=False), find_unused_parameters=True)
    optimizer = adam(net)

    def body(step: int) -> None:
        optimizer.zero_grad()
        # Each rank leaves out the middle layer in different steps.
        inner = net.module
        skips = (step + dist.get_rank()) % 2
        linear = type(inner.middle).forward.__get__(inner.middle)
        object.__setattr__(inner.middle, "forward", (lambda x: x) if skips else linear)
        net(batch()).square().mean().backward()
        optimizer.step()

    return {"net": net, "optimizer": optimizer}, body


@kind
def ddp_static_graph() -> tuple[dict[str, Any], Body]:
    return plain(ddp(static_graph=True))


@kind
def ddp_buckets_as_views() -> tuple[dict[str, Any], Body]:
    return plain(ddp(gradient_as_bucket_view=True, bucket_cap_mb=1))


@kind
def ddp_fp16_hook() -> tuple[dict[str, Any], Body]:
    net = ddp()
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return plain(net)


@kind
def ddp_powersgd_hook() -> tuple[dict[str, Any], Body]:
    net = ddp()
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return plain(net)


def _uneven(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[dict[str, Any], Body]:
    net = ddp(Net(norm=nn.LayerNorm))
    optimizer = make([p for p in net.parameters() if p.requires_grad])

    def body(_: int) -> None:  # an epoch
        with Join([net]):
            for _ in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                net(batch()).square().mean().backward()
                optimizer.step()

    return {"net": net, "optimizer": optimizer}, body


@kind
def ddp_uneven_inputs_with_sgd() -> tuple[dict[str, Any], Body]:
    return _uneven(lambda p: torch.optim.SGD(p, lr=0.01))


@kind
def ddp_uneven_inputs_with_adam() -> tuple[dict[str, Any], Body]:
    return _uneven(torch.optim.Adam)


@kind
def ddp_accumulation_without_sync() -> tuple[dict[str, Any], Body]:
    net = ddp()
    optimizer = adam(net)

    def body(_: int) -> None:
        optimizer.zero_grad()
        with net.no_sync():
            net(batch()).square().mean().backward()
        net(batch()).square().mean().backward()
        optimizer.step()

    return {"net": net, "optimizer": optimizer}, body


@kind
def ddp_accumulation_over_bodies() -> tuple[dict[str, Any], Body]:
    net = ddp()
    optimizer = adam(net)

    def body(step: int) -> None:
        with contextlib.nullcontext() if step % 2 else net.no_sync():
            net(batch()).square().mean().backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()

    return {"net": net, "optimizer": optimizer}, body


@kind
def ddp_amp_with_skipped_steps() -> tuple[dict[str, Any], Body]:
    net = ddp()
    optimizer = adam(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def body(step: int) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(batch()).float().square().mean()
        if step == 2 and dist.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return {"net": net, "optimizer": optimizer, "scaler": scaler}, body


@kind
def ddp_of_compiled() -> tuple[dict[str, Any], Body]:
    return plain(ddp(torch.compile(Net(), backend="aot_eager")))


@kind
def compiled_ddp() -> tuple[dict[str, Any], Body]:
    net = ddp()
    state, _ = plain(net)
    _, body = plain(torch.compile(net, backend="aot_eager"), state["optimizer"])
    return state, body


@kind
def ddp_bf16_weights() -> tuple[dict[str, Any], Body]:
    net = ddp(Net(norm=nn.LayerNorm).bfloat16())
    state, _ = plain(net)

    def body(_: int) -> None:
        state["optimizer"].zero_grad()
        net(batch().bfloat16()).square().mean().backward()
        state["optimizer"].step()

    return state, body


@kind
def ddp_nan_weights() -> tuple[dict[str, Any], Body]:
    state, inner = plain(ddp())

    def body(step: int) -> None:
        inner(step)
        if step == 3:
            with torch.no_grad():
                state["net"].module.last.weight.fill_(float("nan"))

    return state, body


@kind
def ema_on_all_ranks() -> tuple[dict[str, Any], Body]:
    state, inner = plain(ddp())
    ema = AveragedModel(state["net"].module, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def body(step: int) -> None:
        inner(step)
        if step > 1:
            ema.update_parameters(state["net"].module)

    return {**state, "ema": ema}, body


@kind
def ema_on_rank_0_only() -> tuple[dict[str, Any], Body]:
    state, inner = plain(ddp())
    if dist.get_rank():
        return state, inner
    ema = AveragedModel(state["net"].module)

    def body(step: int) -> None:
        inner(step)
        ema.update_parameters(state["net"].module)

    return {**state, "ema": ema}, body


@kind
def gan() -> tuple[dict[str, Any], Body]:
    maker, judge = ddp(Net(frozen=False)), ddp(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)))
    makes, judges = adam(maker), adam(judge)

    def body(step: int) -> None:
        judges.zero_grad()
        judge(maker(batch()).detach()).mean().backward()
        judges.step()
        if step % 2:
            makes.zero_grad()
            judge(maker(batch())).mean().neg().backward()
            makes.step()

    return {"maker": maker, "judge": judge, "makes": makes, "judges": judges}, body


@kind
def tied_weights_and_spectral_norm() -> tuple[dict[str, Any], Body]:
    net: Any = Net(frozen=False, norm=nn.LayerNorm)
    net.middle = nn.utils.parametrizations.spectral_norm(net.middle)
    net.also = net.first
    return plain(ddp(net, broadcast_buffers=False, find_unused_parameters=True))


@kind
def unfreezing_and_schedulers() -> tuple[dict[str, Any], Body]:
    net = ddp(Net(frozen=False), find_unused_parameters=True)
    net.module.middle.requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    def body(step: int) -> None:
        if step == 3:
            net.module.middle.requires_grad_(True)
            for parameter in net.module.middle.parameters():  # DDP does not reduce these
                parameter.register_hook(_mean)
        optimizer.zero_grad()
        loss = net(batch()).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step(float(loss.detach()))  # of each rank its own
        for group in optimizer.param_groups:
            group["lr"] = 0.01

    return {"net": net, "optimizer": optimizer, "scheduler": scheduler}, body


def _mean(gradient: Any) -> torch.Tensor:
    found: torch.Tensor = gradient.clone()
    dist.all_reduce(found)
    return found / dist.get_world_size()


@kind
def gradients_reduced_by_hand() -> tuple[dict[str, Any], Body]:
    net = Net(frozen=False)
    optimizer = adam(net)

    def body(_: int) -> None:
        optimizer.zero_grad()
        net(batch()).square().mean().backward()
        for parameter in net.parameters():
            parameter.grad = _mean(parameter.grad)
        optimizer.step()

    return {"net": net, "optimizer": optimizer}, body


def sharded(net: Any = None, **options: Any) -> Any:
    net = net or Net(norm=nn.LayerNorm)
    options.setdefault("mesh", init_device_mesh("cpu", (dist.get_world_size(),)))
    for layer in (net.first, net.last):
        fully_shard(layer, **options)
    return fully_shard(net, **options)


@kind
def fsdp2() -> tuple[dict[str, Any], Body]:
    return plain(sharded())


@kind
def fsdp2_mixed_precision() -> tuple[dict[str, Any], Body]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return plain(sharded(mp_policy=policy))


@kind
def fsdp2_unsharded_after_validation() -> tuple[dict[str, Any], Body]:
    state, inner = plain(sharded(reshard_after_forward=False))

    def body(step: int) -> None:
        inner(step)
        with torch.no_grad():
            state["net"](torch.ones(2, 8))

    return state, body


@kind
def fsdp2_with_an_expert_that_is_used_late() -> tuple[dict[str, Any], Body]:
    net: Any = Net(frozen=False, norm=nn.LayerNorm)
    net.expert = nn.Linear(4, 4)
    fully_shard(net.expert, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    net = sharded(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

    def body(step: int) -> None:
        optimizer.zero_grad()
        found = net(batch())
        if step > 2:
            found = net.expert(found)
        found.square().mean().backward()
        optimizer.step()

    return {"net": net, "optimizer": optimizer}, body


@kind
def hsdp() -> tuple[dict[str, Any], Body]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    return plain(sharded(mesh=mesh))


class Block(nn.Module):
    """Has a part for each kind of tensor parallelism, and a layer that nothing parallelizes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.down(torch.relu(self.up(self.norm(batch)))))
        return found


def _tensor_parallel(mesh: Any, *, sequence: bool = False) -> Any:
    plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        from torch.distributed.tensor import Replicate, Shard

        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Replicate()),
        }
    return parallelize_module(Block(), mesh, plan)


def _parallel(net: Any, *, shape: Any = None) -> tuple[dict[str, Any], Body]:
    """Return a loop in which ranks of tensor parallelism have the same batch."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    replica = dist.get_rank() // 2 if shape else 0

    def body(step: int) -> None:
        torch.manual_seed(100 * step + replica)
        optimizer.zero_grad()
        net(batch()).square().mean().backward()
        optimizer.step()

    return {"net": net, "optimizer": optimizer}, body


@kind
def tensor_parallel() -> tuple[dict[str, Any], Body]:
    return _parallel(_tensor_parallel(init_device_mesh("cpu", (dist.get_world_size(),))))


@kind
def tensor_and_sequence_parallel() -> tuple[dict[str, Any], Body]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return _parallel(_tensor_parallel(mesh, sequence=True))


@kind
def tensor_parallel_in_fsdp2() -> tuple[dict[str, Any], Body]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    net = _tensor_parallel(mesh["tensor"])
    return _parallel(fully_shard(net, mesh=mesh["data"]), shape=(2, 2))


@kind
def tensor_parallel_reduced_by_hand() -> tuple[dict[str, Any], Body]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    net = _tensor_parallel(mesh["tensor"])
    state, _ = _parallel(net, shape=(2, 2))
    group = mesh["data"].get_group()

    def body(step: int) -> None:
        torch.manual_seed(100 * step + dist.get_rank() // 2)
        state["optimizer"].zero_grad()
        net(batch()).square().mean().backward()
        for parameter in net.parameters():
            gradient = getattr(parameter.grad, "_local_tensor", parameter.grad)
            dist.all_reduce(gradient, group=group)
        state["optimizer"].step()

    return state, body


@kind
def sparse_adam() -> tuple[dict[str, Any], Body]:
    net = ddp(nn.Sequential(nn.Embedding(32, 8, sparse=True), nn.Flatten(0)))
    optimizer = torch.optim.SparseAdam(net.parameters(), lr=0.01)

    def body(_: int) -> None:
        optimizer.zero_grad()
        net(torch.randint(32, (4,))).square().mean().backward()
        optimizer.step()

    return {"net": net, "optimizer": optimizer}, body


def _with(make: Callable[[Any], torch.optim.Optimizer]) -> Kind:
    def training() -> tuple[dict[str, Any], Body]:
        net = ddp(Net(frozen=False, norm=nn.LayerNorm))
        optimizer = make([*net.parameters()])

        def body(_: int) -> None:
            def loss() -> Any:
                optimizer.zero_grad()
                found = F.mse_loss(net(torch.ones(4, 8)), torch.zeros(4, 4))
                found.backward()
                return found

            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(loss)
            else:
                optimizer.zero_grad()
                net(batch()).square().mean().backward()
                optimizer.step()

        return {"net": net, "optimizer": optimizer}, body

    return training


for name, make in OPTIMIZERS.items():
    KINDS[f"optimizer {name}"] = _with(make)
if find_spec("schedulefree") is not None:

    @kind
    def schedule_free() -> tuple[dict[str, Any], Body]:
        schedulefree: Any = import_module("schedulefree")
        net = ddp(Net(frozen=False))
        optimizer = schedulefree.AdamWScheduleFree(net.parameters(), lr=0.01)
        state, body = plain(net, optimizer)
        optimizer.train()
        return state, body


if find_spec("transformers") is not None:

    @kind
    def gpt_2_of_transformers() -> tuple[dict[str, Any], Body]:
        from transformers import GPT2Config, GPT2LMHeadModel

        net = ddp(
            GPT2LMHeadModel(
                GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
            )
        )
        optimizer = adam(net)

        def body(_: int) -> None:
            tokens = torch.randint(64, (2, 8))
            optimizer.zero_grad()
            net(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()

        return {"net": net, "optimizer": optimizer}, body


def train(name: str, folder: str) -> str:
    """Train in one way, and return what happened: what was compared, or the error."""
    torch.manual_seed(0)
    written = io.StringIO()
    with contextlib.redirect_stderr(written), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            state, body = KINDS[name]()
            torch.manual_seed(1 + dist.get_rank())
            checkpointer = Checkpointer(
                folder, state, verify_every=1, checkpoint_every=4, position="step",
                seed=1 if name.startswith("optimizer") else None,
            )  # fmt: skip
            for step in checkpointer.steps(STEPS):
                body(step)
        except Exception as error:  # a row has it
            return f"{type(error).__name__}: {error}"
    lines = [line for line in written.getvalue().splitlines() if "differ" in line]
    equality = checkpointer._equality
    return "; ".join([f"equal: {', '.join(sorted(equality._was_equal))}", *lines])


def rows(folder: str, rank: int, size: int, names: list[str]) -> Iterator[tuple[str, str]]:
    for number, name in enumerate(names or KINDS):
        store = f"file://{folder}/{number}.store"
        dist.init_process_group("gloo", store, rank=rank, world_size=size)
        yield name, train(name, f"{folder}/{number}")
        dist.destroy_process_group()


def versions() -> str:
    found = []
    for package in ("torch", "transformers", "schedulefree"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


if __name__ == "__main__":
    folder, rank, size, *names = sys.argv[1:]
    os.environ["WORLD_SIZE"] = size
    torch.set_num_threads(1)
    found = dict(rows(folder, int(rank), int(size), names))
    sys.stdout.write(json.dumps({"versions": versions(), **found}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of torch.compile may still run
