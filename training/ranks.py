"""What the ranks of a job agree on: a few numbers, over gloo."""

import os
from typing import Any

import torch
import torch.distributed as dist

_CHUNK_BYTES = 1 << 28
_TEXT_BYTES = 2000


class Ranks:
    """The ranks of this job, in a group of their own; also of one process alone."""

    def __init__(self) -> None:
        """Make the group. All ranks do it together.

        Raises:
            RuntimeError: the job has several ranks that do not know each other yet.
        """
        self.group: Any = None
        self.rank, self.size = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            if self.size > 1:
                self.group = dist.new_group(backend="gloo")
        elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RuntimeError(
                "Checkpointer was created before torch.distributed.init_process_group(): in a job "
                "of several ranks, create it afterwards"
            )

    def least(self, *numbers: int) -> list[int]:
        """Return the least of each number that the ranks have."""
        return self._reduced(numbers, dist.ReduceOp.MIN)

    def most(self, *numbers: int) -> list[int]:
        """Return the greatest of each number that the ranks have."""
        return self._reduced(numbers, dist.ReduceOp.MAX)

    def table(self, *numbers: int) -> list[list[int]]:
        """Return the numbers of each rank; all give as many."""
        rows = torch.tensor([numbers] * self.size, dtype=torch.int64)
        if self.group is not None:
            dist.all_gather(list(rows), rows[self.rank].clone(), group=self.group)
        return [[int(number) for number in row] for row in rows]

    def all_say(self, is_true: bool) -> bool:
        """Return whether something is true on all ranks."""
        return bool(self.least(int(is_true))[0])

    def send(self, data: torch.Tensor, source: int) -> None:
        """Have all ranks hold the bytes that one has."""
        for start in range(0, data.numel(), _CHUNK_BYTES):
            dist.broadcast(data[start : start + _CHUNK_BYTES], source, group=self.group)

    def first_text(self, text: str | None) -> str | None:
        """Return the text of the first rank that has one, not all of a long one; None: none has."""
        first = self.least(self.rank if text is not None else self.size)[0]
        if first == self.size:
            return None
        data = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
        if first == self.rank and text is not None:
            found = text.encode(errors="replace")[:_TEXT_BYTES]
            data[: len(found)] = torch.tensor(list(found), dtype=torch.uint8)
        if self.group is not None:
            self.send(data, first)
        return bytes(data.tolist()).rstrip(b"\0").decode(errors="ignore")

    def gather(self, value: Any) -> list[Any]:
        """Return on rank 0 what all ranks have, by rank; elsewhere nothing.

        As DCP does it, it is pickled among the ranks.
        """
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.size if self.rank == 0 else []
        dist.gather_object(value, found or None, dst=0, group=self.group)
        return found

    def scatter(self, values: list[Any]) -> Any:
        """Return what the first rank has for this one.

        Args:
            values: of the first rank, by rank; elsewhere nothing.
        """
        if self.group is None:
            return values[0]
        found: list[Any] = [None]
        dist.scatter_object_list(found, values or None, src=0, group=self.group)
        return found[0]

    def ask(self, *numbers: int) -> "Question":
        """Begin to ask for the greatest of each number, without waiting for the others."""
        return Question(self.group, numbers)

    def _reduced(self, numbers: tuple[int, ...], operation: Any) -> list[int]:
        if self.group is None:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(values, operation, group=self.group)
        return [int(value) for value in values]


class Question:
    """Numbers that the ranks are being asked for."""

    def __init__(self, group: Any, numbers: tuple[int, ...]) -> None:
        self._values = torch.tensor(numbers, dtype=torch.int64)
        self._work: Any = None
        if group is not None:
            self._work = dist.all_reduce(
                self._values, dist.ReduceOp.MAX, group=group, async_op=True
            )

    def answer(self) -> list[int]:
        """Return the greatest of each; all ranks have come as far as this one when it asked."""
        if self._work is not None:
            self._work.wait()
        return [int(value) for value in self._values]
