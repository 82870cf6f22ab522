"""Whether smaller parts answer an accelerator that runs out of memory. Pure.

``ElasticBatches`` computes a rank's piece of a batch in parts. Where memory ran out in one, the
next round can compute the same samples in parts of half the size.
"""

from msgspec import Struct

from ..protocol.failure import Failure


class Shrinking(Struct, frozen=True):
    """What ``shrink`` does about a failure."""

    micro_batch: int | None
    """Of the next round; 0: parts cannot be smaller, the job ends; None: it does not apply."""
    words: str


def shrinking(failure: Failure, given: int) -> Shrinking:
    """Return what ``shrink`` does about an accelerator that ran out of memory.

    A job shrinks at most log2 of its first value times: each value is at most half of the one
    before, or it does not apply.

    Args:
        failure: of a worker.
        given: the ``micro_batch`` that the workers of the round were given; 0: none.
    """
    used = failure.micro_batch
    if not used:
        return Shrinking(None, "memory ran out outside the parts of ElasticBatches")
    if given and used > given:
        return Shrinking(None, f"a part had {used} samples, though micro_batch was {given}")
    if used == 1:
        return Shrinking(0, "micro_batch is 1 and cannot be halved")
    return Shrinking(used // 2, f"micro_batch {used} -> {used // 2}")


def smaller(one: int, other: int) -> int:
    """Return the smaller of two values of ``micro_batch``, of which 0 is none."""
    return min(one, other) or max(one, other)
