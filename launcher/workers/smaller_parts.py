"""Smaller parts of ``ElasticBatches`` after an accelerator ran out of memory.

A worker records the size of the part in which that happened. The node proposes half of it for the
next round, and ``--on-failure device-oom=shrink`` adopts that on all nodes.
"""

from collections.abc import Sequence
from typing import Final

from ...rendezvous.protocol.carried import (
    CHANGES_MAX,
    CarriedValue,
    Proposal,
    value_of,
)
from ...training.worker.device_memory import SUFFIX, VARIABLE, samples_of
from ..processes.regular_file import head_of_file

NAME: Final = "micro_batch"
_FILE_MAX_BYTES: Final = 16


def read_samples(error_file: str) -> int:
    """Return the size of the part in which an accelerator ran out of memory; 0 if in none."""
    return samples_of(head_of_file(error_file + SUFFIX, _FILE_MAX_BYTES)) if error_file else 0


def propose(samples: int, carried: Sequence[CarriedValue]) -> Proposal | None:
    """Return the proposal after an accelerator ran out of memory in a part of ``samples``, if any.

    A job shrinks at most log2 of its first value times, because each value is at most half of the
    previous one.
    """
    if not samples:
        return None
    cause = f"an accelerator ran out of memory in a part of {samples} sample(s)"
    given = value_of(carried, NAME) or CarriedValue(NAME, 0)
    if given.value and samples > given.value:
        return Proposal(cause, f"a part had {samples} samples, though {NAME} was {given.value}")
    if samples == 1:
        return Proposal(cause, f"{NAME} is 1 and cannot be halved", ends_job=True)
    half = samples // 2
    change = min(given.change + 1, CHANGES_MAX)
    smaller = CarriedValue(NAME, half, change, replaces=samples)
    return Proposal(cause, f"{NAME} {samples} -> {half}", (smaller,))


def environment(carried: Sequence[CarriedValue]) -> dict[str, str]:
    """Return the variables with which workers use a value of the job."""
    given = value_of(carried, NAME)
    return {VARIABLE: str(given.value)} if given is not None and given.value else {}
