"""Decides which Checkpointer saves and at which steps, and tracks the result."""

import gc
import hashlib
import json
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, dataloader

from ..ranks import Ranks
from ..worker.log import log
from ..worker.snapshot_memory import SaverLink, report_written
from .copying import run_before_steps
from .folder import CheckpointFolder
from .optimizer_state import parameters_of
from .rank_state import RESERVED
from .state import State
from .storage import StorageTimeout, StorageTimeoutError, log_while_waiting


def owner_of(directory: str, names: Iterable[str]) -> int:
    """Return the owner of snapshots: a positive 63-bit digest of directory and object names."""
    text = json.dumps([directory, sorted(names)])
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    return (number >> 1) or 1


class Buffers(Protocol):
    """Snapshot buffers of one Checkpointer (``snapshot_store.py``)."""

    def let_go(self) -> None:
        """Wait until nothing reads the buffers, and drop the cached state of their content."""


class Holder(Protocol):
    """A Checkpointer that can take snapshots."""

    directory: str

    def settle(self) -> None:
        """Wait until the last snapshot is complete."""


class Turn:
    """Decides which Checkpointer of this process takes snapshots, because they share buffers."""

    def __init__(self) -> None:
        self._last: weakref.ref[Holder] | None = None
        """The Checkpointer that took the last snapshot."""
        self._buffers: weakref.ref[Buffers] | None = None
        """Its buffers. A thread that sends them can keep them alive after the Checkpointer."""
        self._is_live = False
        self.has_trained = False

    def begin(self, holder: Holder, buffers: Buffers) -> bool:
        """Start or continue a turn; return whether this Checkpointer did not have the last one.

        Raises:
            ValueError: If another Checkpointer is in use.
        """
        last = self._last() if self._last is not None else None
        if last is holder:
            self._is_live = True
            return False
        if last is not None and self._is_live:
            raise ValueError(
                f"a second Checkpointer with snapshots, for {holder.directory}, while the one for "
                f"{last.directory} is in use: put all into one state, or pass snapshot_every=None; "
                "for one after the other, call finish() or wait() of the first"
            )
        if last is not None:
            last.settle()
        used = self._buffers() if self._buffers is not None else None
        if used is not None:
            used.let_go()
        self._last, self._buffers = weakref.ref(holder), weakref.ref(buffers)
        self._is_live = True
        return True

    def end(self, holder: Holder) -> None:
        """End the turn of a Checkpointer, if it is in use."""
        if self._last is not None and self._last() is holder:
            self._is_live = False


TURN = Turn()


# --- intervals -----------------------------------------------------------------------------------

_UNITS_S = {"s": 1, "min": 60, "h": 3600}
_TIME = "a time, e.g. '30s', '10min' or '2h', or None"


def time_s(name: str, value: str | None) -> float | None:
    """Return a time such as ``10min`` in seconds, or None; ``name`` is for the ``ValueError``."""
    seconds = _time_s(value)
    if seconds is None and value is not None:
        raise ValueError(f"invalid value {value!r} for {name}: expected {_TIME}")
    return seconds


def _time_s(value: object) -> int | None:
    match = re.fullmatch(r"(\d+) ?(s|min|h)", value) if isinstance(value, str) else None
    return (int(match[1]) * _UNITS_S[match[2]] or None) if match is not None else None


