"""Records of a rehearsal (``ft-run rehearse``): the state of a script after each body.

Used only if ``FT_RUN_REHEARSAL`` names the directory of a row. Ranks write their records there, and
read from its ``order.json`` when to fail and when to leave.
"""

import contextlib
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
from torch.optim import Optimizer

from .checkpoints.rank_state import RECORD
from .checkpoints.values import PlainValue
from .data.batches import ElasticBatches
from .fingerprints import fingerprint, leaves
from .script_variables import Variables
from .worker.agent_socket import ancestors
from .worker.imported import bits_of, names_of

VARIABLE = "FT_RUN_REHEARSAL"
_CHECKPOINT_S = 20.0
_CHUNKS = 8
_opened: "list[_Records]" = []
"""The records of this process, once a Checkpointer was created."""


class Rehearsal:
    """The part of one Checkpointer in a rehearsal."""

    def __init__(self, folder: "str | os.PathLike[str]") -> None:
        """Open the records of this process, if this is its first Checkpointer.

        Args:
            folder: directory of the checkpoints, as the script spells it.
        """
        if not _opened or _opened[0].pid != os.getpid():
            _opened[:] = [_Records(Path(os.environ[VARIABLE]))]
        self._records = _opened[0]
        self._folder = os.fspath(folder)
        self._key = self._records.key_of(self._folder)

    def adapt(self, snapshot: int | str | None, checkpoint: int | str | None) -> tuple[Any, ...]:
        """Return the directory of the row's checkpoints, and intervals that a rehearsal reaches.

        Args:
            snapshot: ``snapshot_every`` of the script.
            checkpoint: ``checkpoint_every`` of the script.
        """
        self._fail_at(0)
        most = self._records.order["checkpoint_every"]
        name = f"{zlib.crc32(self._folder.encode()):08x}"

        def within(interval: int | str | None, default: int) -> int | None:
            if interval is None:
                return None
            return min(interval, most) if isinstance(interval, int) else default

        folder = self._records.path / "checkpoints" / name
        return folder, within(snapshot, 1), within(checkpoint, most)

    def record(self, objects: Mapping[str, Any], step: int, *, is_restored: bool = False) -> None:
        """Record the state, then fail or leave if the order says so.

        Args:
            objects: objects of the state, by name.
            step: number of completed steps.
            is_restored: whether the state was just restored, instead of changed by a body.
        """
        records, samples = self._records, 0
        for value in objects.values():
            if isinstance(value, ElasticBatches) and not is_restored:
                samples = zlib.crc32(value.samples(step - 1).numpy().tobytes(), samples)
        found = {name: value for name, value in objects.items() if name != RECORD}
        records.write(
            key=self._key,
            step=step,
            is_restored=is_restored,
            objects=_fingerprints(found),
            sharded=[name for name, value in found.items() if _is_sharded(value)],
            variables=records.variables.read(found),
            modules=names_of(bits_of(sys.modules)),
            samples=samples if any(isinstance(o, ElasticBatches) for o in found.values()) else None,
        )
        if not is_restored:
            records.count += 1
            self._obey(found, step)

    def _fail_at(self, step: int) -> None:
        for number, (place, kind, rank) in enumerate(self._records.order["failures"]):
            if place == [self._key, step] and rank == self._records.rank:
                with contextlib.suppress(FileExistsError):
                    (self._records.path / f"failed-{number}").touch(exist_ok=False)
                    self._records.fail(kind)

    def _obey(self, objects: Mapping[str, Any], step: int) -> None:
        self._fail_at(step)
        order, records = self._records.order, self._records
        here = [self._key, step]
        if here == order["end"] or (order["end"] is None and records.count == order["steps"]):
            sketches = {
                name: _sketch(value)
                for name, value in objects.items()
                if isinstance(value, nn.Module)
            }
            parts = [
                one for o in objects.values() if isinstance(o, nn.Module) for one in o.modules()
            ]
            drops = any(isinstance(one, _DropoutNd) and one.p > 0 for one in parts)
            records.write(key=self._key, step=step, sketches=sketches, drops=drops)
            records.leave()


class _Records:
    """The records of one process: lines of JSON in a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path, self.pid = path, os.getpid()
        self.rank, self.size = (int(os.environ.get(key, "0")) for key in ("RANK", "WORLD_SIZE"))
        self.order = json.loads((path / "order.json").read_text())
        self.variables = Variables()
        self._keys: dict[str, str] = {}
        self.count = 0
        """Number of bodies of this process."""
        self._file = path / f"rank{self.rank}-{time.time_ns()}-{self.pid}.jsonl"

    def key_of(self, folder: str) -> str:
        """Return the name of a Checkpointer: its directory, as the undisturbed run spelled it."""
        known = self.order["keys"]
        if folder not in self._keys:
            is_new = folder not in known and len(self._keys) < len(known)
            self._keys[folder] = known[len(self._keys)] if is_new else folder
        return self._keys[folder]

    def write(self, **values: Any) -> None:
        values |= {"rank": self.rank, "ranks": self.size, "pid": self.pid, "time_s": time.time()}
        values["has_gpus"] = torch.cuda.is_available()
        with self._file.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def fail(self, kind: str) -> None:
        """Kill this worker (``worker``), stop or kill the job's agents, or this node's agent."""
        self.write(failed=kind)
        agents = [int(pid) for pid in (self.path / "agents").read_text().split()]
        if kind == "stop":
            for pid in agents:
                os.kill(pid, signal.SIGTERM)
            return
        if kind == "kill":
            self._await_checkpoint()
        elif kind == "node":
            agents = [pid for pid in ancestors() if pid in agents]
        for pid in agents if kind != "worker" else [self.pid]:
            os.kill(pid, signal.SIGKILL)
        signal.pause()  # this process is killed with its agent

    def _await_checkpoint(self) -> None:
        """Wait until a checkpoint that is being written is complete: the next job resumes there."""
        until = time.monotonic() + _CHECKPOINT_S
        while time.monotonic() < until and not list(self.path.glob("checkpoints/*/step-*")):
            time.sleep(0.01)

    def leave(self) -> None:
        """End this process with 0 when all ranks have come here: a rank may still communicate."""
        (self.path / f"left-{self.rank}").touch()
        while len(list(self.path.glob("left-*"))) < self.size:
            time.sleep(0.005)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _fingerprints(objects: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return short texts that are equal for equal values, by object and by place in its state."""
    names = {
        id(parameter): name
        for module in objects.values()
        if isinstance(module, nn.Module)
        for name, parameter in module.named_parameters()
    }
    found: dict[str, dict[str, str]] = {}
    for name, value in objects.items():
        state = value.state_dict()
        if isinstance(value, PlainValue):
            state = state["value"][0]
        elif isinstance(value, Optimizer):
            owned = [one for group in value.param_groups for one in group["params"]]
            labels = {index: names.get(id(one), index) for index, one in enumerate(owned)}
            own = {labels.get(index, index): one for index, one in state["state"].items()}
            state = {"state": own, "param_groups": state["param_groups"]}
        found[name] = fingerprint(state)
    return found


def _is_sharded(value: Any) -> bool:
    return any(isinstance(leaf, DTensor) for _, leaf in leaves(value.state_dict()))


@torch.no_grad()
def _sketch(module: nn.Module) -> dict[str, list[float]]:
    """Return the norm of each tensor and sums of its parts, which change little if it does."""
    found = {}
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            whole: Any = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            flat = whole.detach().flatten().double()
            found[name] = [float(flat.norm()), *(float(one.sum()) for one in flat.chunk(_CHUNKS))]
    return found
