"""Takes, replicates and restores the snapshots of all ranks, step by step."""

import pickle
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from math import inf
from typing import Any, NamedTuple

import torch

from ..ranks import PendingMaximum, Ranks
from ..worker.log import log
from ..worker.snapshot_memory import Memory, SaverLink, request_memory
from ..worker.snapshot_page import Destination
from .checkpoint_files import LayoutMismatchError
from .coordination import TURN, owner_of
from .copying import Background
from .encoding import PlainValue, foreign_values
from .flat_state import FlatState
from .optimizer_state import ParameterGroupsError
from .rank_state import RECORD, RankState
from .replication import FAILED, Replicas, broadcast_replicated, fetch_shards
from .snapshot_store import Snapshots
from .state import State
from .storage import one_line


class Missing(IntEnum):
    """Whether a rank lacks its shard of the newest snapshot."""

    NOTHING = 0
    THIS_ONE = 1
    """The copy of this step failed, or its body has left gradients."""
    ALL = 2
    """This rank has no memory for snapshots, so all ranks stop taking them."""


class StepReport(NamedTuple):
    """Values of one rank, or the maximum of each over all ranks."""

    snapshot_is_due: int = 0
    """1 if the time of ``snapshot_every`` has elapsed."""
    checkpoint_is_due: int = 0
    """1 if the time of ``checkpoint_every`` has elapsed."""
    saver_is_busy: int = 0
    """1 if the previous checkpoint is still being written."""
    notice: int = 0
    """``Notice.code`` of the agent's notice."""
    loader: int = 0
    """Settings for ``--auto-tune on`` (``worker/loader_settings.py``), from one rank only."""
    lacks_plan: int = 0
    """1 if the shards of the newest snapshot have no common metadata yet."""
    missing: int = Missing.NOTHING


