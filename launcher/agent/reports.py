"""Reports of this node's workers to the master: sent immediately, and repeated in every claim."""

from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from ...rendezvous.protocol.claim import ClaimState, Progress
from ...rendezvous.protocol.failure import Failure, FailureKind
from ...rendezvous.protocol.messages import Assignment, Done, Failed, Stopped
from ..workers.snapshots import NodeOffers
from .claim import OwnClaim
from .lifecycle import Lifecycle

Report = Failed | Done | Stopped


class Room(Protocol):
    """Other work of a node than the training, with its own messages, e.g. shared work."""

    def succeeded(self, rank: int) -> None:
        """Record that a worker has exited with 0."""

    def note_of(self, rank: int) -> str:
        """Return the note of a worker's failure; empty if there is none."""

    def end(self) -> None:
        """End a round, after the end of its workers and before the master is informed of it."""


class NodeReports:
    """Sends the supervisor's reports, and the reply to an order to stop if no worker runs."""

    def __init__(
        self,
        claim: OwnClaim,
        life: Lifecycle,
        offers: NodeOffers,
        send: Callable[[Report], None],
        left: Callable[[], None],
        are_ready: Callable[[int], bool],
        room: Room,
        *,
        rank0_decides: bool,
    ) -> None:
        """``left`` is called when no process of a round is left here.

        ``are_ready`` returns whether workers that exited with 0 did so only because nodes are being
        preempted; it then reports this to the master.
        """
        self._claim = claim
        self._life = life
        self._offers = offers
        self._send = send
        self._left = left
        self._are_ready = are_ready
        self._room = room
        self._rank0_decides = rank0_decides
        self._told_to_stop = -1

    def told_to_stop(self, round_number: int) -> None:
        """Record the order to stop a round: success here no longer decides it."""
        self._told_to_stop = round_number

    def nothing_runs(self, round_number: int) -> None:
        """Reply to the order to stop a round that has no worker here, even an unknown round."""
        self._claim.stopped(round_number)
        if self._claim.knows_nothing_after(round_number):
            self._send(Stopped(round_number, self._offers.offer))

    # --- exits of workers --------------------------------------------------------------------

    def worker_succeeded(self, assignment: Assignment, rank: int) -> None:
        """Report success of the job if rank 0 decides and this is rank 0."""
        self._room.succeeded(rank)
        if rank == 0 and self._rank0_decides:
            self.workers_done(assignment)

    def worker_failed(self, assignment: Assignment, failure: Failure) -> None:
        """Report a failed worker to the master, now and in every claim."""
        if self._has_won() and failure.kind is FailureKind.WORKER:
            return  # it failed because rank 0, which has succeeded, is gone
        failure = replace(failure, note=self._room.note_of(failure.rank))
        self._claim.failed(failure)
        self._send(Failed(assignment.round, failure))

    def workers_done(self, assignment: Assignment) -> None:
        """Report to the master that all workers here, or the deciding one, have succeeded."""
        if self._claim.state is not ClaimState.DONE and not self._are_ready(assignment.round):
            self._claim.done()
            self._send(Done(assignment.round))

    def workers_gone(self, assignment: Assignment, progress: Progress | None) -> None:
        """Report to the master that no process of the round is left here, and the progress."""
        if self._has_won() and self._told_to_stop != assignment.round and self._life.signal is None:
            return  # the verdict will follow, from this master or a new one
        self._claim.stopped(assignment.round)
        self._room.end()
        if self._life.verdict is None:
            self._send(Stopped(assignment.round, self._offers.renew(), progress))
        self._left()

    def goes_on(self) -> bool:
        """Return whether this node neither leaves nor was informed of the end of the job."""
        return self._life.goes_on

    def _has_won(self) -> bool:
        return self._claim.state is ClaimState.DONE and self._rank0_decides
