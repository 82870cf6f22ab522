"""The job's tuned values on this node: the micro-batch, loader settings, the tune file."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ...events.event import Event
from ...events.tuning import MicroBatchChanged
from ...rendezvous.protocol.carried import Carried, CarriedValue, changed, merged, value_of
from ...rendezvous.protocol.messages import Assignment
from ..workers.smaller_parts import NAME
from ..workers.tune_file import TuneFile
from ..workers.worker_group import WorkerGroup
from .auto_tune import AutoTune


class Tuning:
    """The values of the job, as of the rounds of this node."""

    def __init__(
        self,
        file: TuneFile | None,
        note: Callable[[Event], None],
        trials: AutoTune | None = None,
    ) -> None:
        self._file, self._note, self._trials = file, note, trials
        self._micro_batch = 0
        self._node_rank = -1
        of_file = {NAME: file.values.micro_batch} if file is not None else {}
        if file is not None and trials is not None:
            of_file |= dict(file.values.settings)
        self._carried = tuple(CarriedValue(*one) for one in of_file.items() if one[1])

    @property
    def carried(self) -> Carried:
        """All values that this node knows: from the file, from the job, and accepted ones."""
        if self._trials is not None and self._node_rank == 0:
            for name, value in self._trials.kept.items():
                self._carried = changed(self._carried, name, value)
        return self._carried

    def begin(self, assignment: Assignment) -> None:
        """Report and keep values that changed with a round."""
        self._carried = merged(assignment.carried, self.carried)
        given = value_of(assignment.carried, NAME)
        micro_batch = given.value if given is not None else 0
        if given is not None and micro_batch and micro_batch != self._micro_batch:
            has_shrunk = assignment.cause is not None and assignment.cause.proposal is not None
            before = given.replaces if has_shrunk else 0
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
        """Follow the workers of a round, which have just started."""
        if self._trials is not None:
            self._trials.started(group)

    def close(self) -> None:
        """End the trials, and report their result."""
        if self._trials is not None:
            self._trials.close()

    def keep_preload(self, modules: Sequence[str]) -> None:
        """Keep the modules that the next start of the job preloads with ``--preload auto``."""
        if self._file is not None and self._node_rank == 0:
            self._file.keep(replace(self._file.values, preload=tuple(modules)), self._note)
