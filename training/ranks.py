"""Small collectives among the ranks of a job, over a separate gloo group."""

import os
import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from .gloo import NO_LIMIT, new_gloo_group, set_limit

_CHUNK_BYTES = 1 << 28
_TEXT_BYTES = 2000


class Ranks:
    """The ranks of this job, or a single process without a group; all call the methods together."""

    def __init__(self) -> None:
        """Raise ``RuntimeError`` in a job of several ranks without a process group."""
        self.group: Any = None
        self.rank, self.size = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            if self.size > 1:
                self.group = new_gloo_group()
        elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError(
                "Checkpointer was created before torch.distributed.init_process_group(): in a job "
                "of several ranks, create it afterwards"
            )

    def wait_without_limit(self) -> None:
        """Remove the time limit of collectives: an agent ends the ranks if one of them hangs."""
        if self.group is not None:
            set_limit(self.group, NO_LIMIT)

    def minimum(self, *numbers: int) -> list[int]:
        """Return the minimum of each number over all ranks."""
        return [-one for one in self.maximum(*(-number for number in numbers))]

    def maximum(self, *numbers: int) -> list[int]:
        """Return the maximum of each number over all ranks."""
        return PendingMaximum(self.group, numbers).wait()

    def all_gather(self, *numbers: int) -> list[list[int]]:
        """Return the numbers of each rank; every rank must pass the same number of them."""
        rows = torch.tensor([numbers] * self.size, dtype=torch.int64, device="cpu")
        if self.group is not None:
            dist.all_gather(list(rows), rows[self.rank].clone(), group=self.group)
        return [[int(number) for number in row] for row in rows]

    def all_true(self, is_true: bool) -> bool:
        """Return whether the value is true on all ranks."""
        return bool(self.minimum(int(is_true))[0])

    def check_same(self, arguments: Mapping[str, object]) -> None:
        """Raise ``ValueError`` on all ranks if an argument differs between them, by its text."""
        rows = self.all_gather(*(zlib.crc32(repr(value).encode()) for value in arguments.values()))
        differing = (
            f"invalid value {value!r} for {name} on rank {self.rank}: expected that of rank 0"
            for (name, value), own, first in zip(
                arguments.items(), rows[self.rank], rows[0], strict=True
            )
            if own != first
        )
        if (found := self.first_text(next(differing, None))) is not None:
            raise ValueError(found)

    def broadcast(self, data: torch.Tensor, source: int) -> None:
        """Copy a tensor of bytes from one rank to all, in place."""
        for start in range(0, data.numel(), _CHUNK_BYTES):
            dist.broadcast(data[start : start + _CHUNK_BYTES], source, group=self.group)

    def first_text(self, text: str | None) -> str | None:
        """Return the string of the lowest rank that has one, cut to 2,000 bytes; None if none."""
        first = self.minimum(self.rank if text is not None else self.size)[0]
        if first == self.size:
            return None
        data = torch.zeros(_TEXT_BYTES, dtype=torch.uint8, device="cpu")
        if first == self.rank and text is not None:
            found = text.encode(errors="replace")[:_TEXT_BYTES]
            data[: len(found)] = torch.tensor(list(found), dtype=torch.uint8, device="cpu")
        if self.group is not None:
            self.broadcast(data, first)
        return bytes(data.tolist()).rstrip(b"\0").decode(errors="ignore")

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0 (by pickle, as in DCP), [] on other ranks."""
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.size if self.rank == 0 else []
        dist.gather_object(value, found or None, dst=0, group=self.group)
        return found

    def scatter(self, values: list[Any]) -> Any:
        """Return this rank's item of the list that rank 0 passes; other ranks pass an empty one."""
        if self.group is None:
            return values[0]
        found: list[Any] = [None]
        dist.scatter_object_list(found, values or None, src=0, group=self.group)
        return found[0]

    def begin_maximum(self, *numbers: int) -> "PendingMaximum":
        """Start an asynchronous ``maximum``."""
        return PendingMaximum(self.group, numbers)


class PendingMaximum:
    """An asynchronous ``maximum``."""

    def __init__(self, group: Any, numbers: tuple[int, ...]) -> None:
        self._values = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self._work: Any = None
        if group is not None:
            self._work = dist.all_reduce(
                self._values, dist.ReduceOp.MAX, group=group, async_op=True
            )

    def wait(self) -> list[int]:
        """Return the result; all ranks have then called ``begin_maximum``."""
        if self._work is not None:
            self._work.wait()
        return [int(value) for value in self._values]
