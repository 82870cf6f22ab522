"""Where savers of several nodes meet that write one checkpoint: on the storage, by marks beside it.

The saver that has rank 0's share makes room, and says so by a mark: only then do the others write,
so that none removes what another has put, or writes into what is still visible. Each says by a mark
of its own which files are durable, and what stands in them, or why it failed. When those of all
ranks are there the first one makes the checkpoint visible. The marks stay until that is known, so a
saver that was killed, and is begun again, goes on where the dead one was.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

from ...training.checkpoints.storage import Storage
from .order import Order

NOT_AGREED = "its ranks had not yet agreed on the layout of their files"
_BEGUN = "begun"
PATIENCE_S = 120.0
"""How long another node is waited for at least."""
_PATIENCE_RATIO = 4
"""And at least so many times as long as the own part took."""
_TELL_AGAIN_S = (0.5, 2.0)
"""After so long, where it cannot be told that this node gives up."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class MeetingError(Exception):
    """Raised when the checkpoint will not be complete; the text says why."""


class Meeting:
    """What the savers of a checkpoint say to each other; nothing where one has all shares."""

    def __init__(
        self,
        storage: Storage,
        order: Order,
        patience_s: float = PATIENCE_S,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        """Say nothing yet.

        Args:
            storage: where the checkpoint is written.
            order: what this saver writes of it.
            patience_s: how long another node is waited for at least.
            tick: is called whenever the storage has answered.
        """
        self._storage, self._order, self._patience_s = storage, order, patience_s
        self._tick = tick
        self._name = str(order.shares[0].rank)
        self._begun_at = time.monotonic()
        self._said: dict[str, dict[str, Any]] = {}
        """What the marks tell, by name."""

    def begin(self, draft: str) -> bool:
        """Make room for a checkpoint, or wait for it; return whether the files are to be written.

        They are there if a saver has been killed that had written them.

        Raises:
            MeetingError: the checkpoint will not be complete.
        """
        if self._order.is_whole:
            self._storage.begin(draft)
            return True
        self._look()
        if self._order.is_first and _BEGUN not in self._said:
            self._storage.begin(draft)
            self._say(_BEGUN, {})
        self._wait({0}, lambda: {0} if _BEGUN in self._said else set())
        return self._name not in self._said

    def has_written(self, digests: Mapping[int, str], count: int) -> None:
        """Tell that the files of this node are durable.

        Args:
            digests: what stands in them, by rank.
            count: their size in bytes.
        """
        if self._name not in self._said:
            known = {str(rank): digest for rank, digest in digests.items()}
            self._say(self._name, {"digests": known, "bytes": count})

    def has_failed(self, words: str, make_room: Callable[[], object] = lambda: None) -> str:
        """Tell why this node cannot do its part; return the reason to be shown.

        That is what another node has told before, which may be why this one has failed.

        Args:
            words: why.
            make_room: is called where that cannot be told: the disk may be full.
        """
        if self._order.is_whole:
            return words
        is_again = False
        for pause_s in (*_TELL_AGAIN_S, None):
            try:
                self._look()
                self._say(self._name, {"words": words})
                break
            except MeetingError as error:
                # Others may have failed because room was made here.
                return words if is_again else str(error)
            except Exception:  # whatever a file system raises
                if pause_s is None:
                    break  # the others wait as long as they do
                make_room()
                is_again = True
                time.sleep(pause_s)  # others give up too, and make room
        return words

    def wait_for_others(self, digests: Sequence[str]) -> int:
        """Return when the files of all ranks are durable, and how many bytes they have.

        Args:
            digests: what all ranks had agreed on, by rank.

        Raises:
            MeetingError: a node has failed, or does not come, or has other files.
        """
        self._wait(set(range(self._order.ranks)), lambda: self._written().keys())
        if [digest for _, digest in sorted(self._written().items())] != [*digests]:
            raise MeetingError(NOT_AGREED)
        return sum(said.get("bytes", 0) for said in self._said.values())

    def end(self) -> None:
        """Forget what was said: the checkpoint is visible, and that is known."""
        if not self._order.is_whole and self._order.is_first:
            with suppress(Exception):  # it is cleaned when the next one is written
                self._storage.unmark(self._order.step, self._order.attempt)

    def _written(self) -> dict[int, str]:
        """Return what stands in the files that are durable, by rank."""
        return {
            int(rank): digest
            for said in self._said.values()
            for rank, digest in said.get("digests", {}).items()
        }

    def _wait(self, ranks: AbstractSet[int], there: Callable[[], AbstractSet[int]]) -> None:
        """Return when something has come from all of some ranks."""
        now = time.monotonic()
        patience_s = max(self._patience_s, _PATIENCE_RATIO * (now - self._begun_at))
        pause_s = _FIRST_PAUSE_S
        while missing := ranks - there():
            if time.monotonic() > now + patience_s:
                raise MeetingError(
                    f"no response from rank {min(missing)} within {patience_s:.0f} s; check that "
                    f"all nodes can reach {self._order.folder}"
                )
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 1.5 * pause_s)
            self._look()

    def _look(self) -> None:
        """Read the marks that are new.

        Raises:
            MeetingError: a node has failed.
        """
        order = self._order
        names = self._storage.marks(order.step, order.attempt)
        self._tick()
        for name in names:
            if name in self._said:
                continue
            with suppress(ValueError, FileNotFoundError):  # it is being written
                said = json.loads(self._storage.read_mark(order.step, order.attempt, name))
                if "words" in said:
                    raise MeetingError(said["words"])
                self._said[name] = said

    def _say(self, name: str, words: dict[str, Any]) -> None:
        if not self._order.is_whole:
            data = json.dumps(words).encode()
            self._storage.mark(self._order.step, self._order.attempt, name, data)
        self._said[name] = words
