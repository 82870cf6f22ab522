"""The syntax of the flags that select streams of workers.

``--redirects`` and ``--tee`` take one digit for all local ranks (``3``) or pairs for some
(``0:1,10:3``); 0 is none, 1 stdout, 2 stderr, 3 both. The filters are comma-separated lists.
"""

import enum
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from .values import BadValue, whole

MAX_LOCAL_RANK: Final = 65535
MAX_RANK: Final = 999_999_999

_DIGIT = re.compile(r"[0-3]")


class Streams(enum.IntFlag):
    """Standard streams of a worker: the digits of ``--redirects`` and ``--tee``."""

    NONE = 0
    OUT = 1
    ERR = 2
    BOTH = 3


class StreamSelection(Struct, frozen=True):
    """Value of ``--redirects`` or ``--tee``; ``default`` is for ranks not in ``by_local_rank``."""

    default: Streams = Streams.NONE
    by_local_rank: Mapping[int, Streams] = field(default_factory=dict)

    def of(self, local_rank: int) -> Streams:
        """Return the streams selected for ``local_rank``."""
        return self.by_local_rank.get(local_rank, self.default)


def streams(text: str) -> StreamSelection:
    """Parse the value of ``--redirects`` or ``--tee``."""
    text = text.strip()
    if _DIGIT.fullmatch(text):
        return StreamSelection(default=Streams(int(text)))
    read_rank = whole(0, MAX_LOCAL_RANK)
    by_local_rank: dict[int, Streams] = {}
    for pair in text.split(","):
        rank, _, digit = pair.partition(":")
        try:
            local_rank = read_rank(rank)
        except BadValue:
            local_rank = -1
        if local_rank < 0 or not _DIGIT.fullmatch(digit.strip()):
            raise BadValue(
                "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or RANK:DIGIT pairs, e.g. 0:1,10:3"
            )
        by_local_rank[local_rank] = Streams(int(digit))
    return StreamSelection(by_local_rank=by_local_rank)


def local_ranks(text: str) -> frozenset[int] | None:
    """Parse the value of ``--local-ranks-filter``: None (all) for an empty text."""
    return frozenset(ranks(text)) if text.strip() else None


def ranks(text: str) -> tuple[int, ...]:
    """Parse a list of ranks."""
    read_rank = whole(0, MAX_RANK)
    try:
        return tuple(read_rank(rank) for rank in text.split(","))
    except BadValue:
        raise BadValue("ranks separated by commas, e.g. 0,17") from None


def filters(text: str) -> tuple[str, ...]:
    """Parse a list of substrings; ``,,`` stands for a comma within one.

    Empty substrings are dropped: they would be in every line.
    """
    words = [""]
    for part in re.split("(,,|,)", text):
        if part == ",":
            words.append("")
        else:
            words[-1] += "," if part == ",," else part
    return tuple(word for word in words if word)
