"""Writes the dumps in this folder: what torch's hook records of hangs on backends without a GPU.

    python record.py FOLDER         needs torch 2.15, a C++ compiler and ninja

Each case is a job of three ranks that do not wait for anything; its name is that of its dumps, with
the backend and the rank: ``batched.nccl2.1``. ``python`` is a backend in Python, which has no
completion hooks; the other cases use ``backend.cpp``.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.multiprocessing.spawn import spawn

RANKS = 3
HERE = Path(__file__).parent


class InPython(c10d.Backend):
    """gloo under another name."""

    def __init__(self, gloo: Any, name: str) -> None:
        super().__init__(gloo.rank(), gloo.size())
        self._gloo, self._name = gloo, name

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return self._name

    def allreduce(self, tensors: Any, options: Any) -> Any:
        return self._gloo.allreduce(tensors, options)


def register(name: str, *, in_python: bool) -> None:
    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:
        gloo = c10d.ProcessGroupGloo(store, rank, size, timeout)
        return InPython(gloo, name) if in_python else extension().named(gloo, name, True)

    dist.Backend.register_backend(f"recorded-{name}", create, devices=["cpu"])


def extension() -> Any:
    from torch.utils.cpp_extension import load

    return load("recorded_backend", [str(HERE / "backend.cpp")])


def reduce(group: Any = None) -> None:
    dist.all_reduce(torch.ones(32), group=group, async_op=True)


def missing(rank: int) -> None:
    """Rank 2 does not enter the third collective."""
    for _ in range(2 if rank == 2 else 3):
        reduce()


def batched(rank: int) -> None:
    """Rank 1 waits in a batched receive for rank 0, and rank 2 in a collective for rank 1."""
    pipe, data = dist.new_group([0, 1]), dist.new_group([1, 2])
    if rank:
        reduce(data)
        time.sleep(0.5)
    if rank == 1:
        dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(32), 0, group=pipe)])
    if rank == 2:
        reduce(data)


def single(rank: int) -> None:
    """The same, and its receive is not batched."""
    pipe, data = dist.new_group([0, 1]), dist.new_group([1, 2])
    if rank:
        reduce(data)
        time.sleep(0.5)
    if rank == 1:
        dist.irecv(torch.ones(32), 0, group=pipe)
    if rank == 2:
        reduce(data)


def two(rank: int) -> None:
    """Rank 1 waits for rank 0 in a group of nccl-lazy, and rank 2 for rank 1 in one of nccl2."""
    pipe = dist.new_group([0, 1], backend="recorded-nccl-lazy")
    data = dist.new_group([1, 2])
    if rank:
        reduce(data)
        time.sleep(0.5)
    if rank == 1:
        reduce(pipe)
    if rank == 2:
        reduce(data)


CASES = {"python": missing, "missing": missing, "batched": batched, "single": single, "two": two}


def record(rank: int, case: str, folder: str) -> None:
    for name in ("nccl2", "nccl-lazy"):
        register(name, in_python=case == "python")
    store = c10d.FileStore(f"{folder}/.store-{case}", RANKS)
    dist.init_process_group("recorded-nccl2", store=store, rank=rank, world_size=RANKS)
    CASES[case](rank)
    time.sleep(1)
    for backend in ("nccl2", "nccl-lazy") if case == "two" else ("nccl2",):
        dump = getattr(c10d, "_dump_fr_trace")(True, False, False, backend)  # noqa: B009 - not typed
        (Path(folder) / f"{case}.{backend}.{rank}").write_bytes(dump)
    store.add("recorded", 1)
    while store.add("recorded", 0) < RANKS:
        time.sleep(0.05)
    os._exit(0)  # operations are pending


if __name__ == "__main__":
    extension()  # compiled once
    for name in CASES:
        spawn(record, (name, sys.argv[1]), RANKS)
        os.unlink(f"{sys.argv[1]}/.store-{name}")