class Interval:
    """A number of steps, a time, or never (in which case it is false)."""

    def __init__(self, name: str, value: int | str | None) -> None:
        """Parse a number of steps, a time or None; raise ``ValueError`` for any other value."""
        self._steps: int | None = None
        self._time_s = _time_s(value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            self._steps = value
        elif value is not None and self._time_s is None:
            raise ValueError(
                f"invalid value {value!r} for {name}: expected a number of steps >= 1, {_TIME}"
            )
        self._since, self._since_s = 0, time.monotonic()

    def __bool__(self) -> bool:
        return self._steps is not None or self._time_s is not None

    @property
    def is_each_step(self) -> bool:
        """Whether it is due after every step."""
        return self._steps == 1

    def restart(self, number: int, now: float) -> None:
        """Restart the interval after something was done at this step and time."""
        self._since, self._since_s = number, now

    def skip(self, number: int) -> None:
        """Skip a step at which it was due; a time stays due until ``restart``."""
        self._since = number

    def is_due(self, number: int, has_elapsed: int) -> bool:
        """Return whether it is due at a step; ``has_elapsed``: whether it is true on any rank."""
        if self._steps is not None:
            return number // self._steps > self._since // self._steps
        return bool(has_elapsed)

    def has_elapsed(self, now: float) -> bool:
        """Return whether the time has elapsed on this rank; false for a number of steps."""
        return self._time_s is not None and now - self._since_s >= self._time_s


# --- bodies after which training can resume ------------------------------------------------------

_SEEN = "_ft_run_seen"
"""Attribute of a gradient: its version counters at the end of the last step body."""


class Bodies:
    """Determines after which step bodies training can resume.

    Each body is checked as a whole, because e.g. the second network of a GAN keeps its gradients.
    """

    def __init__(self, objects: Mapping[str, Any], *, is_logging: bool) -> None:
        """Without optimizers in ``objects``, training can resume after every body."""
        self._optimizers = [one for one in objects.values() if isinstance(one, Optimizer)]
        self._scalers = [one for one in objects.values() if isinstance(one, GradScaler)]
        modules = [one for one in objects.values() if isinstance(one, nn.Module)]
        self._fsdp2 = [part for one in modules for part in one.modules() if _is_fsdp2(part)]
        self._is_logging = is_logging
        self._warned: set[str] = set()
        self._has_stepped = False
        self._scales = self._versions_of_scales()
        self.is_clean = True
        """Whether training can resume after the last body."""
        if self._optimizers:
            run_before_steps(self._note_step)

    def _note_step(self) -> None:
        self._has_stepped = True

    def end(self) -> bool:
        """End a body and start the next one; return ``is_clean``."""
        has_stepped, self._has_stepped = self._has_stepped, False
        scales, self._scales = self._scales, self._versions_of_scales()
        has_stepped |= scales != self._scales  # even if the scaler skipped the step
        is_clean = True
        for gradient in self._gradients() if self._optimizers else ():
            if gradient is None:
                continue
            versions = gradient._version, getattr(gradient, "_local_tensor", gradient)._version
            if getattr(gradient, _SEEN, None) != versions:
                is_clean = has_stepped
                setattr(gradient, _SEEN, versions)
        self.is_clean = is_clean
        return is_clean

    def _gradients(self) -> Iterator[Any]:
        for optimizer in self._optimizers:
            for parameter in parameters_of(optimizer):
                yield parameter.grad
        for module in self._fsdp2:
            yield from _unreduced(module)

    def _versions_of_scales(self) -> list[int]:
        """Return counters that change with each update; reading a scale would wait for the GPU."""
        tensors = (getattr(one, "_scale", None) for one in self._scalers)
        return [-1 if tensor is None else tensor._version for tensor in tensors]

    def warn_of_delay(self, number: int) -> None:
        """Log once that a snapshot or checkpoint is not taken after this body."""
        self._warn_once(
            f"no snapshot or checkpoint of step {number}: its body has changed gradients, which are"
            " not saved, without a step of an optimizer; it is made up for after the next step of "
            "an optimizer"
        )

    def warn_of_save(self, number: int) -> None:
        """Log once that a checkpoint lacks gradients, if it does."""
        if not self.is_clean:
            self._warn_once(
                f"the checkpoint of step {number} does not have the gradients that its body has "
                "changed without a step of an optimizer"
            )

    def _warn_once(self, text: str) -> None:
        words = text.partition(" of step ")[0]
        if self._is_logging and words not in self._warned:
            log(f"{text}; to accumulate gradients within one body, use parts: docs/guide/data.md")
        self._warned.add(words)


def _is_fsdp2(module: nn.Module) -> bool:
    return hasattr(module, "set_requires_gradient_sync") and hasattr(module, "_get_fsdp_state")


def _unreduced(module: Any) -> Iterator[Any]:
    """Yield gradients that FSDP2 has not reduced, which its parameters do not have."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    for group in groups if groups is not None else (state._fsdp_param_group,):
        yield getattr(group, "_partial_reduce_output", None)  # reduced in one dimension of HSDP
        for parameter in getattr(group, "fsdp_params", ()):
            yield getattr(parameter, "unsharded_accumulated_grad", None)
            yield getattr(getattr(parameter, "_unsharded_param", None), "grad", None)


# --- results of checkpoints ----------------------------------------------------------------------

_RETRIES_S = (1, 2, 4, 8)
"""Pauses before the last checkpoint is retried, because object stores can fail temporarily."""
_RETRY_LIMIT_S = 900.0
"""No retry starts after this time."""


class Checkpoints:
    """Tracks the checkpoint that was started last. All ranks call the methods together.

    A step is a number of completed steps.
    """

    def __init__(
        self, folder: CheckpointFolder, ranks: Ranks, rank: int, timeout: StorageTimeout
    ) -> None:
        """``rank`` is the rank of this process as its agent knows it."""
        self._folder, self._ranks, self._rank, self._timeout = folder, ranks, rank, timeout
        self.saver: SaverLink | None = None
        """Writes checkpoints asynchronously; None if the workers write them."""
        self.owner = 0
        """Owner of the snapshots that the saver writes."""
        self.newest = -1
        """Step of the newest complete checkpoint that this process knows; -1 if none."""
        self._step = -1
        """Step of the checkpoint that was started last."""
        self._is_being_written = False
        self._error: str | None = None
        """Reason why it was not written; None if it is complete, or none was started."""
        self._timed_out = ""
        """Reason why this rank no longer waits for the saver; empty if it does."""

    def begin(self, step: int) -> bool:
        """Start a checkpoint after the previous one has ended; return whether it can be written.

        If not, the failure has been logged.
        """
        self._step, self._is_being_written, self._error = step, True, None
        error = self._ranks.first_text(self._wait_for_saver())
        if error is not None:
            self._finish(error)
            self._log_failure(error)
        return error is None

    def write(self, state: Mapping[str, Any]) -> bool:
        """Write the checkpoint that was started, synchronously; return whether it is complete."""
        started, step = time.monotonic(), self._step
        error = self._folder.save(step, state)
        self._finish(error)
        if error is not None:
            self._log_failure(error)
        elif self._ranks.rank == 0:
            took_s = time.monotonic() - started
            path = self._folder.path(step)
            log(f"checkpoint of step {step} saved: {path} ({took_s:.1f} s)")
            report_written(self._rank, step, self._folder.folder)
        return error is None

    def wait_for_result(self) -> str | None:
        """Wait for the saver; return why the last checkpoint, if any, was not written."""
        timed_out = self._wait_for_saver()
        if self._is_being_written:
            # The node of rank 0 makes the checkpoint visible, so it knows the result.
            known = ""
            if self.saver is not None and self._ranks.rank == 0:
                known = self.saver.error(self.owner)
            self._finish(self._ranks.first_text(timed_out or known or None))
        return self._error

    def write_last(self, step: int, save: Callable[[int], object]) -> None:
        """Write the checkpoint at the end of training, wait for it, and retry if it fails."""
        until = time.monotonic() + _RETRY_LIMIT_S
        with self._log_wait(step):
            if step != self._step:
                save(step)
            for pause_s in _RETRIES_S:
                if self.wait_for_result() is None:
                    return
                is_stuck = bool(self._timed_out) or self._folder.is_stuck
                if not self._ranks.all_true(not is_stuck and time.monotonic() < until):
                    return
                if self._ranks.rank == 0:
                    log(f"retrying the last checkpoint in {pause_s} s")
                time.sleep(pause_s)
                save(step)

    def wait_or_raise(self) -> None:
        """Wait for the saver; raise ``RuntimeError`` if the last checkpoint was not written."""
        with self._log_wait(self._step):
            error = self.wait_for_result()
        if error is not None:
            raise RuntimeError(
                f"the checkpoint of step {self._step} could not be written to "
                f"{self._folder.folder}: {error}"
            )

    def _wait_for_saver(self) -> str | None:
        """Wait until the saver is idle; return why this rank stopped waiting, or None."""
        saver = self.saver
        if saver is None:
            return None
        if not self._timed_out or not saver.is_busy:
            self._timed_out = ""
            try:
                self._timeout.wait(saver.wait, lambda: saver.progress)
            except StorageTimeoutError as error:
                self._timed_out = str(error)
        return self._timed_out or None

    def _log_wait(self, step: int) -> AbstractContextManager[None]:
        what = f"the checkpoint of step {step} to be written to {self._folder.folder}"
        return log_while_waiting(what, self._timeout.limit_s, is_enabled=self._ranks.rank == 0)

    def _log_failure(self, error: str) -> None:
        if self._ranks.rank == 0:
            newest = f"; the newest complete one is that of step {self.newest}"
            has = newest if self.newest >= 0 else ""
            log(f"checkpoint of step {self._step} not saved: {error}{has}")

    def _finish(self, error: str | None) -> None:
        self._error, self._is_being_written = error, False
        if error is None:
            self.newest = self._step


# --- position in the data ------------------------------------------------------------------------

_LOADERS = (DataLoader, dataloader._BaseDataLoaderIter)
"""The script may hold only the iterator: ``for batch in DataLoader(...)``."""
_WITHOUT_POSITION = (nn.Module, Optimizer, LRScheduler, GradScaler)


class DataPosition:
    """Whether the state contains the position in the data."""

    def __init__(self, state: State, position: str | None) -> None:
        """``position`` is ``step`` or None."""
        if position not in (None, "step"):
            raise ValueError(f"invalid value {position!r} for position: expected 'step' or None")
        objects = [v for name, v in state.objects.items() if not name.startswith(RESERVED)]
        self._is_missing = position is None and all(
            isinstance(value, _WITHOUT_POSITION) for value in objects
        )
        self._resumed_at = 0

    def resumed(self, step: int, *, is_logging: bool) -> None:
        """Record the step from which training resumes."""
        self._resumed_at = step if is_logging and self._is_missing else 0

    def check(self) -> None:
        """Warn at the end of the first step if there is a DataLoader."""
        step, self._resumed_at = self._resumed_at, 0
        if step and any(issubclass(type(one), _LOADERS) for one in gc.get_objects()):
            log(
                f"resumed at step {step}, but the state has no position in the data, so a "
                "DataLoader starts with its first batch again: see docs/guide/data.md; if the "
                'samples follow from the step, pass position="step" to Checkpointer'
            )
