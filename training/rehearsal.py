"""Records of a rehearsal (``ft-run rehearse``): the state of a script after each body.

Used only if ``FT_RUN_REHEARSAL`` names the directory of a row. Ranks write their records there, and
read from its ``order.json`` when to fail and when to leave.
"""

import itertools
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.dropout import _DropoutNd

from .checkpoints.encoding import PlainValue
from .checkpoints.memory_files import available
from .checkpoints.rank_state import RECORD
from .checkpoints.values import bytes_of
from .data.batches import ElasticBatches
from .fingerprints import fingerprint
from .script_variables import variables
from .worker.agent_socket import ancestors
from .worker.imported import bits_of, names_of

Every = int | str | None
_POLL_S = 0.01
_bodies = itertools.count(1)
"""Numbers the bodies of this process, over all its Checkpointers."""


class Rehearsal:
    """The part of one Checkpointer in a rehearsal."""

    def __init__(self, folder: str | os.PathLike[str], snapshot: Every, checkpoint: Every) -> None:
        """Read the order; ``folder`` is the checkpoints' directory as the script spells it."""
        self._key, self._path = os.fspath(folder), Path(os.environ["FT_RUN_REHEARSAL"])
        self._order = json.loads((self._path / "order.json").read_text())
        self._rank, self._ranks = (int(os.environ.get(key, "0")) for key in ("RANK", "WORLD_SIZE"))
        most, self._saves = self._order["most"], checkpoint is not None

        def within(interval: Every, default: int) -> int | None:
            return default if isinstance(interval, str) else interval and min(interval, most)

        own = self._path / "checkpoints" / f"{zlib.crc32(self._key.encode()):08x}"
        self.arguments = own, within(snapshot, 1), within(checkpoint, most)
        """Directory of the checkpoints, and intervals that are reached in a rehearsal."""
        self._fail_at(0)

    def record(self, objects: Mapping[str, Any], step: int, *, is_restored: bool = False) -> None:
        """Record the state after a body, or restored; then fail or leave if the order says so."""
        found = {name: value for name, value in objects.items() if name != RECORD}
        modules = [value for value in found.values() if isinstance(value, nn.Module)]
        data = [one for one in found.values() if isinstance(one, ElasticBatches)]
        samples = b"" if is_restored else b"".join(bytes_of(one.samples(step - 1)) for one in data)
        self._write(
            step=step,
            is_restored=is_restored,
            objects={
                name: fingerprint(one._value if isinstance(one, PlainValue) else one.state_dict())
                for name, one in found.items()
            },
            variables=variables(found),
            samples=zlib.crc32(samples) if data else None,
            sketches=[_sketch(one) for module in modules for one in module.parameters()],
            drops=any(isinstance(one, _DropoutNd) for m in modules for one in m.modules()),
            modules=names_of(bits_of(sys.modules)),
            snapshot_bytes=_snapshot_bytes(),
            available_bytes=available(),
        )
        if not is_restored:
            self._fail_at(step)
            if next(_bodies) == self._order["steps"] or [self._key, step] == self._order["end"]:
                self._leave()

    def _write(self, **values: Any) -> None:
        values |= {"key": self._key, "rank": self._rank, "ranks": self._ranks}
        values |= {"pid": os.getpid(), "time_s": time.time()}
        with (self._path / f"rank{self._rank}-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(values) + "\n")

    def _fail_at(self, step: int) -> None:
        for number, (key, at, kind, rank) in enumerate(self._order["failures"]):
            if (key, at, rank) == (self._key, step, self._rank):
                mark = self._path / f"failed-{number}"
                if not mark.exists():
                    mark.touch()
                    self._fail(kind)

    def _fail(self, kind: str) -> None:
        """Kill this worker (``worker``), stop or kill the job's agents, or this node's agent."""
        self._write(failed=kind)
        while kind == "kill" and self._saves and not any(self._path.glob("checkpoints/*/step-*")):
            time.sleep(_POLL_S)  # the next job resumes from the checkpoint
        agents = {int(pid) for pid in (self._path / "agents").read_text().split()}
        own = {"worker": {os.getpid()}, "node": agents & {*ancestors()}}
        for pid in own.get(kind, agents):
            os.kill(pid, signal.SIGTERM if kind == "stop" else signal.SIGKILL)
        if kind != "stop":
            signal.pause()  # this process is killed with its agent

    def _leave(self) -> None:
        """Exit with 0 when all ranks have arrived: a rank may still communicate."""
        (self._path / f"left-{self._rank}").touch()
        while len(list(self._path.glob("left-*"))) < self._ranks:
            time.sleep(_POLL_S)
        os._exit(0)


@torch.no_grad()
def _sketch(tensor: torch.Tensor) -> tuple[float, float]:
    """Return the norm and the sum of a tensor, which change little if the tensor does."""
    whole: Any = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    if not whole.is_floating_point():
        whole = whole.to(torch.float64)
    return whole.norm().item(), whole.sum(dtype=torch.float64).item()


def _snapshot_bytes() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "/memfd:ft-run-snapshot" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)
