"""What becomes of the checkpoints of a job: of those that the saver writes, and of the others."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from .checkpoint_folder import CheckpointFolder
from .ranks import Ranks
from .snapshot_memory import SaverLink, tell_written

_TRY_AGAIN_S = (1, 2, 4, 8)
"""The last checkpoint is tried again after so long, as what fails behind a URL is."""
_TRIES_S = 900.0
"""And not after so long in all, where it takes long until it fails."""


class Checkpoints:
    """Knows which checkpoint is complete. Its methods are called by all ranks together."""

    def __init__(self, folder: CheckpointFolder, ranks: Ranks, rank: int) -> None:
        """Know of none yet.

        Args:
            folder: where they are.
            ranks: of the job.
            rank: of this process, as its agent knows it.
        """
        self._folder, self._ranks, self._rank = folder, ranks, rank
        self.saver: SaverLink | None = None
        """Writes checkpoints while training goes on; None: nothing does."""
        self.newest = -1
        """The step of the newest checkpoint that is complete, as far as is known here."""
        self.tried = -1
        """The step of the one that was begun last."""
        self._is_being_written = False
        self._words: str | None = None
        """Why the one that was begun last was not written; None: it was, or is being written."""

    def begun(self, step: int) -> None:
        """Note that the saver writes the checkpoint of a step."""
        self.tried, self._words, self._is_being_written = step, None, True

    def write(self, step: int, state: Mapping[str, Any]) -> bool:
        """Write a checkpoint while training waits; return whether it is complete."""
        if self.saver is not None:
            self.saver.wait()  # behind a URL both would write to the same place
        self.begun(step)
        since = time.monotonic()
        words = self._folder.save(step, dict(state))
        self._end(words)
        if self._ranks.rank == 0 and words is None:
            took_s = time.monotonic() - since
            say(
                f"the checkpoint of step {step} is complete: {self._folder.path(step)} "
                f"({took_s:.1f} s)."
            )
            tell_written(self._rank, step)
        elif self._ranks.rank == 0:
            known = f"; the newest complete one is of step {self.newest}"
            say(
                f"the checkpoint of step {step} was not written: {words}"
                f"{known if self.newest >= 0 else ''}."
            )
        return words is None

    def settle(self) -> str | None:
        """Wait for the saver; return why the checkpoint that was begun last was not written.

        None: it is complete, or none was begun.
        """
        if self.saver is not None:
            self.saver.wait()
        if self._is_being_written:
            # The node of rank 0 knows of all parts: it makes the checkpoint visible.
            words = self.saver.words if self.saver is not None and self._ranks.rank == 0 else ""
            self._end(self._ranks.first_text(words or None))
        return self._words

    def finish(self, step: int, save: Callable[[int], object]) -> None:
        """Have the checkpoint written that training ends with, and wait; try again if that fails.

        Args:
            step: how many steps are done.
            save: begins to write a checkpoint, or writes it.
        """
        until = time.monotonic() + _TRIES_S
        if step != self.tried:
            save(step)
        for pause_s in _TRY_AGAIN_S:
            if self.settle() is None or not self._ranks.all_say(time.monotonic() < until):
                return
            if self._ranks.rank == 0:
                say(f"trying again to write the last checkpoint in {pause_s} s.")
            time.sleep(pause_s)
            save(step)

    def demand(self) -> None:
        """Wait for the saver.

        Raises:
            RuntimeError: the checkpoint that was begun last was not written.
        """
        words = self.settle()
        if words is not None:
            raise RuntimeError(
                f"the checkpoint of step {self.tried} could not be written to "
                f"{self._folder.folder}: {words}"
            )

    def _end(self, words: str | None) -> None:
        self._is_being_written, self._words = False, words
        if words is None:
            self.newest = self.tried


def say(sentence: str) -> None:
    """Print a sentence of a worker, in the form of all lines of ft-run."""
    print(f"ft-run: {sentence}", file=sys.stderr, flush=True)
