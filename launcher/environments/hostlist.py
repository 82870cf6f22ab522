"""Host lists in Slurm's format: ``gpu[001-016,020],login1``."""

import re
from collections.abc import Iterator

MOST_HOSTS = 100_000
"""More than in any cluster: a longer list is a mistake."""

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_PLAIN = re.compile(r"[A-Za-z0-9._:-]*")


class BadHostListError(ValueError):
    """Raised if a text is not a host list; has the reason."""


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in its order.

    Raises:
        BadHostListError: If it is invalid, or has more than ``MOST_HOSTS`` hosts.
    """
    hosts: list[str] = []
    for word in _split(text):
        for name in _names(word):
            if len(hosts) == MOST_HOSTS:
                raise BadHostListError(f"more than {MOST_HOSTS} hosts")
            hosts.append(name)
    return tuple(hosts)


def _split(text: str) -> list[str]:
    """Return the parts between commas outside of brackets."""
    words, depth = [""], 0
    for letter in text:
        if letter == "," and not depth:
            words.append("")
            continue
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise BadHostListError("unmatched brackets")
        words[-1] += letter
    if depth:
        raise BadHostListError("unmatched brackets")
    if not all(words):
        raise BadHostListError("empty name")
    return words


def _names(word: str) -> Iterator[str]:
    """Yield the names of ``rack[1-2]gpu[01-04]``; the last brackets vary fastest."""
    before, bracket, rest = word.partition("[")
    if _PLAIN.fullmatch(before) is None:
        raise BadHostListError(f"{before!r} is not a host name")
    if not bracket:
        yield before
        return
    inside, _, after = rest.partition("]")
    for number in _numbers(inside):
        for end in _names(after):
            yield before + number + end


def _numbers(text: str) -> Iterator[str]:
    """Yield the numbers of ``001-016,020``, with leading zeros."""
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise BadHostListError(f"{part!r} is neither a number nor a range")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first):
            raise BadHostListError(f"the range {part} runs backwards")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
