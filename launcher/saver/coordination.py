"""Coordinates the savers of several nodes that write one checkpoint, by markers on the storage.

The saver with rank 0's shard prepares the directory and then writes a marker; the others write only
after that, so that no saver removes another's files or changes a visible checkpoint. Each saver
then writes a marker with the digests of its durable files, or with its error. When the files of all
ranks are durable, the first saver makes the checkpoint visible and removes the markers.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

from msgspec import Struct, field

from ...training.checkpoints.layout import Checksum
from ...training.checkpoints.storage import Storage
from ..processes.typed_messages import as_json, reader
from .order import WriteOrder, file_rank

NOT_AGREED = "its ranks had not yet agreed on the layout of their files"
_BEGUN = "begun"
PEER_TIMEOUT_S = 120.0
"""The minimum time to wait for other nodes."""
_PEER_TIMEOUT_RATIO = 4
"""The wait is also at least this multiple of the time that this node took."""
_TELL_AGAIN_S = (0.5, 2.0)
"""Pauses before attempts to write the marker of a failure again."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class IncompleteCheckpointError(Exception):
    """Raised if the checkpoint cannot become complete; the message is the reason."""


class _Mark(Struct, frozen=True):
    """The content of a marker."""

    words: str = ""
    """Why this node failed; empty if it did not."""
    digests: Mapping[int, str] = field(default_factory=dict)
    """Digests of the layouts of durable files, by rank."""
    bytes: int = 0
    checksums: Mapping[str, list[Checksum]] = field(default_factory=dict)


_read_mark = reader(_Mark)


class Coordination:
    """One saver's view of the checkpoint; without effect if this saver has all shards.

    Waiting raises ``IncompleteCheckpointError`` if another node failed or does not respond.
    """

    def __init__(
        self,
        storage: Storage,
        order: WriteOrder,
        timeout_s: float = PEER_TIMEOUT_S,
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        self._storage, self._order, self._timeout_s = storage, order, timeout_s
        self._tick = tick
        self._name = str(file_rank(order.entries[0]))
        self._begun_at = time.monotonic()
        self._marks: dict[str, _Mark] = {}
        """Contents of the markers that were read or written, by name."""

    def begin(self, draft: str) -> None:
        """Prepare the directory, or wait until rank 0's saver has prepared it."""
        if self._order.is_first:
            self._storage.begin(draft)
            self._write_mark(_BEGUN, _Mark())
        self._wait({0}, lambda: {0} if _BEGUN in self._marks else set())

    def report_written_files(
        self, digests: Mapping[int, str], count: int, checksums: Mapping[str, list[Checksum]]
    ) -> None:
        """Report that the files of this node are durable."""
        self._write_mark(self._name, _Mark("", digests, count, checksums))

    def end(self) -> None:
        """Remove the markers: the checkpoint is visible."""
        if not self._order.is_whole:
            with suppress(Exception):  # old markers are removed later
                self._storage.unmark(self._order.step, self._order.attempt)

    def report_failure(self, words: str, make_room: Callable[[], object] = lambda: None) -> str:
        """Report that this node failed because of ``words``; return the reason to show.

        An earlier failure of another node takes precedence: it may have caused this one.
        ``make_room`` is called if the marker cannot be written, because the disk may be full.
        """
        if self._order.is_whole:
            return words
        is_again = False
        for pause_s in (*_TELL_AGAIN_S, None):
            try:
                self._read_marks()
                self._write_mark(self._name, _Mark(words))
                break
            except IncompleteCheckpointError as error:
                # The other node may have failed because of ``make_room`` here.
                return words if is_again else str(error)
            except Exception:  # a file system may raise any exception
                if pause_s is None:
                    break  # the others will time out
                make_room()
                is_again = True
                time.sleep(pause_s)  # other nodes fail too, and free space
        return words

    def wait_for_others(self, digests: Sequence[str]) -> tuple[int, dict[str, list[Checksum]]]:
        """Wait until the files of all ranks are durable; return their size and their checksums."""
        self._wait(set(range(self._order.ranks)), lambda: self._written().keys())
        if [digest for _, digest in sorted(self._written().items())] != [*digests]:
            raise IncompleteCheckpointError(NOT_AGREED)
        marks = self._marks.values()
        checksums = {name: of for mark in marks for name, of in mark.checksums.items()}
        return sum(mark.bytes for mark in marks), checksums

    def _written(self) -> dict[int, str]:
        """Return the layout digests of the durable files, by rank."""
        marks = self._marks.values()
        return {rank: digest for mark in marks for rank, digest in mark.digests.items()}

    def _wait(self, ranks: AbstractSet[int], there: Callable[[], AbstractSet[int]]) -> None:
        """Wait until ``there`` returns all of the ranks."""
        now = time.monotonic()
        timeout_s = max(self._timeout_s, _PEER_TIMEOUT_RATIO * (now - self._begun_at))
        pause_s = _FIRST_PAUSE_S
        while missing := ranks - there():
            if time.monotonic() > now + timeout_s:
                raise IncompleteCheckpointError(
                    f"no response from rank {min(missing)} within {timeout_s:.0f} s; check that "
                    f"all nodes can reach {self._order.destination.folder}"
                )
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 1.5 * pause_s)
            self._read_marks()

    def _read_marks(self) -> None:
        """Read new markers; raises ``IncompleteCheckpointError`` if another node failed."""
        order = self._order
        names = self._storage.marks(order.step, order.attempt)
        self._tick()
        for name in names:
            if name in self._marks:
                continue
            with suppress(ValueError, FileNotFoundError):  # it is being written
                mark = _read_mark(self._storage.read_mark(order.step, order.attempt, name))
                if mark.words:
                    raise IncompleteCheckpointError(mark.words)
                self._marks[name] = mark

    def _write_mark(self, name: str, mark: "_Mark") -> None:
        if not self._order.is_whole:
            data = json.dumps(as_json(mark)).encode()
            self._storage.mark(self._order.step, self._order.attempt, name, data)
        self._marks[name] = mark
