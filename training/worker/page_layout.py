"""Layout of the page that a watched worker shares with its agent.

It consists of 8-byte words. Each is written by one aligned store, so a reader never sees half of
one. The agent writes ``WANTED``, the worker all others. Times are in CLOCK_MONOTONIC.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PAGE_BYTES = 4096
PAGE_FILE, STACKS_FILE = "ft-run-page", "ft-run-stacks"
"""The names of the page's memfd and of the one for stacks; /proc/PID/fd shows ``/memfd:NAME``."""

(
    # the process: start.py
    PID,  # process ID of the worker; 0 until it is watched; written after the others
    STACKS_FD,  # the worker's descriptor of the file for stacks
    # progress: hook.py
    STEPS,  # completed steps, or the number that the script has reported
    TICKS,  # number of signs of progress
    LAST_NS,  # time of the last sign of progress; 0 before the first
    LONGEST_NS,  # the longest time between two signs of progress
    FIRST,  # the first step that the script has reported plus 1; 0 if it reports none
    FURTHEST,  # the highest step that the script has reported plus 1; 0 if it reports none
    TOTAL,  # steps of the whole training; 0 if unknown
    REPORTS_ITSELF,  # whether the worker has imported code that reports progress to Kubeflow
    # rates, from the last interval of at least hook.STRETCH_NS (MARK) and the previous one (BEFORE)
    MARK_NS,  # start time
    MARK_STEPS,  # STEPS at the start
    MARK_WAIT_NS,  # WAIT_NS at the start
    BEFORE_NS,
    BEFORE_STEPS,
    BEFORE_WAIT_NS,
    # CPU time since the first step, updated once per second: hook.py
    USES_DEVICE,  # whether an accelerator is used
    CPU_NS,  # CPU time of the process
    CPU_WALL_NS,  # elapsed time
    CPU_BEGAN_NS,  # CPU clock at the first step
    WALL_BEGAN_NS,  # time of the first step
    # modules: imported.py
    IMPORTED,  # a bit per module that was imported before the first step
    # phases: phases.py
    PHASE,  # number of the current phase
    SINCE_NS,  # start time of the current phase
    CHANGES,  # number of writes; odd during a write
    IDLE_NS,  # training between the last sign of progress and the start of the phase
    # waits for data: data_wait.py
    BATCHES,  # batches taken
    WAIT_NS,  # total wait
    FIRST_WAIT_NS,  # part of WAIT_NS for the first batches of iterators
    SQUARES,  # sum of the squares of the other waits, in square microseconds
    PROCESSES,  # num_workers of the last loader that training waited for
    PREFETCH,  # prefetch_factor of that loader
    # --auto-tune on: loader_settings.py
    WANTED,  # settings that should be in effect; 0 if none are changed
    IN_EFFECT,  # settings in effect; 0 if those of the loader cannot be changed
    DISTURBED,  # changes while a checkpoint is written
    STEP,  # completed steps
    STEP_NS,  # time at which the last step ended
    SWITCH_NS,  # how long training last waited because a loader started
) = range(38)

PHASES_MAX, NAME_BYTES = 24, 64
"""The maximum number of phases of a worker, including its activities; the size of a name."""

SUMS = 40
"""First of ``PHASES_MAX`` words: nanoseconds in each phase up to the start of the current one."""
NAMES_AT = 8 * (SUMS + PHASES_MAX)
"""Offset of the names of phases: UTF-8 that ends before the first zero."""

BACKENDS_AT, BACKENDS_BYTES = NAMES_AT + PHASES_MAX * NAME_BYTES, 128
"""Offset and size of the names of the backends of process groups: each is followed by a space, and
the last by a zero (``recorders.py``)."""

TRIAL_AT, TRIAL_BYTES = BACKENDS_AT + BACKENDS_BYTES, 64
"""Offset and size of the settings that are on trial, as text: a failure is attributed to them."""


def read_text(words: "Any", at: int, size: int) -> str:
    """Return a text of the page: UTF-8 that ends before the first zero."""
    return bytes(words.cast("B")[at : at + size]).partition(b"\0")[0].decode(errors="replace")


def write_text(words: "Any", at: int, size: int, text: bytes) -> None:
    """Write a text shorter than ``size`` to the page."""
    words.cast("B")[at : at + size] = text.ljust(size, b"\0")
