"""``Checkpointer``: saves and restores the state of a training script."""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from . import progress
from .activities import activity
from .checkpoints.checkpoint_files import CorruptCheckpointError
from .checkpoints.coordination import Bodies, Checkpoints, DataPosition, Interval, time_s
from .checkpoints.equality import Equality
from .checkpoints.folder import CheckpointFolder
from .checkpoints.rank_state import GENERATORS, RECORD, Generators, RankRecord, RankState
from .checkpoints.snapshot_manager import SnapshotManager, StepReport
from .checkpoints.state import State
from .checkpoints.storage import StorageTimeout
from .checkpoints.values import SLOT_KEY
from .data.batches import ElasticBatches
from .data.hashing import key_of
from .random_numbers import seed_generators
from .ranks import Ranks
from .worker import loader_settings
from .worker.log import log
from .worker.preemption import DURABLE, RESIZABLE, find_notice
from .worker.snapshot_page import Destination

if TYPE_CHECKING:
    from .rehearsal import Rehearsal


class Checkpointer:
    """Saves the state of a training script, so that a restart loses at most one step.

    A *snapshot* is the state of one step in the memory of the nodes. It survives the workers, not
    the job, and needs ft-run: under another launcher (torchrun, plain Python) only checkpoints are
    written. A *checkpoint* is the same state on storage, in the format of
    ``torch.distributed.checkpoint``.

    All ranks create it after ``init_process_group``, and call its methods together.
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
        seed: int | None = None,
        position: Literal["step"] | None = None,
        verify_every: int | None = None,
        unequal: Literal["error", "warn"] = "error",
        local: Collection[str] = (),
    ) -> None:
        """Check the arguments; nothing is loaded or written yet.

        Args:
            folder: directory of the checkpoints: a path or a URL that all ranks can reach, the same
                on all.
            state: objects to save, by name: modules, optimizers, and other objects with
                ``state_dict`` and ``load_state_dict``, which each rank has separately; also
                dictionaries and lists of plain values, which are restored in place.
            snapshot_every: number of steps between snapshots, or a time, e.g. ``"30s"``,
                ``"10min"`` or ``"2h"``; None for no snapshots.
            checkpoint_every: number of steps or time between checkpoints; None for no checkpoints.
            keep: number of checkpoints to keep, >= 1.
            overlap: whether to copy what optimizers change in the background, until the next
                optimizer step. Other changes before that step are detected if torch counts them, or
                if they change a whole tensor.
            save_timeout: time without progress of the storage after which a checkpoint that
                training waits for is given up; None for no limit.
            seed: at the start of each step, seed Python's, NumPy's and torch's generators from it,
                the step and the rank, so that dropout follows from the step. None to keep the
                generators of each rank in the state.
            position: ``"step"`` if the samples follow from the number of the step, so that a state
                without a position in the data is not a reason for a warning.
            verify_every: number of steps between comparisons of the weights and the optimizer state
                of all ranks; None for 100, or more if they take more than 0.1% of the time. The
                first step after each start and each checkpoint are compared too.
            unequal: ``"error"`` to raise ``UnequalStateError`` at a difference; ``"warn"`` to warn
                once and save the state of rank 0.
            local: names of modules and optimizers in ``state`` that each rank has separately, e.g.
                stages of a pipeline. The number of ranks is then fixed. Optimizers of their
                parameters are local too.

        Raises:
            RuntimeError: If ``init_process_group`` was not called yet, or the folder is not
                writable.
            TypeError: If an object in ``state`` lacks these methods, uses FSDP1, or is a module on
                some ranks and something else on others.
            ValueError: If the value of an argument is invalid, or differs between ranks and must
                not.
        """
        if keep < 1:
            raise ValueError(f"invalid value {keep} for keep: expected a whole number >= 1")
        self._rehearsal: Rehearsal | None = None
        if "FT_RUN_REHEARSAL" in os.environ:
            from . import rehearsal  # loads torch.distributed.tensor

            self._rehearsal = rehearsal.Rehearsal(folder, snapshot_every, checkpoint_every)
            folder, snapshot_every, checkpoint_every = self._rehearsal.arguments
        self._snapshot_every = Interval("snapshot_every", snapshot_every)
        self._checkpoint_every = Interval("checkpoint_every", checkpoint_every)
        timeout = StorageTimeout(time_s("save_timeout", save_timeout))
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"invalid value {seed!r} for seed: expected a whole number or None")
        self._seed = seed
        self._ranks = Ranks()
        self._ranks.check_same(  # collectives follow from them
            {
                "snapshot_every": snapshot_every,
                "checkpoint_every": checkpoint_every,
                "verify_every": verify_every,
                "unequal": unequal,
            }
        )
        self._record = RankRecord(self._ranks)
        hidden = {RECORD: self._record} | ({GENERATORS: Generators()} if seed is None else {})
        self._state = State(state, hidden)
        self._state.find_kinds(self._ranks, local)
        self._position = DataPosition(self._state, position)
        self._bodies = Bodies(self._state.objects, is_logging=self._ranks.rank == 0)
        self._delayed_notice = 0
        """Notice that waits for a body after which training can resume."""
        others = self._state.others - self._state.kinds.local - self._state.kinds.partial
        modules = self._state.shared_modules
        self._rank_state = RankState(self._ranks, self._record, others, modules)
        rank = int(os.environ.get("RANK", self._ranks.rank))
        self._folder = CheckpointFolder(folder, keep, self._ranks, timeout)
        self._checkpoints = Checkpoints(self._folder, self._ranks, rank, timeout)
        self._snapshots = SnapshotManager(
            self._state, self._rank_state, self._ranks, rank, overlap=overlap
        )
        self._equality = Equality(
            self._ranks,
            self._state,
            self._snapshots.discard,
            unequal=unequal,
            every=verify_every,
        )
        if self._snapshot_every:
            at_breakpoint = bool(self._checkpoint_every)
            destination = Destination(self._folder.folder, keep, at_breakpoint=at_breakpoint)
            self._snapshots.request_memory(destination, state)
            self._checkpoints.saver = self._snapshots.saver
            self._checkpoints.owner = self._snapshots.owner
        if self._checkpoint_every and self._snapshots.resume_step < 0:
            self._folder.check()
        is_fixed = self._state.kinds.is_fixed
        self._notice = find_notice(rank, will_save=True, is_fixed=is_fixed)
        self._done: int | None = None
        """Completed steps; None before ``restore``."""

    def steps(self, total: int | ElasticBatches, *, epochs: int | None = None) -> Iterator[int]:
        """Restore, then iterate over the remaining steps; each loop body is one step.

        After the last step, a checkpoint is written. After ``break`` there is none: call ``step``,
        ``save`` and ``wait`` yourself.

        Args:
            total: number of steps of the whole training; or the batches, with ``epochs``.
            epochs: number of epochs of the whole training.

        Yields:
            The number of completed steps.

        Raises:
            RuntimeError: If the last checkpoint could not be written, or as in ``restore``.
            TypeError: If ``epochs`` is given with a number of steps, or missing with batches.
        """
        if isinstance(total, ElasticBatches) == (epochs is None):
            raise TypeError(
                f"invalid value {epochs!r} for epochs: expected steps(number) or "
                "steps(batches, epochs=number)"
            )
        done = self.restore()
        if isinstance(total, ElasticBatches):
            total = total.total(epochs or 0)  # only now the size of each batch is known
        total = max(total, done)  # fewer steps than completed: no checkpoint of a different step
        self.seed_step(done)  # an iterator that was created after restore() has drawn a number
        try:
            for number in range(done, total):
                yield number
                self.step(number + 1)
            self.finish(total)
        finally:
            self._snapshots.end_turn()

    def restore(self) -> int:
        """Load the newest complete snapshot or checkpoint; return its number of completed steps.

        If there is none, the objects stay unchanged and the result is 0. Later calls change nothing
        and return the number of steps completed so far.

        Raises:
            RuntimeError: If a checkpoint cannot be read, or belongs to other objects.
            ValueError: If another Checkpointer of this process takes snapshots and has not
                finished.
        """
        if self._done is None:
            self._snapshots.begin_turn()
            try:
                self._done = self._restore()
            except BaseException:
                self._snapshots.end_turn()
                raise
            if self._rehearsal is not None:
                self._rehearsal.record(self._state.objects, self._done, is_restored=True)
        return self._done

    @activity("restoring")
    def _restore(self) -> int:
        offered = self._snapshots.resume_step
        done, source = self._load_newest(offered)
        if self._ranks.rank == 0 and done:
            log(f"resuming from the {source} of step {done}")
        elif self._ranks.rank == 0 and offered > 0:
            log("no usable snapshot or checkpoint: starting from step 0")
        elif self._ranks.rank == 0 and not done and self._snapshots.lacks_shards:
            log(
                f"no checkpoint yet, and no snapshot that fits all {self._ranks.size} ranks: "
                "starting from step 0; sharded or local state survives the loss of a node with "
                "--snapshot-replicas or a checkpoint"
            )
        if done:
            self._rank_state.report()
        if done and source == "snapshot":
            self._equality.resume()
        self._state.resume(done)
        self._position.resumed(done, is_logging=self._ranks.rank == 0)
        self.seed_step(done)
        self._snapshots.end_resuming()
        self._bodies.end()  # a step of an optimizer before is not one of the first body
        self._ranks.all_true(True)  # no rank continues while another still has older snapshots
        now = time.monotonic()
        self._snapshot_every.restart(done, now)
        self._checkpoint_every.restart(done, now)
        return done

    def _load_newest(self, offered: int) -> tuple[int, str]:
        """Load the newest snapshot or checkpoint that is not damaged; return its step and kind.

        ``offered`` is the step of the snapshot that all ranks have, -1 if there is none.
        """
        has_snapshot = offered >= 0
        while True:
            newest, error = -1, None
            try:
                newest = self._folder.newest(cleans=self._snapshots.is_first_round)
            except RuntimeError as found:
                error = found
            self._checkpoints.newest = newest
            if has_snapshot and offered >= newest:
                if self._snapshots.restore(offered):
                    if error is not None and self._ranks.rank == 0:
                        log(str(error))
                    return offered, "snapshot"
                has_snapshot = False
            if error is not None:
                raise error
            try:
                if newest >= 0:
                    self._folder.load(
                        newest,
                        self._state,
                        lambda nested: self._rank_state.select(nested, newest, compares=False),  # noqa: B023 - called at once
                        job_began=self._snapshots.job_began,
                    )
            except CorruptCheckpointError as found:
                self._folder.set_aside(newest, str(found))
                continue
            self._log_other_directory(newest)
            self._snapshots.clear()
            if self._checkpoint_every and offered >= 0:  # without a snapshot it was checked before
                self._folder.check()
            return max(newest, 0), "checkpoint"

    def _log_other_directory(self, newest: int) -> None:
        """Log that the snapshot to resume from belongs to another directory.

        Not if there is a checkpoint: then the other directory is that of an earlier training.
        """
        directory = self._folder.folder
        other = self._ranks.first_text(self._snapshots.other_directory or None)
        if other not in (None, directory) and newest < 0 and self._ranks.rank == 0:
            log(
                f"no snapshot for {directory}: the one in memory is for {other}; to resume after "
                "a restart, pass the same directory in each start"
            )

    def step(self, number: int) -> None:
        """Mark a step as done; take a snapshot and write a checkpoint if they are due.

        Args:
            number: number of completed steps; the same on all ranks.

        Raises:
            UnequalStateError: If the weights or the optimizer state differ between ranks.
            ValueError: As in ``restore``.
        """
        self._snapshots.begin_turn()
        if self._rehearsal is not None:
            self._rehearsal.record(self._state.objects, number)
        self._done = number
        progress(number)
        # All ranks have now written the previous snapshot, so older ones are not needed.
        merged = self._snapshots.receive_reports()
        merged = merged._replace(notice=max(merged.notice, self._delayed_notice))
        self._snapshots.apply_reports(merged)
        is_clean = self._bodies.end()
        self._state.warn_of_new_groups(number, is_logging=self._ranks.rank == 0)
        takes_snapshot, saves = self._find_due(number, merged)
        if self._equality.is_due(number):
            self._equality.verify(number)
        loader_settings.agree(merged.loader)
        if saves or self._rank_state.gathered < 0:  # the first values make room for later ones
            self._gather(number)
        own = self._make_report(merged)
        with activity("saving"):
            complete = None
            if takes_snapshot:
                complete = self._snapshots.take(number, is_clean=is_clean)
            self._snapshots.send_report(complete, own)
        if saves:
            self._save(number)
        self._delayed_notice = merged.notice
        if merged.notice:
            self._snapshots.wait_for_copy()  # its thread then sends the report, before all_true
            if self._ranks.all_true(is_clean):
                self._delayed_notice = 0
                self._drain(number, merged.notice)
        self._position.check()
        self.seed_step(number)
        loader_settings.record_step(number, is_disturbed=saves or bool(merged.saver_is_busy))

    def _find_due(self, number: int, merged: StepReport) -> tuple[bool, bool]:
        now = time.monotonic()
        takes_snapshot = self._snapshot_every.is_due(number, merged.snapshot_is_due)
        saves = self._checkpoint_every.is_due(number, merged.checkpoint_is_due)
        if saves and merged.saver_is_busy:  # the previous one is still being written
            self._checkpoint_every.skip(number)
            saves = False
        if not self._bodies.is_clean and (saves or (takes_snapshot and self._snapshots.is_enabled)):
            self._bodies.warn_of_delay(number)
        saves = saves and self._ranks.all_true(self._bodies.is_clean)
        # All ranks take the next one at the same step, since taking one is a call of all ranks.
        if (
            takes_snapshot
            and not self._snapshot_every.is_each_step
            and self._ranks.all_true(self._bodies.is_clean)
        ):
            self._snapshot_every.restart(number, now)
        if saves:
            self._checkpoint_every.restart(number, now)
        return takes_snapshot, saves

    def _make_report(self, merged: StepReport) -> StepReport:
        now, saver = time.monotonic(), self._checkpoints.saver
        return StepReport(
            snapshot_is_due=self._snapshot_every.has_elapsed(now),
            checkpoint_is_due=self._checkpoint_every.has_elapsed(now),
            saver_is_busy=saver is not None and saver.is_busy,
            notice=self._notice.code if self._notice is not None and not merged.notice else 0,
            loader=loader_settings.wanted(),
        )

    @activity("saving")
    def save(self, number: int) -> bool:
        """Write a checkpoint of the current state; return whether it succeeded.

        Older checkpoints stay if it fails. Under ft-run, if the state is equal to the snapshot of
        this step, it is written asynchronously: the result is whether it has started, and ``wait``
        waits until it is complete. Otherwise, e.g. after averaging, it is written before this
        returns, and the snapshot does not change.

        Args:
            number: number of completed steps.

        Raises:
            ValueError: As in ``restore``.
        """
        self._snapshots.wait_for_copy()
        return self._save(number, is_of_now=True)

    @activity("saving")
    def _save(self, number: int, *, is_of_now: bool = False) -> bool:
        """Write a checkpoint of the current state if ``is_of_now``, else of this step's snapshot.

        The snapshot is taken if there is none.
        """
        self._snapshots.begin_turn()
        self._snapshots.wait_for_copy()
        self._bodies.warn_of_save(number)
        self._equality.verify(number, is_changed=is_of_now)
        now = time.monotonic()
        self._checkpoint_every.restart(number, now)
        if not self._checkpoints.begin(number):
            return False
        uses_snapshot = self._checkpoints.saver is not None
        if is_of_now and uses_snapshot:
            uses_snapshot = self._snapshots.is_of_now(number)
        has_values = (is_of_now or self._rank_state.gathered != number) and self._gather(number)
        if has_values and uses_snapshot:
            self._snapshots.replace(number, SLOT_KEY, self._record.slot)
        if uses_snapshot:
            self._snapshot_every.restart(number, now)  # also on ranks that have it already
            if self._snapshots.save(number):
                return True
        else:
            self._rank_state.gathered = -1  # these values are not those of the snapshot
        return self._checkpoints.write(self._collect_for_checkpoint())

    def _gather(self, number: int) -> bool:
        nested: dict[str, Any] = {}
        buffers: dict[str, Any] = {}
        if self._rank_state.is_needed:
            nested = self._state.collect(only=self._state.others)
            buffers = self._state.collect_buffers()
        return self._rank_state.gather(number, nested, buffers)

    def _collect_for_checkpoint(self) -> dict[str, Any]:
        """Return the nested state dict that this rank writes itself.

        If several ranks have a value, DCP lets any of them write its own. Values that may differ
        must come from rank 0, so other ranks leave them out; each rank writes its part of sharded
        ones.
        """
        state = self._state.collect()
        if self._ranks.rank == 0:
            return self._state.kinds.in_checkpoint(state)
        left_out = self._rank_state.written_by_rank_0(state)
        state = {name: value for name, value in state.items() if name not in left_out}
        return self._state.kinds.in_checkpoint(state)

    def seed_step(self, number: int) -> None:
        """Seed the generators for the next step again, if ``seed`` is given.

        ``restore`` and ``step`` do it. Call it if code between them and the next step draws random
        numbers, e.g. an evaluation.

        Args:
            number: number of completed steps.
        """
        if self._seed is not None:
            seed_generators(key_of(self._seed, number, self._state.data_rank(self._ranks.rank)))

    @activity("saving")
    def finish(self, number: int) -> None:
        """Write the checkpoint at the end of training, if there is none, and wait for it.

        Args:
            number: number of completed steps.

        Raises:
            RuntimeError: If it could not be written, after retries.
        """
        loader_settings.record(0)
        if self._checkpoint_every and 0 < number != self._checkpoints.newest:
            self._bodies.is_clean = True  # no step follows that could need the gradients
            self._snapshots.wait_for_copy()
            self._checkpoints.write_last(number, self._save)
        self.wait()

    @activity("saving")
    def wait(self) -> None:
        """Wait until the checkpoint that was started last is complete, on all ranks.

        It also waits until replicas of the last snapshot were sent. Call it before the process
        exits, and before another Checkpointer of this process takes snapshots.

        Raises:
            RuntimeError: If it could not be written.
        """
        try:
            self._snapshots.wait_for_copy()
            self._snapshots.wait_for_replicas()
            self._checkpoints.wait_or_raise()
            self._ranks.all_true(True)
        finally:
            self._snapshots.end_turn()

    @activity("saving")
    def _drain(self, number: int, need: int) -> None:
        """Save the state of this step on all ranks before the world changes, and wait.

        It is written to storage, unless the nodes of the next world hold it in memory or saving at
        breakpoints is off. ``need`` is the strictest requirement of all ranks' notices
        (``worker/preemption.py``).
        """
        self._snapshots.wait_for_copy()
        wants = self._notice is None or self._notice.saves
        saves = self._ranks.all_true(bool(self._checkpoint_every) and wants)
        self._snapshots.take_now(number)
        is_held = need < DURABLE and self._snapshots.replicate_now(
            number, for_other_size=saves and need == RESIZABLE
        )
        is_saved = not saves or self._ranks.all_true(is_held) or self._save_and_wait(number)
        notice = self._notice
        if not is_saved:  # the node leaves at its deadline, and training goes on until then
            if notice is not None:
                notice.give_up()
            return
        if notice is not None:
            notice.report_saved(number)
        needs_more = notice is not None and notice.wait(need)
        # Not each rank may see that more is needed: one without an agent, or not yet informed.
        if not self._ranks.all_true(not needs_more):
            if saves:
                self._save_and_wait(number)
            if notice is not None:
                notice.wait(DURABLE)

    def _save_and_wait(self, number: int) -> bool:
        self._checkpoints.wait_for_result()
        if number != self._checkpoints.newest:
            self._checkpoints.write_last(number, self._save)
            self._checkpoints.wait_for_result()
        self._ranks.all_true(True)
        return number == self._checkpoints.newest