class SnapshotManager:
    """The snapshots of this rank, taken together with those of all other ranks.

    A step consists of ``receive_reports`` (of the previous step), ``apply_reports``, ``take`` and
    ``send_report``. Without memory from an agent it takes no snapshots, but still exchanges
    reports, because ranks use them to agree on checkpoints and preemption. The number of a step is
    that of the completed steps.
    """

    def __init__(
        self, state: State, rank_state: RankState, ranks: Ranks, rank: int, *, overlap: bool
    ) -> None:
        """``rank`` is the rank of this process as its agent knows it."""
        self._state, self._flat_state = state, FlatState(state)
        self._rank_state = rank_state
        self._ranks, self._rank, self._overlaps = ranks, rank, overlap
        self._own: Snapshots | None = None
        """None if snapshots are disabled."""
        self._of_others: list[Snapshots] = []
        self._replicas: Replicas | None = None
        self._background: Background | None = None
        self._pending: PendingMaximum | None = None
        """Exchange of the last step's reports."""
        self._taken = -1
        """Step of the newest snapshot."""
        self._has_warned = False
        """Whether the values of a first snapshot were examined."""
        self._is_new = False
        """Whether it was taken after the last report."""
        self._error = ""
        """Why this rank's copy of it failed."""
        self._is_left_out = False
        """Whether this rank skipped it because the body has left gradients."""
        self._missing = Missing.NOTHING
        """``ALL`` when snapshots of this rank are disabled."""
        self.is_first_round = True
        """Whether this job cannot have written a checkpoint yet."""
        self.job_began = inf
        """Start time of this node's agent, in seconds since the epoch."""
        self.saver: SaverLink | None = None
        """Writes checkpoints from snapshots; None if any rank has no saver."""
        self.directory = ""
        """Directory of the checkpoints."""
        self.owner = 0
        """Owner of the snapshots; 0 before memory is requested."""
        self._destination = Destination("", 0, at_breakpoint=False)

    def request_memory(self, destination: Destination, names: Iterable[str]) -> None:
        """Request memory from the agent of this node. All ranks call it together."""
        memory = request_memory(self._rank)
        owner = owner_of(destination.folder, names) if self._ranks.rank == 0 else 0
        lacks, self.owner = self._ranks.maximum(int(memory is None or not memory.buffer_fds), owner)
        if memory is not None:
            self.is_first_round, self.job_began = memory.is_first_round, memory.began_s
        if lacks or memory is None:
            return
        self._own = self._snapshots_in(memory)
        self.directory, self._destination = destination.folder, destination
        (self._own.generation,) = self._ranks.maximum(self._own.generation)
        self._ranks.wait_without_limit()
        if self._ranks.all_true(self._own.save_to(destination)):
            self.saver = self._own.saver
        if self._ranks.size > 1:
            self._request_replica_memory()
        if self._of_others:
            self._own.beside = self._of_others
            self._replicas = Replicas(self._ranks, self._own, self._of_others)

    def _request_replica_memory(self) -> None:
        """Request memory for shards of other ranks, until any rank gets no more."""
        while True:
            memory = request_memory(self._rank, replica=len(self._of_others) + 1)
            found = None
            if memory is not None and memory.buffer_fds:
                found = self._snapshots_in(memory)
            if not self._ranks.all_true(found is not None):
                if found is not None:
                    found.close()
                return
            if found is not None:
                self._of_others.append(found)

    def _snapshots_in(self, memory: Memory) -> Snapshots:
        kinds = self._state.kinds
        return Snapshots(memory, self._rank, self._ranks.size, self.owner, kinds)

    @property
    def is_enabled(self) -> bool:
        """Whether this rank takes snapshots."""
        return self._own is not None

    # --- turns of Checkpointers ------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Start or continue to take snapshots; raise ``ValueError`` during another's turn."""
        if self._own is None or not TURN.begin(self, self._own):
            return
        self._own.see_others()
        self._own.save_to(self._destination)
        if self._replicas is not None:
            self._replicas.forget()

    def end_turn(self) -> None:
        """Let other Checkpointers take snapshots, until ``begin_turn``."""
        TURN.end(self)

    def settle(self) -> None:
        """Wait until the background copy has ended, before another Checkpointer takes over."""
        if self._background is not None:
            self._background.wait()

    # --- resuming --------------------------------------------------------------------------------

    @property
    def resume_step(self) -> int:
        """Step from which all ranks can resume; -1 if none."""
        return self._own.resume_step if self._own is not None else -1

    @property
    def lacks_shards(self) -> bool:
        """Whether steps may be lost after a restart, because these ranks do not hold all shards."""
        is_restart = self._own is not None and not (self.is_first_round or TURN.has_trained)
        return is_restart and self.resume_step < 0 and self._state.is_sharded

    def restore(self, step: int) -> bool:
        """Load the snapshot of a step; return whether all ranks could.

        Raises:
            RuntimeError: If an optimizer has different parameter groups.
        """
        if self._own is None:
            return False
        file, is_trusted = self._own.find(step), True
        if not self._ranks.all_true(file is not None):
            is_trusted = file is not None
            file = broadcast_replicated(self._ranks, self._own, step, file)
            if self._ranks.size > 1 and not self._ranks.all_true(file is not None):
                file = fetch_shards(self._ranks, self._own, self._of_others, step)
                self._ranks.all_true(True)
                self._own.forget_others()
        loading, why, groups = None, "", None
        try:
            if file is not None:
                loading = self._state.load(file, is_trusted=is_trusted)
        except ParameterGroupsError as error:
            groups = str(error)
        except LayoutMismatchError as error:
            why = one_line(error)
        except pickle.UnpicklingError:
            why = "another node sent values that are not plain data"
        if self._ranks.all_true(loading is not None) and loading is not None:
            loading.finish(lambda nested: self._rank_state.select(nested, step, compares=True))
            return True
        groups = self._ranks.first_text(groups)
        if groups is not None:  # a checkpoint would have them too, or be older
            raise RuntimeError(f"the snapshot of step {step} cannot be loaded: {groups}")
        first = self._ranks.minimum(self._ranks.rank if why else self._ranks.size)[0]
        if first == self._ranks.rank:
            log(f"the snapshot of step {step} does not match the script: {why}")
        return False

    def clear(self) -> None:
        """Discard the snapshots of this owner: the ranks resume from another state."""
        if self._own is not None:
            self._own.clear()

    def discard(self) -> None:
        """Discard everything in the memory of this rank, including shards of others."""
        self.wait_for_copy()
        self.wait_for_replicas()
        for one in (self._own, *self._of_others):
            if one is not None:
                one.clear()

    def end_resuming(self) -> None:
        """Mark the step to resume from as used: later Checkpointers of this owner do not get it."""
        if self._own is not None:
            self._own.end_resuming()

    @property
    def other_directory(self) -> str:
        """Directory of the state to resume from if it belongs to another owner; else empty."""
        return self._own.other_directory if self._own is not None else ""

    # --- steps -----------------------------------------------------------------------------------

    def receive_reports(self) -> StepReport:
        """Return the maximum of all ranks' reports; their copies have then ended."""
        self.wait_for_copy()
        pending, self._pending = self._pending, None
        if pending is None:
            return StepReport()
        numbers, count = pending.wait(), len(StepReport._fields)
        self._rank_state.receive(numbers[count:])
        return StepReport(*numbers[:count])

    def apply_reports(self, merged: StepReport) -> None:
        """Discard the newest snapshot if a rank lacks its shard; make plans if one lacks them."""
        if merged.missing and self._own is not None:
            self._own.forget(self._taken)
        if merged.missing == Missing.ALL:
            self._close()
        if merged.lacks_plan:
            self._make_plans()

    def take(self, number: int, *, is_clean: bool) -> Callable[[], str] | None:
        """Start the snapshot of a step; return the function that completes it, for ``send_report``.

        ``is_clean``: whether training can resume after the body of the step; otherwise this rank
        takes no snapshot, and the others discard theirs.
        """
        if self._replicas is not None:
            is_clean = self._ranks.all_true(is_clean)
        self._is_left_out = not is_clean
        if not is_clean:
            self._taken = number
            return None
        complete = self._take(number)
        self._schedule_replica(number)
        return complete

    def send_report(self, complete: Callable[[], str] | None, own: StepReport) -> None:
        """Complete a snapshot, in the background if enabled, and send this rank's report.

        ``complete`` comes from ``take``; ``own`` lacks the fields that depend on its result.
        """
        TURN.has_trained = True

        def act() -> None:
            if complete is not None:
                self._error = complete()
            if self._replicas is not None:
                self._replicas.start()
            lacks_plan = self._own is not None and self.saver is not None and self._own.lacks_plan
            is_missing = bool(self._error) or self._is_left_out
            missing = self._missing or (Missing.THIS_ONE if is_missing else Missing.NOTHING)
            report = own._replace(lacks_plan=int(lacks_plan), missing=missing)
            file = self._own.written(self._taken) if self._own is not None else None
            is_new, self._is_new = self._is_new, False
            digests = self._rank_state.digests(file.digests if is_new and file else None)
            self._pending = self._ranks.begin_maximum(*map(int, report), *digests)

        if complete is None or not self._overlaps:
            act()
            return
        if self._background is None:
            self._background = Background()
        self._background.begin(act)

    def wait_for_copy(self) -> None:
        """Wait until the copy of the newest snapshot has ended.

        After the first failure, copies run in the foreground; after the second, snapshots are
        disabled.
        """
        if self._background is not None:
            self._background.wait()
            if self._background.error is not None:
                raise self._background.error
        why, self._error = self._error, ""
        if why and self._overlaps:
            self._log_failure(why, "training waits for each copy from now on")
            self._overlaps = False
        elif why:
            self._disable(why)

    def wait_for_replicas(self) -> None:
        """Wait until this rank's shard was sent; a process that exits before that can abort."""
        if self._replicas is not None:
            self._replicas.wait()

    # --- snapshots for checkpoints and preemption ------------------------------------------------

    def has(self, number: int) -> bool:
        """Return whether this rank has its shard of the snapshot of a step."""
        return self._own is not None and self._own.has(number)

    def is_of_now(self, number: int) -> bool:
        """Return whether the snapshot of a step equals the current state, on all ranks."""
        file = self._own.written(number) if self._own is not None else None
        is_equal = file is not None and file.is_equal(self._flat_state.collect(), except_for=RECORD)
        return self._ranks.all_true(is_equal)

    def take_now(self, number: int) -> None:
        """Take the snapshot of a step in the foreground, unless it exists."""
        if not self.has(number) and (complete := self._take(number)) is not None:
            complete()

    def replace(self, number: int, key: str, value: torch.Tensor | None) -> None:
        """Replace a tensor in the snapshot of a step; if it does not fit, discard the snapshot."""
        if self._own is None or value is None or not self._own.has(number):
            return
        if not self._own.overwrite(number, key, value):
            self._own.forget(number)

    def replicate_now(self, number: int, *, for_other_size: bool = False) -> bool:
        """Send this rank's state of a step to other nodes; return whether they hold it.

        ``for_other_size``: for a different number of ranks, which cannot use replicas, so none is
        sent.
        """
        is_held = self._is_replicated(number)
        if self._replicas is not None and not for_other_size:
            is_held = self._replicas.exchange_now(number) or is_held
        return is_held

    def _is_replicated(self, number: int) -> bool:
        return self._own is not None and self._own.is_replicated(number)

    def save(self, number: int) -> bool:
        """Let the saver write the snapshot of a step, taking it if needed; return whether it does.

        For a replicated state, the saver of rank 0 writes one shard; for a sharded one, the saver
        of each node writes the shards of its ranks.
        """
        self.take_now(number)
        is_there, is_replicated = map(
            bool, self._ranks.minimum(int(self.has(number)), int(self._is_replicated(number)))
        )
        if not is_there or not (is_replicated or self._is_planned(number)):
            return False
        has_begun = True
        if (self._ranks.rank == 0 or not is_replicated) and self._own is not None:
            has_begun = self._own.save(number)
        return self._ranks.all_true(has_begun)

    def _is_planned(self, number: int) -> bool:
        """Return whether the shards of a step have common metadata, after trying to build it."""
        if self._own is None:
            return False
        if not self._ranks.all_true(self._own.is_planned(number)):
            self._make_plans()
        return self._ranks.all_true(self._own is not None and self._own.is_planned(number))

    def _make_plans(self) -> None:
        """Let rank 0 build the metadata of all shards, for the newest snapshot and later ones.

        All ranks call it together, also those that have disabled snapshots.
        """
        if self._replicas is not None:
            self._replicas.wait()  # they are sent from the file that the metadata is appended to
        plan = None
        if self._own is not None:
            plan = self._own.plan(self._state.collect(), self._flat_state.collect())
        plans = self._ranks.gather(plan)
        if self._own is None:
            return
        try:
            self._own.use_plans(plans, self._taken)
        except OSError as error:
            self._disable(error.strerror)

    def _take(self, number: int) -> Callable[[], str] | None:
        if self._own is None:
            return None
        self._taken, self._is_new = number, True
        state = self._flat_state.collect()
        late = self._flat_state.late if self._overlaps else frozenset()
        if not self._has_warned:
            self._has_warned = True
            self._warn_of_foreign(state)
        keep = self._replicas.kept_steps if self._replicas is not None else frozenset()
        try:
            return self._own.write(number, self._state.collect, state, late, keep)
        except OSError as error:
            self._disable(error.strerror)
        except RuntimeError as error:  # from the GPU or its driver
            self._error = one_line(error)
        return None

    def _warn_of_foreign(self, flat: Mapping[str, Any]) -> None:
        objects = self._state.objects.items()
        plain = {name for name, value in objects if isinstance(value, PlainValue)}
        found = foreign_values(flat, plain)
        if found and self._ranks.rank == 0:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            log(
                f"{', '.join(found[:3])}{more} cannot be sent to another node: if one is replaced, "
                "training resumes from a checkpoint; expected numbers, text, arrays, tensors and "
                "collections of them"
            )

    def _schedule_replica(self, number: int) -> None:
        """Schedule this snapshot for other nodes, if all ranks have sent the previous one."""
        if self._replicas is None:
            return
        (state,) = self._ranks.maximum(self._replicas.state)
        self._replicas.schedule(state, number)
        if state == FAILED:
            if self._ranks.rank == 0:
                log("a rank could not send its shard or store another's: replicas are disabled")
            self._replicas = None

    def _log_failure(self, why: str | None, then: str) -> None:
        log(f"no snapshot of step {self._taken}: {why}; {then}")

    def _disable(self, why: str | None) -> None:
        self._log_failure(why, "snapshots are disabled, checkpoints only")
        self._missing = Missing.ALL
        self._close()

    def _close(self) -> None:
        self.end_turn()
        if self._own is not None:
            self._own.close()
            self._own = None
        if self._replicas is not None:
            self._replicas.fail()
