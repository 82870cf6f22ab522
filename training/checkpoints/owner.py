"""The owner of a snapshot, and the one Checkpointer of a process that takes snapshots at a time."""

import hashlib
import json
import weakref
from collections.abc import Iterable
from typing import Protocol


def owner_of(directory: str, names: Iterable[str]) -> int:
    """Return the owner of snapshots: a digest, positive in 64 bits.

    Args:
        directory: directory or URL of the checkpoints.
        names: names of the objects in the state.
    """
    text = json.dumps([directory, sorted(names)])
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return (number >> 1) or 1


class Buffers(Protocol):
    """Snapshot buffers as one Checkpointer sees them (``snapshots.py``)."""

    def let_go(self) -> None:
        """Wait until nothing reads the buffers, and drop what is known of their content."""


class Holder(Protocol):
    """A Checkpointer that can take snapshots."""

    directory: str

    def settle(self) -> None:
        """Wait until the last snapshot is complete."""


class Turn:
    """Decides which Checkpointer of this process takes snapshots: they share the buffers."""

    def __init__(self) -> None:
        self._last: weakref.ref[Holder] | None = None
        """The Checkpointer that took snapshots last."""
        self._buffers: weakref.ref[Buffers] | None = None
        """Its buffers: while a thread sends them, they outlive the Checkpointer."""
        self._is_live = False

    def begin(self, holder: Holder, buffers: Buffers) -> bool:
        """Begin or continue the turn of a Checkpointer; return whether it did not have the last.

        Args:
            holder: the Checkpointer.
            buffers: its view of the buffers.

        Raises:
            ValueError: If another one is live.
        """
        last = self._last() if self._last is not None else None
        if last is holder:
            self._is_live = True
            return False
        if last is not None and self._is_live:
            raise ValueError(
                f"a second Checkpointer with snapshots, for {holder.directory}, while the one for "
                f"{last.directory} is in use: put all into one state, or pass snapshot_every=None; "
                "for one after the other, call finish() or wait() of the first"
            )
        if last is not None:
            last.settle()
        used = self._buffers() if self._buffers is not None else None
        if used is not None:
            used.let_go()
        self._last, self._buffers = weakref.ref(holder), weakref.ref(buffers)
        self._is_live = True
        return True

    def end(self, holder: Holder) -> None:
        """End the turn of a Checkpointer, if it is live."""
        if self._last is not None and self._last() is holder:
            self._is_live = False


TURN = Turn()
"""The turn of this process."""
