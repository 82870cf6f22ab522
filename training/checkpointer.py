"""Keeps the state of a training script: in memory that outlives the workers, and on storage."""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from . import progress
from .checkpoints.folder import CheckpointFolder
from .checkpoints.intervals import Interval, time_s
from .checkpoints.patience import Patience
from .checkpoints.report import StepReport
from .checkpoints.saving import Checkpoints
from .checkpoints.state import State
from .checkpoints.taker import SnapshotTaker
from .ranks import Ranks
from .worker.log import log
from .worker.preemption import find_notice
from .worker.snapshot_page import Place


class Checkpointer:
    """Keeps the state of a training script, so that a restart costs one step.

    A *snapshot* is the state of one step in the memory of the nodes: it outlives the workers, not
    the job. It needs ft-run; started by anything else (torchrun, plain Python), there are only
    checkpoints. A *checkpoint* is the same on storage, in the format of
    ``torch.distributed.checkpoint``.

    All ranks make it, after ``init_process_group``, and call its methods together.
    """

    def __init__(
        self,
        folder: "str | os.PathLike[str]",
        state: Mapping[str, Any],
        *,
        snapshot_every: int | str | None = 1,
        checkpoint_every: int | str | None = "10min",
        keep: int = 3,
        overlap: bool = True,
        save_timeout: str | None = "10min",
    ) -> None:
        """Look at the objects; nothing is loaded or written yet.

        Args:
            folder: where checkpoints are; the same for all ranks, on storage that all reach.
            state: by name, the objects whose state it is: modules, optimizers, and whatever else
                has ``state_dict`` and ``load_state_dict``.
            snapshot_every: how many steps, or a time such as ``"30s"``, ``"10min"`` or ``"2h"``;
                None: never.
            checkpoint_every: likewise.
            keep: how many checkpoints stay, 1 or more.
            overlap: whether what optimizers change is copied while training goes on, until the next
                step of an optimizer. Weights that something else changes before that are noticed
                if torch counts the change, or if it is one of a whole tensor.
            save_timeout: how long the storage may take for a single write before the checkpoint
                that training waits for is lost; None: for ever.

        Raises:
            RuntimeError: ``init_process_group`` comes later, or the folder cannot be written.
            TypeError: an object in ``state`` has no state, or is of FSDP1.
            ValueError: an argument is none of what is said above.
        """
        if keep < 1:
            raise ValueError(f"invalid value {keep} for keep: expected a whole number >= 1")
        self._snapshot_every = Interval("snapshot_every", snapshot_every)
        self._checkpoint_every = Interval("checkpoint_every", checkpoint_every)
        patience = Patience(time_s("save_timeout", save_timeout))
        self._state = State(state)
        self._ranks = Ranks()
        rank = int(os.environ.get("RANK", self._ranks.rank))
        self._folder = CheckpointFolder(folder, keep, self._ranks, patience)
        self._checkpoints = Checkpoints(self._folder, self._ranks, rank, patience)
        self._snapshots = SnapshotTaker(self._state, self._ranks, rank, overlap=overlap)
        if self._snapshot_every:
            at_breakpoint = bool(self._checkpoint_every)
            place = Place(self._folder.folder, keep, at_breakpoint=at_breakpoint)
            self._snapshots.find_memory(place)
            self._checkpoints.saver = self._snapshots.saver
        if self._checkpoint_every and self._snapshots.is_first_round:
            self._folder.check()
        self._notice = find_notice(rank, keeps=True)
        self._done: int | None = None
        """How many steps are done; None: nothing was restored yet."""

    def steps(self, total: int) -> Iterator[int]:
        """Iterate over the steps that are left, from where the newest complete state ends.

        The end of the loop's body is the end of the step. When all are done there is a checkpoint;
        not after ``break``: call ``step``, ``save`` and ``wait`` then.

        Args:
            total: how many steps there are in all.

        Yields:
            How many steps are done.

        Raises:
            RuntimeError: the last checkpoint cannot be written; or as ``restore``.
        """
        for number in range(self.restore(), total):
            yield number
            self.step(number + 1)
        if self._checkpoint_every and 0 < total != self._checkpoints.newest:
            self._snapshots.wait_for_copy()
            self._checkpoints.finish(total, self.save)
        self.wait()

    def restore(self) -> int:
        """Give the objects the newest complete state; return how many steps are done in it.

        Where there is none, the objects stay as they are and the answer is 0. Called again, it
        changes nothing and returns how many steps are done by now.

        Raises:
            RuntimeError: a checkpoint cannot be read, or is the state of other objects.
        """
        if self._done is not None:
            return self._done
        done, source, newest, error = -1, "snapshot", -1, None
        try:
            newest = self._folder.newest(cleans=self._snapshots.is_first_round)
            self._checkpoints.newest = newest
        except RuntimeError as found:
            error = found
        offered = self._snapshots.resume_step
        if offered >= max(newest, 0) and self._snapshots.restore(offered):
            done = offered
        if error is not None:
            if done < 0:
                raise error
            if self._ranks.rank == 0:
                log(str(error))
        if done < 0:
            self._snapshots.clear()
            if newest >= 0:
                self._folder.load(newest, self._state)
            done, source = max(newest, 0), "checkpoint"
        if self._ranks.rank == 0 and (done or offered > 0):
            log(
                f"resuming from the {source} of step {done}"
                if done
                else "no usable snapshot or checkpoint: starting from step 0"
            )
        self._done = done
        self._ranks.all_say(True)  # no rank is ahead of one that still has older snapshots
        now = time.monotonic()
        self._snapshot_every.begin(done, now)
        self._checkpoint_every.begin(done, now)
        return done

    def step(self, number: int) -> None:
        """Say that a step is done: time for a snapshot or a checkpoint, or not.

        Args:
            number: how many steps are done; the same on all ranks.
        """
        self._done = number
        progress(number)
        # The ranks have all written what was due before: the older snapshot is not needed.
        said = self._snapshots.hear()
        self._snapshots.settle(said)
        takes_snapshot, saves = self._find_due(number, said)
        own = self._find_report(said)
        complete = self._snapshots.take(number) if takes_snapshot else None
        self._snapshots.report(complete, own)
        if saves:
            self.save(number)
        if said.notice:
            self._drain(number, is_whole=said.notice > 1)

    def _find_due(self, number: int, said: StepReport) -> tuple[bool, bool]:
        """Return whether a step ends with a snapshot, and with a checkpoint.

        Args:
            number: of the step.
            said: what all ranks have reported.
        """
        now = time.monotonic()
        takes_snapshot = self._snapshot_every.is_due(number, said.snapshot_is_due)
        saves = self._checkpoint_every.is_due(number, said.checkpoint_is_due)
        if saves and said.saver_is_busy:  # the one before is still being written
            self._checkpoint_every.skip(number)
            saves = False
        if takes_snapshot:
            self._snapshot_every.begin(number, now)
        if saves:
            self._checkpoint_every.begin(number, now)
        return takes_snapshot, saves

    def _find_report(self, said: StepReport) -> StepReport:
        """Return what this rank reports, less what is known when its snapshot is complete.

        Args:
            said: what all ranks have reported, to be obeyed at the end of this step.
        """
        now, saver = time.monotonic(), self._checkpoints.saver
        return StepReport(
            snapshot_is_due=self._snapshot_every.is_over(now),
            checkpoint_is_due=self._checkpoint_every.is_over(now),
            saver_is_busy=saver is not None and saver.is_busy,
            notice=self._notice.code if self._notice is not None and not said.notice else 0,
        )

    def save(self, number: int) -> bool:
        """Write a checkpoint; return whether it is complete. If not, the newest one stays.

        Under ft-run it is written while training goes on, and the answer is whether that has begun;
        ``wait`` returns when it is complete.

        Args:
            number: how many steps are done.
        """
        self._snapshots.wait_for_copy()
        now = time.monotonic()
        self._checkpoint_every.begin(number, now)
        if not self._checkpoints.begin(number):
            return False
        if self._checkpoints.saver is not None:
            if self._snapshots.is_taking and not self._snapshots.has(number):
                self._snapshot_every.begin(number, now)
            if self._snapshots.save(number):
                return True
        return self._checkpoints.write(self._state.collect())

    def wait(self) -> None:
        """Return when all ranks have come here, and the checkpoint that was begun last is complete.

        Raises:
            RuntimeError: it could not be written.
        """
        self._snapshots.hear()
        self._checkpoints.demand()
        self._ranks.all_say(True)

    # --- nodes that will be gone -----------------------------------------------------------------

    def _drain(self, number: int, *, is_whole: bool) -> None:
        """Leave the state of this step, as all ranks do now, and wait: nodes will be gone.

        It is on storage afterwards, unless the nodes that stay have it in memory, or nothing is to
        be saved at breakpoints.
        """
        self._snapshots.wait_for_copy()
        wants = self._notice is None or self._notice.saves
        saves = self._ranks.all_say(bool(self._checkpoint_every) and wants)
        self._snapshots.take_whole(number)
        is_held = not is_whole and self._snapshots.hold_elsewhere(number)
        if saves and (is_whole or not self._ranks.all_say(is_held)):
            self._save_and_wait(number)
        if self._notice is None:
            return
        self._notice.left(number)
        while self._notice.wait(is_whole=is_whole):
            is_whole = True
            if saves:
                self._save_and_wait(number)

    def _save_and_wait(self, number: int) -> None:
        self._checkpoints.settle()
        if number != self._checkpoints.newest:
            self.save(number)
            self._checkpoints.settle()
        self._ranks.all_say(True)
