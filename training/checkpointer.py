"""Keeps the state of a training script: in memory that outlives the workers, and on storage."""

import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import progress
from .checkpoints.flat_state import FlatState
from .checkpoints.folder import CheckpointFolder, Checkpoints, say
from .checkpoints.intervals import Interval
from .checkpoints.late_copy import Background
from .checkpoints.replicas import FAILED, Replicas, fetch, spread
from .checkpoints.snapshot_file import MisfitError
from .checkpoints.snapshots import Snapshots, first_line
from .checkpoints.state import State
from .ranks import Question, Ranks
from .worker.preemption import find_notice
from .worker.snapshot_memory import ask
from .worker.snapshot_page import Place

_NOT_WHOLE, _NO_MORE = 1, 2
"""Why a rank has no share of a snapshot: the copy is of no use, or there is no memory."""


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

        Raises:
            RuntimeError: ``init_process_group`` comes later, or the folder cannot be written.
            TypeError: an object in ``state`` has no state, or is of FSDP1.
            ValueError: an argument is none of what is said above.
        """
        if keep < 1:
            raise ValueError(f"Checkpointer was given keep={keep}; right would be 1 or more.")
        self._snapshot_every = Interval("snapshot_every", snapshot_every)
        self._checkpoint_every = Interval("checkpoint_every", checkpoint_every)
        self._state = State(state)
        self._flat_state = FlatState(self._state)
        self._ranks = Ranks()
        self._rank = int(os.environ.get("RANK", self._ranks.rank))
        self._folder = CheckpointFolder(folder, keep, self._ranks)
        self._is_first_round = True
        self._snapshots = self._find_memory() if snapshot_every is not None else None
        self._checkpoints = Checkpoints(self._folder, self._ranks, self._rank)
        self._find_saver()
        if self._checkpoint_every and self._is_first_round:
            self._folder.check()
        self._of_others = self._find_others()
        self._replicas = self._begin_replicas()
        self._notice = find_notice(self._rank, keeps=True)
        self._question: Question | None = None
        self._overlaps = overlap
        self._background: Background | None = None
        self._taken = -1
        """The step of the newest snapshot."""
        self._failed = ""  # why this rank's copy of it is of no use
        self._missing = 0
        """``_NO_MORE`` where this rank takes no snapshots any more."""
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
            self._wait_for_copy()
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
            self._checkpoints.newest = newest = self._folder.newest(cleans=self._is_first_round)
        except RuntimeError as found:
            error = found
        offered = self._snapshots.resume_step if self._snapshots is not None else -1
        if self._snapshots is not None and offered >= max(newest, 0):
            done = self._restore_snapshot(self._snapshots, offered)
        if error is not None:
            if done < 0:
                raise error
            if self._ranks.rank == 0:
                say(f"{error}.")
        if done < 0:
            if self._snapshots is not None:
                self._snapshots.clear()
            if newest >= 0:
                self._folder.load(newest, self._state)
            done, source = max(newest, 0), "checkpoint"
        if self._ranks.rank == 0 and (done or offered > 0):
            what = f"goes on from the {source} of step {done}" if done else "begins anew"
            say(f"training {what}.")
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
        takes_snapshot, saves, is_busy, drain, lacks_plan, is_missing = self._answer()
        if is_missing and self._snapshots is not None:
            self._snapshots.forget(self._taken)
        if is_missing == _NO_MORE:
            self._end_snapshots()
        if lacks_plan:
            self._make_plans()
        now = time.monotonic()
        takes_snapshot = self._snapshot_every.is_due(number, takes_snapshot)
        saves = self._checkpoint_every.is_due(number, saves)
        if saves and is_busy:  # the one before is still being written
            self._checkpoint_every.skip(number)
            saves = False
        if takes_snapshot:
            self._snapshot_every.begin(number, now)
        if saves:
            self._checkpoint_every.begin(number, now)
        times = (self._snapshot_every.is_over(now), self._checkpoint_every.is_over(now))
        is_busy = self._checkpoints.saver is not None and self._checkpoints.saver.is_busy
        told = self._notice.code if self._notice is not None and not drain else 0
        complete = None
        if takes_snapshot and self._snapshots is not None:
            complete = self._take_snapshot(self._snapshots, number)
        if takes_snapshot:
            self._replicate(number)
        self._complete(complete, (*times, is_busy, told))
        if saves:
            self.save(number)
        if drain:
            self._drain(number, is_whole=drain > 1)

    def save(self, number: int) -> bool:
        """Write a checkpoint; return whether it is complete. If not, the newest one stays.

        Under ft-run it is written while training goes on, and the answer is whether that has begun;
        ``wait`` returns when it is complete.

        Args:
            number: how many steps are done.
        """
        self._wait_for_copy()
        self._checkpoint_every.begin(number, time.monotonic())
        if self._checkpoints.saver is not None and self._save_from_memory(number):
            self._checkpoints.begun(number)
            return True
        return self._checkpoints.write(number, self._state.collect())

    def wait(self) -> None:
        """Return when all ranks have come here, and the checkpoint that was begun last is complete.

        Raises:
            RuntimeError: it could not be written.
        """
        self._answer()
        self._checkpoints.demand()
        self._ranks.all_say(True)

    # --- nodes that will be gone -----------------------------------------------------------------

    def _drain(self, number: int, *, is_whole: bool) -> None:
        """Leave the state of this step, as all ranks do now, and wait: nodes will be gone.

        It is on storage afterwards, unless the nodes that stay have it in memory, or nothing is to
        be saved at breakpoints.
        """
        self._wait_for_copy()
        wants = self._notice is None or self._notice.saves
        saves = self._ranks.all_say(bool(self._checkpoint_every) and wants)
        snapshots = self._snapshots
        if snapshots is not None and not snapshots.has(number):
            complete = self._take_snapshot(snapshots, number)
            if complete is not None:
                complete()
        is_held = self._snapshots is not None and self._snapshots.is_replicated(number)
        if self._replicas is not None and not is_whole:
            is_held = self._replicas.exchange_now(number) or is_held
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

    # --- snapshots -------------------------------------------------------------------------------

    def _find_memory(self) -> Snapshots | None:
        memory = ask(self._rank)
        self._is_first_round = memory is None or memory.is_first_round
        snapshots = Snapshots(memory, self._rank, self._ranks.size) if memory is not None else None
        if self._ranks.all_say(snapshots is not None):
            return snapshots
        if snapshots is not None:
            snapshots.close()
        return None

    def _find_saver(self) -> None:
        """Look whether there is one on all ranks."""
        if self._snapshots is None:
            return
        at_breakpoint = bool(self._checkpoint_every)
        place = Place(self._folder.folder, self._folder.keep, at_breakpoint=at_breakpoint)
        if self._ranks.all_say(self._snapshots.save_to(place)):
            self._checkpoints.saver = self._snapshots.saver

    def _find_others(self) -> list[Snapshots]:
        """Return where shares of other ranks are kept: as many on all ranks."""
        found: list[Snapshots] = []
        while self._snapshots is not None and self._ranks.size > 1:
            memory = ask(self._rank, replica=len(found) + 1)
            if not self._ranks.all_say(memory is not None) or memory is None:
                if memory is not None:
                    Snapshots(memory, self._rank, self._ranks.size).close()
                break
            found.append(Snapshots(memory, self._rank, self._ranks.size, are_of_others=True))
        return found

    def _begin_replicas(self) -> Replicas | None:
        if self._snapshots is None or not self._of_others:
            return None
        self._snapshots.beside = self._of_others
        return Replicas(self._ranks, self._snapshots, self._of_others)

    def _replicate(self, number: int) -> None:
        """Begin to send a snapshot to other nodes, if all ranks have sent the one before."""
        if self._replicas is None:
            return
        (state,) = self._ranks.most(self._replicas.state)
        self._replicas.go_on(state, number)
        if state == FAILED:
            if self._ranks.rank == 0:
                say("a rank could not send its share or keep another's: no more replicas.")
            self._replicas = None

    def _save_from_memory(self, number: int) -> bool:
        """Have the saver write a snapshot, which is taken if there is none; return whether it does.

        One rank's share is enough if it is the state of all ranks. Else it takes all of them, and
        the saver of each node writes those that are there.
        """
        snapshots = self._snapshots
        if snapshots is not None and not snapshots.has(number):
            self._snapshot_every.begin(number, time.monotonic())
            complete = self._take_snapshot(snapshots, number)
            if complete is not None:
                complete()
            snapshots = self._snapshots
        is_there = snapshots is not None and snapshots.has(number)
        is_alike = snapshots is not None and snapshots.is_replicated(number)
        is_there, is_alike = map(bool, self._ranks.least(is_there, is_alike))
        if not is_there or not (is_alike or self._is_planned(number)):
            return False
        is_mine = self._ranks.rank == 0 or not is_alike
        has_begun = True
        if is_mine and snapshots is not None and snapshots.saver is not None:
            snapshots.saver.wait()  # it writes one at a time
            has_begun = snapshots.save(number)
        return self._ranks.all_say(has_begun)

    def _is_planned(self, number: int) -> bool:
        """Return whether the shares of a step are a checkpoint; if not, try to make them one."""
        snapshots = self._snapshots
        if snapshots is None:
            return False
        if not self._ranks.all_say(snapshots.is_planned(number)):
            self._make_plans()
        return self._ranks.all_say(snapshots.is_planned(number))

    def _make_plans(self) -> None:
        """Have rank 0 keep the metadata of all shares of the newest snapshot, and the next ones."""
        snapshots = self._snapshots
        if snapshots is None:
            return
        if self._replicas is not None:
            self._replicas.wait()  # they are sent from the file that plans are put behind
        plan = snapshots.plan(self._state.collect(), self._flat_state.collect())
        plans = self._ranks.gather(plan)
        try:
            snapshots.use_plans(plans, self._taken)
        except OSError as error:
            self._give_up_snapshots(error.strerror)

    def _take_snapshot(self, snapshots: Snapshots, number: int) -> Callable[[], str] | None:
        self._taken = number
        state = self._flat_state.collect()
        late = self._flat_state.late if self._overlaps else frozenset()
        keep = self._replicas.kept if self._replicas is not None else frozenset()
        try:
            return snapshots.write(number, self._state.collect, state, late, keep)
        except OSError as error:
            self._give_up_snapshots(error.strerror)
        except RuntimeError as error:  # of the GPU or its driver
            self._failed = first_line(error)
        return None

    def _say_lost(self, why: str | None, then: str) -> None:
        say(f"no snapshot of step {self._taken} was taken: {why}; from now on {then}.")

    def _give_up_snapshots(self, why: str | None) -> None:
        self._say_lost(why, "there are checkpoints only")
        self._missing = _NO_MORE
        self._end_snapshots()

    def _end_snapshots(self) -> None:
        if self._snapshots is not None:
            if self._checkpoints.saver is not None:
                self._snapshots.saver = None  # it has yet to say what becomes of its checkpoint
            self._snapshots.close()
            self._snapshots = None
        if self._replicas is not None:
            self._replicas.give_up()

    def _complete(self, complete: Callable[[], str] | None, asked: tuple[int, ...]) -> None:
        """Complete a snapshot if there is something to do, while training goes on, and ask."""

        def act() -> None:
            if complete is not None:
                self._failed = complete()
            if self._replicas is not None:
                self._replicas.start()
            snapshots = self._snapshots if self._checkpoints.saver is not None else None
            lacks_plan = snapshots is not None and snapshots.lacks_plan
            missing = self._missing or (_NOT_WHOLE if self._failed else 0)
            self._question = self._ranks.ask(*map(int, (*asked, lacks_plan)), missing)

        if complete is None or not self._overlaps:
            act()
            return
        if self._background is None:
            self._background = Background()
        self._background.begin(act)

    def _wait_for_copy(self) -> None:
        if self._background is not None:
            self._background.wait()
            if self._background.error is not None:
                raise self._background.error
        why, self._failed = self._failed, ""
        if why and self._overlaps:
            self._say_lost(why, "training waits for each copy")
            self._overlaps = False
        elif why:
            self._give_up_snapshots(why)

    def _answer(self) -> list[int]:
        """Return what is due by time, and whether a rank has not its share of what was taken."""
        self._wait_for_copy()
        answer = self._question.answer() if self._question is not None else [0] * 6
        self._question = None
        return answer

    def _restore_snapshot(self, snapshots: Snapshots, step: int) -> int:
        """Load the snapshot of a step; return -1 if that is not possible."""
        file, is_trusted = snapshots.find(step), True
        if not self._ranks.all_say(file is not None):
            is_trusted = file is not None
            file = spread(self._ranks, snapshots, step, file)
            if self._ranks.size > 1 and not self._ranks.all_say(file is not None):
                file = fetch(self._ranks, snapshots, self._of_others, step)
                self._ranks.all_say(True)
                snapshots.forget_others()
        loading, words = None, ""
        try:
            if file is not None:
                loading = self._state.load(file, is_trusted=is_trusted)
        except (MisfitError, pickle.UnpicklingError) as error:
            words = first_line(error)
        if self._ranks.all_say(loading is not None) and loading is not None:
            loading.finish()
            return step
        self._state.forget_initialised()
        first = self._ranks.least(self._ranks.rank if words else self._ranks.size)[0]
        if first == self._ranks.rank:  # one line is enough
            say(f"the snapshot of step {step} does not fit: {words}.")
        return -1
