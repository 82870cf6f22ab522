"""The agent's interface to other work of a node than the training, e.g. shared work."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ...rendezvous.protocol.messages import Assignment, RoomMessage


class Room(Protocol):
    """Other work of a node than the training, with its own messages."""

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen for workers."""

    def claims(self) -> Sequence[RoomMessage]:
        """Return the state of this node for a new stream, which follows ``Attend`` directly."""

    def received(self, message: RoomMessage) -> None:
        """Process a message of the master."""

    def begin(self, assignment: Assignment) -> None:
        """Start a round."""

    def end(self) -> None:
        """End a round, after the end of its workers and before the master is informed of it."""

    def succeeded(self, rank: int) -> None:
        """Record that a worker has exited with 0."""

    def note_of(self, rank: int) -> str:
        """Return the note of a worker's failure; empty if there is none."""

    def close(self) -> None:
        """Release all resources."""
