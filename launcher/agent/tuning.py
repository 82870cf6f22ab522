"""What this node uses of what the job has found out: smaller parts, settings, its tune file."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...events.event import Event
from ...events.tuning import MicroBatchChanged
from ...rendezvous.protocol.claim import Past
from ...rendezvous.protocol.messages import Assignment
from ..workers.tune_file import TuneFile
from ..workers.worker_group import WorkerGroup

if TYPE_CHECKING:
    from .auto_tune import AutoTune


class Tuning:
    """The values of the job, as the rounds of this node show them."""

    def __init__(
        self,
        file: TuneFile | None,
        note: Callable[[Event], None],
        trials: "AutoTune | None" = None,
    ) -> None:
        """Start with the values of the file.

        Args:
            file: of ``--tune-file``; None: it was not given.
            note: receives events.
            trials: of ``--auto-tune on``; None: it was not given.
        """
        self._file, self._note, self._trials = file, note, trials
        self._micro_batch = 0
        self._node_rank = -1

    @property
    def offered(self) -> int:
        """The ``micro_batch`` with which the job begins if this node has rank 0; 0: none."""
        return self._file.values.micro_batch if self._file is not None else 0

    def begin(self, assignment: Assignment) -> None:
        """Report and keep what has changed with a round."""
        micro_batch = (assignment.past or Past()).micro_batch
        if micro_batch and micro_batch != self._micro_batch:
            before = assignment.cause.micro_batch if assignment.cause is not None else 0
            self._note(
                MicroBatchChanged(
                    assignment.round,
                    assignment.node_rank,
                    before,
                    micro_batch,
                    is_first=not self._micro_batch,
                )
            )
        self._micro_batch, self._node_rank = micro_batch, assignment.node_rank
        if self._file is not None and micro_batch and assignment.node_rank == 0:
            self._file.keep(replace(self._file.values, micro_batch=micro_batch), self._note)
        if self._trials is not None:
            self._trials.begin(assignment)

    def started(self, group: WorkerGroup | None) -> None:
        """Follow the workers of a round, which were started now."""
        if self._trials is not None:
            self._trials.started(group)

    def close(self) -> None:
        """End the trials, and report their result."""
        if self._trials is not None:
            self._trials.close()

    def keep_preload(self, modules: Sequence[str]) -> None:
        """Keep what the next start of the job preloads with ``--preload auto``."""
        if self._file is not None and self._node_rank == 0:
            self._file.keep(replace(self._file.values, preload=tuple(modules)), self._note)
