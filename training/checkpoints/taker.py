"""Takes the snapshots of this rank: what all ranks do together, step by step."""

import pickle
from collections.abc import Callable

from ..ranks import Question, Ranks
from ..worker.log import log
from ..worker.snapshot_memory import SaverLink, ask
from ..worker.snapshot_page import Place
from .containers import MisfitError
from .flat_state import FlatState
from .late_copy import Background
from .replicas import FAILED, Replicas, fetch, spread
from .report import Missing, StepReport
from .snapshots import Snapshots, first_line
from .state import State


class SnapshotTaker:
    """The snapshots of this rank, with those of all others.

    A step is: ``hear`` what all ranks have reported at the end of the one before, ``settle`` its
    snapshot, ``take`` one, ``report``. Without memory of an agent it takes none, and is asked all
    the same: ranks agree on the rest of a step by it.
    """

    def __init__(self, state: State, ranks: Ranks, rank: int, *, overlap: bool) -> None:
        """Have no memory yet.

        Args:
            state: of the script.
            ranks: of the job.
            rank: of this process, as its agent knows it.
            overlap: whether copies go on while training does.
        """
        self._state, self._flat_state = state, FlatState(state)
        self._ranks, self._rank, self._overlaps = ranks, rank, overlap
        self._own: Snapshots | None = None
        """None: no snapshots are taken, or none any more."""
        self._of_others: list[Snapshots] = []
        self._replicas: Replicas | None = None
        self._background: Background | None = None
        self._question: Question | None = None
        self._taken = -1
        """The step of the newest snapshot."""
        self._failed = ""
        """Why this rank's copy of it is of no use."""
        self._missing = Missing.NOTHING
        """``ALL`` where this rank takes no snapshots any more."""
        self.is_first_round = True
        """Nothing has been written by this job yet."""
        self.saver: SaverLink | None = None
        """Writes checkpoints from snapshots; None: it has none on some rank."""

    def find_memory(self, place: Place) -> None:
        """Ask the agent of this node for memory, as all ranks do.

        Args:
            place: where its saver is to write checkpoints.
        """
        memory = ask(self._rank)
        if memory is not None:
            self._own = Snapshots(memory, self._rank, self._ranks.size)
            self.is_first_round = memory.is_first_round
        if not self._ranks.all_say(self._own is not None):
            self._close()
        if self._own is None:
            return
        if self._ranks.all_say(self._own.save_to(place)):
            self.saver = self._own.saver
        if self._ranks.size > 1:
            self._find_memory_for_others()
        if self._of_others:
            self._own.beside = self._of_others
            self._replicas = Replicas(self._ranks, self._own, self._of_others)

    def _find_memory_for_others(self) -> None:
        """Ask for memory for shares of other ranks: as much on all ranks."""
        while True:
            memory = ask(self._rank, replica=len(self._of_others) + 1)
            found = None
            if memory is not None:
                found = Snapshots(memory, self._rank, self._ranks.size, are_of_others=True)
            if not self._ranks.all_say(found is not None):
                if found is not None:
                    found.close()
                return
            if found is not None:
                self._of_others.append(found)

    @property
    def is_taking(self) -> bool:
        """Whether this rank takes snapshots."""
        return self._own is not None

    # --- resuming --------------------------------------------------------------------------------

    @property
    def resume_step(self) -> int:
        """The step that all ranks may resume from; -1: none."""
        return self._own.resume_step if self._own is not None else -1

    def restore(self, step: int) -> bool:
        """Load the snapshot of a step; return whether that was possible, on all ranks."""
        if self._own is None:
            return False
        file, is_trusted = self._own.find(step), True
        if not self._ranks.all_say(file is not None):
            is_trusted = file is not None
            file = spread(self._ranks, self._own, step, file)
            if self._ranks.size > 1 and not self._ranks.all_say(file is not None):
                file = fetch(self._ranks, self._own, self._of_others, step)
                self._ranks.all_say(True)
                self._own.forget_others()
        loading, words = None, ""
        try:
            if file is not None:
                loading = self._state.load(file, is_trusted=is_trusted)
        except (MisfitError, pickle.UnpicklingError) as error:
            words = first_line(error)
        if self._ranks.all_say(loading is not None) and loading is not None:
            loading.finish()
            return True
        self._state.forget_initialised()
        first = self._ranks.least(self._ranks.rank if words else self._ranks.size)[0]
        if first == self._ranks.rank:  # one line is enough
            log(f"the snapshot of step {step} does not match the script: {words}")
        return False

    def clear(self) -> None:
        """Forget all snapshots: the ranks go on from another state."""
        if self._own is not None:
            self._own.clear()

    # --- a step ----------------------------------------------------------------------------------

    def hear(self) -> StepReport:
        """Return what all ranks have reported; their copies are complete, or of no use."""
        self.wait_for_copy()
        question, self._question = self._question, None
        return StepReport(*question.answer()) if question is not None else StepReport()

    def settle(self, said: StepReport) -> None:
        """Do with the newest snapshot what all ranks do.

        Args:
            said: what they have reported.
        """
        if said.missing and self._own is not None:
            self._own.forget(self._taken)
        if said.missing == Missing.ALL:
            self._close()
        if said.lacks_plan:
            self._make_plans()

    def take(self, number: int) -> Callable[[], str] | None:
        """Take the snapshot of a step; return what completes it, to be given to ``report``."""
        complete = self._take(number)
        self._choose_replica(number)
        return complete

    def report(self, complete: Callable[[], str] | None, own: StepReport) -> None:
        """Complete a snapshot, while training goes on, and begin to ask what all ranks report.

        Args:
            complete: from ``take``; None: there is nothing to do.
            own: what this rank reports, less what it knows of the snapshot when that is complete.
        """

        def act() -> None:
            if complete is not None:
                self._failed = complete()
            if self._replicas is not None:
                self._replicas.start()
            lacks_plan = self._own is not None and self.saver is not None and self._own.lacks_plan
            missing = self._missing or (Missing.THIS_ONE if self._failed else Missing.NOTHING)
            whole = own._replace(lacks_plan=int(lacks_plan), missing=missing)
            self._question = self._ranks.ask(*map(int, whole))

        if complete is None or not self._overlaps:
            act()
            return
        if self._background is None:
            self._background = Background()
        self._background.begin(act)

    def wait_for_copy(self) -> None:
        """Return when the newest snapshot is complete, or of no use."""
        if self._background is not None:
            self._background.wait()
            if self._background.error is not None:
                raise self._background.error
        why, self._failed = self._failed, ""
        if why and self._overlaps:
            self._say_lost(why, "training waits for each copy from now on")
            self._overlaps = False
        elif why:
            self._give_up(why)

    # --- snapshots that are kept -----------------------------------------------------------------

    def has(self, number: int) -> bool:
        """Return whether this rank has its share of the snapshot of a step."""
        return self._own is not None and self._own.has(number)

    def take_whole(self, number: int) -> None:
        """Take the snapshot of a step and complete it, if there is none."""
        if not self.has(number) and (complete := self._take(number)) is not None:
            complete()

    def hold_elsewhere(self, number: int) -> bool:
        """Have other nodes hold this rank's share of a step; return whether they do."""
        is_held = self.is_alike(number)
        if self._replicas is not None:
            is_held = self._replicas.exchange_now(number) or is_held
        return is_held

    def is_alike(self, number: int) -> bool:
        """Return whether this rank's share of a step is the state of all ranks."""
        return self._own is not None and self._own.is_replicated(number)

    def save(self, number: int) -> bool:
        """Have the saver write the snapshot of a step, taken if need be; return whether it does.

        One rank's share is enough if it is the state of all ranks. Else it takes all of them, and
        the saver of each node writes those that are there.
        """
        self.take_whole(number)
        is_there, is_alike = map(
            bool, self._ranks.least(int(self.has(number)), int(self.is_alike(number)))
        )
        if not is_there or not (is_alike or self._is_planned(number)):
            return False
        has_begun = True
        if (self._ranks.rank == 0 or not is_alike) and self._own is not None:
            has_begun = self._own.save(number)
        return self._ranks.all_say(has_begun)

    def _is_planned(self, number: int) -> bool:
        """Return whether the shares of a step are a checkpoint; if not, try to make them one."""
        if self._own is None:
            return False
        if not self._ranks.all_say(self._own.is_planned(number)):
            self._make_plans()
        return self._ranks.all_say(self._own is not None and self._own.is_planned(number))

    def _make_plans(self) -> None:
        """Have rank 0 keep the metadata of all shares of the newest snapshot, and the next ones."""
        if self._own is None:
            return
        if self._replicas is not None:
            self._replicas.wait()  # they are sent from the file that plans are put behind
        plan = self._own.plan(self._state.collect(), self._flat_state.collect())
        plans = self._ranks.gather(plan)
        try:
            self._own.use_plans(plans, self._taken)
        except OSError as error:
            self._give_up(error.strerror)

    # --- taking one ------------------------------------------------------------------------------

    def _take(self, number: int) -> Callable[[], str] | None:
        if self._own is None:
            return None
        self._taken = number
        state = self._flat_state.collect()
        late = self._flat_state.late if self._overlaps else frozenset()
        keep = self._replicas.kept if self._replicas is not None else frozenset()
        try:
            return self._own.write(number, self._state.collect, state, late, keep)
        except OSError as error:
            self._give_up(error.strerror)
        except RuntimeError as error:  # of the GPU or its driver
            self._failed = first_line(error)
        return None

    def _choose_replica(self, number: int) -> None:
        """Have a snapshot sent to other nodes, if all ranks have sent the one before."""
        if self._replicas is None:
            return
        (state,) = self._ranks.most(self._replicas.state)
        self._replicas.go_on(state, number)
        if state == FAILED:
            if self._ranks.rank == 0:
                log("a rank could not send its shard or store another's: replicas are disabled")
            self._replicas = None

    def _say_lost(self, why: str | None, then: str) -> None:
        log(f"no snapshot of step {self._taken}: {why}; {then}")

    def _give_up(self, why: str | None) -> None:
        self._say_lost(why, "snapshots are disabled, checkpoints only")
        self._missing = Missing.ALL
        self._close()

    def _close(self) -> None:
        """Take no snapshots any more."""
        if self._own is not None:
            if self.saver is not None:
                self._own.saver = None  # it has yet to say what becomes of its checkpoint
            self._own.close()
            self._own = None
        if self._replicas is not None:
            self._replicas.give_up()
