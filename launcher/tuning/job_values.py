"""The job's tuned values on this node: the micro-batch, loader settings, modules to preload."""

import os
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ...events.event import Event
from ...events.tuning import MicroBatchChanged
from ...rendezvous.protocol.carried import Carried, CarriedValue, changed, merged, value_of
from ...rendezvous.protocol.messages import Assignment
from ..machine.accelerators import find_devices
from ..machine.cpu_limit import read_cpu_limit
from ..options import LaunchOptions
from ..workers.smaller_parts import NAME
from ..workers.worker_group import WorkerGroup
from .loader_trials import LoaderTrials
from .measuring import Measuring
from .tune_file import TunedValues, TuneFile, fingerprint


class Tuning:
    """``--auto-tune``, ``--tune-file`` and the values that they change, for the agent."""

    def __init__(
        self,
        file: TuneFile | None = None,
        measuring: Measuring | None = None,
        trials: LoaderTrials | None = None,
    ) -> None:
        self._file, self._measuring, self._trials = file, measuring, trials
        self._note: Callable[[Event], None] = lambda _: None
        self._micro_batch = 0
        self._node_rank = -1
        values = file.values if file is not None else TunedValues()
        self.preload = values.preload
        """The modules that an earlier start of the job has found for ``--preload auto``."""
        settings = values.settings.by_name() if trials is not None else {}
        of_file = {NAME: values.micro_batch} | settings
        self._carried = tuple(CarriedValue(*one) for one in of_file.items() if one[1])

    @classmethod
    def of(cls, options: LaunchOptions, workers: int, environ: Mapping[str, str]) -> "Tuning":
        """Return the tuning of a job whose ``workers`` on this node have this environment.

        Call it before the event loop: it may query the driver of GPUs.
        """
        file = measuring = trials = None
        if options.tune_file is not None:
            file = TuneFile(options.tune_file, fingerprint(options, workers))
        if options.auto_tune == "advise":
            measuring = Measuring(environ, find_devices(options.accelerator, os.environ))
        if options.auto_tune == "on":
            limit = read_cpu_limit()
            cpus = limit.cpus if limit is not None else os.cpu_count() or 1
            trials = LoaderTrials(cpus, workers, file)
        return cls(file, measuring, trials)

    def listen(
        self, note: Callable[[Event], None], show: Callable[[str], None] | None = None
    ) -> None:
        """Pass events to ``note`` from now on, and a table at the end to ``show``."""
        self._note = note
        if self._file is not None and self._file.ignored is not None:
            note(self._file.ignored)
        if self._trials is not None:
            self._trials.listen(note, show)

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

    def progressed(self, group: WorkerGroup, training_s: float, steps: int) -> None:
        """Measure, after a report of progress, with the values of the first worker."""
        if self._measuring is not None:
            at = group.assignment
            self._note(self._measuring.measure(at, group.watches, training_s, steps))

    def close(self) -> None:
        """End the trials, and report their result."""
        if self._trials is not None:
            self._trials.close()

    def keep_preload(self, modules: Sequence[str]) -> None:
        """Keep the modules that the next start of the job preloads with ``--preload auto``."""
        if self._file is not None and self._node_rank == 0:
            self._file.keep(replace(self._file.values, preload=tuple(modules)), self._note)
