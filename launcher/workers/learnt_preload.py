"""The modules that this node preloads; with ``--preload auto``, learnt from its workers."""

from collections.abc import Callable
from functools import reduce
from operator import and_

from ...events.event import Event
from ...events.preload import NothingToPreload, PreloadChanged, PreloadSource, PreloadState
from ...training.worker.imported import names_of
from ..flags.values import AUTO_PRELOAD
from ..options import LaunchOptions
from ..spawner.client import ForkServerEvent
from .preload import import_modules, remembered
from .worker_group import WorkerGroup
from .worker_starter import WorkerStarter


class Preload:
    """What the fork server imports, and what it has reported."""

    def __init__(
        self,
        options: LaunchOptions,
        starter: WorkerStarter,
        note: Callable[[Event], None],
        keep: Callable[[tuple[str, ...]], None],
    ) -> None:
        """Create it after ``start_preload``.

        Args:
            options: of this node.
            starter: the resources that workers are started with.
            note: receives events.
            keep: keeps the modules of ``auto`` for the next start of the job.
        """
        self._starter, self._note, self._keep = starter, note, keep
        self._source, self._modules = PreloadSource.OPTION, options.preload
        self._may_learn = False
        if options.preload == AUTO_PRELOAD:
            self._source, self._modules = PreloadSource.TUNE_FILE, remembered(starter.tune_file)
            self._may_learn = not self._modules

    def learn(self, group: WorkerGroup) -> None:
        """Preload what all workers of this node had imported by their first step, once.

        Args:
            group: the workers, of which at least one has done a step.
        """
        if not self._may_learn:
            return
        self._may_learn = False
        found = [watch.imported() for watch in group.watches if watch is not None]
        self._source = PreloadSource.WORKERS
        self._modules = names_of(reduce(and_, filter(None, found), -1) if any(found) else 0)
        if self._modules:
            starter = self._starter
            import_modules(
                self._modules,
                self._source,
                starter.commands,
                starter.spawner,
                starter.tune_file,
            )
        else:
            self._note(NothingToPreload(group.assignment.round, group.assignment.node_rank))

    def changed(self, event: ForkServerEvent) -> None:
        """Report a change of the fork server."""
        self._note(PreloadChanged(event.state, self._modules, event.text, source=self._source))
        if self._source is not PreloadSource.OPTION:
            if event.state is PreloadState.READY:
                self._keep(self._modules)
            elif event.state is PreloadState.FAILED:
                self._keep(())
