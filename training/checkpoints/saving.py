"""What becomes of the checkpoints that the ranks of a job begin, whoever writes them."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import Any

from ..ranks import Ranks
from ..worker.log import log
from ..worker.snapshot_memory import SaverLink, tell_written
from .folder import CheckpointFolder
from .patience import Patience, StorageHangsError, announced

_TRY_AGAIN_S = (1, 2, 4, 8)
"""The last checkpoint is tried again after so long, as what fails behind a URL is."""
_TRIES_S = 900.0
"""And not after so long in all, where it takes long until it fails."""


class Phase(Enum):
    """Of the checkpoint that was begun last."""

    BEING_WRITTEN = auto()
    COMPLETE = auto()
    """Or none was begun."""
    LOST = auto()


class Checkpoints:
    """Knows which checkpoint is complete. Its methods are called by all ranks together."""

    def __init__(
        self, folder: CheckpointFolder, ranks: Ranks, rank: int, patience: Patience
    ) -> None:
        """Know of none yet.

        Args:
            folder: where they are.
            ranks: of the job.
            rank: of this process, as its agent knows it.
            patience: how long the storage may take for one call.
        """
        self._folder, self._ranks, self._rank, self._patience = folder, ranks, rank, patience
        self.saver: SaverLink | None = None
        """Writes checkpoints while training goes on; None: nothing does."""
        self.newest = -1
        """The step of the newest checkpoint that is complete, as far as is known here."""
        self._tried = -1
        """The step of the one that was begun last."""
        self._phase = Phase.COMPLETE
        """What became of it."""
        self._words: str | None = None
        """Why it was lost."""
        self._hangs = ""
        """Why the saver is not waited for any more; empty: it is."""

    def begin(self, step: int) -> bool:
        """Begin the checkpoint of a step when what was begun before has ended.

        Args:
            step: how many steps are done.

        Returns:
            Whether it may be written now; if not, it is lost, and a line says so.
        """
        self._tried, self._phase, self._words = step, Phase.BEING_WRITTEN, None
        words = self._ranks.first_text(self._wait_for_saver())
        if words is not None:
            self._end(words)
            self._say_lost(words)
        return words is None

    def write(self, state: Mapping[str, Any]) -> bool:
        """Write the one that was begun while training waits; return whether it is complete.

        Args:
            state: the nested state dict of this rank.
        """
        since, step = time.monotonic(), self._tried
        words = self._folder.save(step, state)
        self._end(words)
        if words is not None:
            self._say_lost(words)
        elif self._ranks.rank == 0:
            took_s = time.monotonic() - since
            log(
                f"the checkpoint of step {step} is complete: {self._folder.path(step)} "
                f"({took_s:.1f} s)"
            )
            tell_written(self._rank, step)
        return words is None

    def settle(self) -> str | None:
        """Wait for the saver; return why the checkpoint that was begun last was not written.

        None: it is complete, or none was begun.
        """
        hangs = self._wait_for_saver()
        if self._phase is Phase.BEING_WRITTEN:
            # The node of rank 0 knows of all parts: it makes the checkpoint visible.
            known = self.saver.words if self.saver is not None and self._ranks.rank == 0 else ""
            words = self._ranks.first_text(hangs or known or None)
            self._end(words)
        return self._words

    def finish(self, step: int, save: Callable[[int], object]) -> None:
        """Have the checkpoint written that training ends with, and wait; try again if that fails.

        Args:
            step: how many steps are done.
            save: begins to write a checkpoint, or writes it.
        """
        until = time.monotonic() + _TRIES_S
        with self._announced(step):
            if step != self._tried:
                save(step)
            for pause_s in _TRY_AGAIN_S:
                if self.settle() is None:
                    return
                is_stuck = bool(self._hangs) or self._folder.is_stuck
                if not self._ranks.all_say(not is_stuck and time.monotonic() < until):
                    return
                if self._ranks.rank == 0:
                    log(f"retrying the last checkpoint in {pause_s} s")
                time.sleep(pause_s)
                save(step)

    def demand(self) -> None:
        """Wait for the saver.

        Raises:
            RuntimeError: the checkpoint that was begun last was not written.
        """
        with self._announced(self._tried):
            words = self.settle()
        if words is not None:
            raise RuntimeError(
                f"the checkpoint of step {self._tried} could not be written to "
                f"{self._folder.folder}: {words}"
            )

    def _wait_for_saver(self) -> str | None:
        """Return when the saver has ended; or why it is not waited for any more."""
        saver = self.saver
        if saver is None:
            return None
        if not self._hangs or not saver.is_busy:
            self._hangs = ""
            try:
                self._patience.wait(saver.wait, lambda: saver.progress)
            except StorageHangsError as error:
                self._hangs = str(error)
        return self._hangs or None

    def _announced(self, step: int) -> AbstractContextManager[None]:
        what = f"the checkpoint of step {step} to be written to {self._folder.folder}"
        return announced(what, self._patience.limit_s, speaks=self._ranks.rank == 0)

    def _say_lost(self, words: str) -> None:
        if self._ranks.rank == 0:
            known = f"; the newest complete one is of step {self.newest}"
            log(
                f"the checkpoint of step {self._tried} was not written: {words}"
                f"{known if self.newest >= 0 else ''}"
            )

    def _end(self, words: str | None) -> None:
        self._words = words
        self._phase = Phase.COMPLETE if words is None else Phase.LOST
        if words is None:
            self.newest = self._tried
