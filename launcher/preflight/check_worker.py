"""The agent's view of one check worker: its pipes, its progress, the result of its order."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...checks.measure import needed_s
from ...checks.merge import WorkerAnswer
from ...checks.records import Level, Phase, Record, RecordError, record_from_json
from ...checks.worker_config import (
    COLLECTIVE_STAGES,
    FAREWELL,
    IDLE,
    NOT_CARRIED_OUT,
    STAGE,
    STARTING,
    STARTUP_STAGES,
    WAITING,
    Delivery,
    Order,
    no_answer,
)
from ...rendezvous.protocol.check_messages import CheckOrder
from ...rendezvous.protocol.failure import signal_name

_STDERR_TAIL_BYTES: Final = 4096
_READ_BYTES: Final = 65536


class CheckMember:
    """One check worker process of a crew. Creating it opens its pipes, or raises ``OSError``."""

    def __init__(self, local_rank: int, changed: Callable[[], None], stage: str) -> None:
        self.local_rank = local_rank
        self._changed = changed
        orders_from, self._orders_to = os.pipe()
        self._answers_from, answers_to = os.pipe()
        self._errors_from, errors_to = os.pipe()
        self.theirs = (orders_from, answers_to, errors_to)
        self._buffer = bytearray()
        self._errors = bytearray()
        self._stage = stage
        self._order: Order | None = None
        self._record: Record | None = None
        self._end = ""
        """How the process ended, as text."""
        self._is_exiting = False
        self._asked_at = 0.0
        """When it received its order, in seconds of the event loop's clock."""
        self._ready_at = 0.0
        """When it had imported torch, by the same clock."""

    @property
    def has_ended(self) -> bool:
        """Whether the process has exited, or is about to exit."""
        return bool(self._end) or self._is_exiting

    @property
    def is_done(self) -> bool:
        """Whether no more results of the order will follow."""
        return self._record is not None or bool(self._end)

    @property
    def has_failed(self) -> bool:
        """Whether the order has failed here."""
        return bool(self._end) or (self._record is not None and bool(self._record.failure))

    @property
    def can_go_on(self) -> bool:
        """Whether it can receive another order."""
        return self._record is not None and not self.has_ended

    def started(self) -> None:
        """Read the pipes, now that the process has its ends."""
        for fd in self.theirs:
            os.close(fd)
        loop = asyncio.get_running_loop()
        for fd in (self._answers_from, self._errors_from, self._orders_to):
            os.set_blocking(fd, False)
        loop.add_reader(self._answers_from, self._read, self._answers_from)
        loop.add_reader(self._errors_from, self._read, self._errors_from)

    def begun(self) -> None:
        """Record that the process runs: the fork server is ready, or none is used."""
        if self._stage == WAITING:
            self._stage = STARTING

    def ask(self, delivery: Delivery) -> None:
        """Send an order; the result of the previous one is discarded."""
        self._order, self._record = delivery.order, None
        self._asked_at = asyncio.get_running_loop().time()
        if self._stage not in STARTUP_STAGES:
            self._stage = IDLE
        with suppress(BrokenPipeError):  # its end is reported by the spawner
            os.write(self._orders_to, (delivery.to_json() + "\n").encode())

    def not_started(self, why: str) -> None:
        """Record that the program could not be executed."""
        self._end = f"{NOT_CARRIED_OUT}: the check worker could not be started: {why}"

    def exited(self, code: int) -> None:
        """Record the end of the process."""
        self._read(self._answers_from)
        self._read(self._errors_from)
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        text = f"the check worker {how} ({self._stage})"
        last = self._errors.decode(errors="replace").strip().rpartition("\n")[2].strip()
        self._end = self._end or (f"{text}: {last}" if last else text)

    def outcome(self, order: CheckOrder, *, was_cut_short: bool) -> WorkerAnswer:
        """Return the result of the order, even if the worker did not reply.

        ``was_cut_short``: the wait ended before the deadline, because another worker failed.
        """
        if self._record is not None:
            record = self._record
            return WorkerAnswer(
                self.local_rank, record.failure, metrics=record.metrics, facts=record.facts
            )
        if self._end:
            return WorkerAnswer(self.local_rank, self._end)
        if was_cut_short:
            return WorkerAnswer(self.local_rank, f"not finished ({self._stage})", held_up=True)
        had_s = order.deadline_s - max(self._ready_at - self._asked_at, 0.0)
        needed = needed_s(Level(order.level), Phase(order.phase))
        failure = no_answer(self._stage, order.deadline_s, had_s, needed)
        return WorkerAnswer(self.local_rank, failure, held_up=self._stage in COLLECTIVE_STAGES)

    def close(self) -> None:
        """Stop listening."""
        loop = asyncio.get_running_loop()
        for fd in (self._answers_from, self._errors_from):
            loop.remove_reader(fd)
            os.close(fd)
        os.close(self._orders_to)

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(fd)
        elif fd == self._errors_from:
            self._errors = (self._errors + data)[-_STDERR_TAIL_BYTES:]
        else:
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._handle_line(line.decode(errors="replace"))

    def _handle_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == STAGE:
            if self._stage in STARTUP_STAGES and rest not in STARTUP_STAGES:
                self._ready_at = asyncio.get_running_loop().time()
            self._stage = rest
            return
        number, _, text = rest.partition(" ")
        if self._order is None or number != str(self._order.number):
            return  # the result of an order that is no longer awaited
        try:
            self._record = record_from_json(text)
        except RecordError as error:
            self._record = Record("", Phase(self._order.phase), failure=f"not understood: {error}")
        self._is_exiting = word == FAREWELL
        self._changed()
