"""Regular expressions of Python, searched for in a time that is bounded. Pure.

Python's own engine tries one way through an expression after the other: with ``(a|a)*b`` they
double with each letter of a line that does not match, and a master that tries them hangs. Here a
line is read once, with the set of all places of the expression where its reader may be
(K. Thompson, Regular expression search algorithm, CACM 11 (1968) 419): the time grows with the
length of the line times that of the expression. Sets that were met are remembered, so that most
letters cost one look-up. What cannot be searched for in this way is refused: expressions that look
back at a group, ahead or behind.

The syntax is read by Python's own parser, and single letters are matched by ``re``, so that
classes, categories and flags mean what they mean there.
"""

import functools
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

_PLACES_MAX = 1000
"""In one expression: with 100 lines of 500 letters, as ``matches`` looks at, some seconds if no set
of places were ever met twice."""
_REMEMBERED_MAX = 5000

_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL
"""What a single letter depends on."""

_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
_REFUSED = {
    "GROUPREF": "a look back at a group",
    "GROUPREF_EXISTS": "a look back at a group",
    "ASSERT": "a look ahead or behind",
    "ASSERT_NOT": "a look ahead or behind",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
}

_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

_Guard = Callable[[str, str], bool]
"""Whether one may pass between two letters; empty: the end of the line on that side."""
_Places = frozenset[int]


class UnboundedError(ValueError):
    """Raised when an expression cannot be searched for in a bounded time; says why, in a clause."""


class Expression:
    """A regular expression, to be searched for in lines. Made by ``read``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tests: list[re.Pattern[str] | None] = []
        """By place: the letter that leads on from it; None where none is read."""
        self._guards: list[_Guard | None] = []
        self._ways: list[tuple[int, ...]] = []
        self._end = self._place()
        tree = _parser.parse(text)
        self._start = self._sequence(tree, tree.state.flags, self._end)
        self._has_guards = any(self._guards)
        self._met: dict[tuple[_Places, str, str], _Places | None] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def search(self, line: str) -> bool:
        """Return whether the expression matches somewhere in a line, given without its end."""
        places: _Places | None = frozenset()
        before = ""
        for letter in (*line, ""):
            assert places is not None
            key = (places, before if self._has_guards else "", letter)
            if key in self._met:
                places = self._met[key]
            else:
                if len(self._met) >= _REMEMBERED_MAX:
                    self._met.clear()
                places = self._met[key] = self._step(places, before, letter)
            if places is None:
                return True
            before = letter
        return False

    def _step(self, places: _Places, before: str, letter: str) -> _Places | None:
        """Read one letter; return where that leads, None when the end is reached before it."""
        reached: set[int] = set()
        open_places = [*places, self._start]  # a match may begin at every letter
        while open_places:
            place = open_places.pop()
            guard = self._guards[place]
            if place in reached or (guard is not None and not guard(before, letter)):
                continue
            if place == self._end:
                return None
            reached.add(place)
            if self._tests[place] is None:
                open_places += self._ways[place]
        return frozenset(
            way
            for place in reached
            if letter and (test := self._tests[place]) is not None and test.match(letter)
            for way in self._ways[place]
        )

    # --- from the tree of Python's parser to places ------------------------------------------

    def _place(
        self,
        *ways: int,
        test: "re.Pattern[str] | None" = None,
        guard: _Guard | None = None,
    ) -> int:
        if len(self._ways) >= _PLACES_MAX:
            raise UnboundedError("is too large with its repetitions written out")
        self._tests.append(test)
        self._guards.append(guard)
        self._ways.append(ways)
        return len(self._ways) - 1

    def _sequence(self, tree: Sequence[Any], flags: int, after: int) -> int:
        """Add the places of a sequence that is followed by a place; return the first."""
        for operation, argument in reversed(list(tree)):
            after = self._operation(str(operation), argument, flags, after)
        return after

    def _operation(self, name: str, argument: Any, flags: int, after: int) -> int:
        match name:
            case "LITERAL":
                return self._letter(re.escape(chr(argument)), flags, after)
            case "NOT_LITERAL":
                return self._letter(f"[^{_in_class(argument)}]", flags, after)
            case "ANY":
                return self._letter(".", flags, after)
            case "IN":
                return self._letter(f"[{''.join(map(_class_item, argument))}]", flags, after)
            case "BRANCH":
                ways = [self._sequence(branch, flags, after) for branch in argument[1]]
                return self._place(*ways)
            case "SUBPATTERN":
                _, added, removed, inner = argument
                return self._sequence(inner, (flags | added) & ~removed, after)
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repetition(argument, flags, after)
            case "AT":
                return self._place(after, guard=_guard(str(argument), flags))
            case _:
                raise UnboundedError(f"has {_REFUSED.get(name, name)}")

    def _letter(self, text: str, flags: int, after: int) -> int:
        return self._place(after, test=re.compile(text, flags & _FLAGS))

    def _repetition(self, argument: Any, flags: int, after: int) -> int:
        low, high, inner = argument
        first = after
        if high == _parser.MAXREPEAT:
            first = self._place()
            self._ways[first] = (self._sequence(inner, flags, first), after)
        else:
            for _ in range(high - low):
                first = self._place(self._sequence(inner, flags, first), after)
        for _ in range(low):
            before, first = first, self._sequence(inner, flags, first)
            if first == before:  # no place, as of (): nor would the next four thousand million
                break
        return first


@functools.lru_cache(maxsize=64)
def read(text: str) -> Expression:
    """Return the expression that a text stands for.

    Raises:
        re.error, OverflowError, RecursionError: it is no regular expression of Python.
        UnboundedError: it is one that cannot be searched for in a bounded time.
    """
    re.compile(text)
    return Expression(text)


def _in_class(code: int) -> str:
    """Return a letter as it is written within brackets."""
    return f"\\U{code:08x}"


def _class_item(item: tuple[Any, Any]) -> str:
    name, argument = str(item[0]), item[1]
    if name == "NEGATE":
        return "^"
    if name == "RANGE":
        return f"{_in_class(argument[0])}-{_in_class(argument[1])}"
    return _CATEGORIES[str(argument)] if name == "CATEGORY" else _in_class(argument)


def _guard(name: str, flags: int) -> _Guard:
    def is_word(letter: str) -> bool:
        is_known = letter.isascii() or not flags & re.ASCII
        return is_known and (letter.isalnum() or letter == "_")

    match name:
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return lambda before, _: not before
        case "AT_END" | "AT_END_STRING":
            return lambda _, after: not after
        case "AT_BOUNDARY":
            return lambda before, after: is_word(before) != is_word(after)
        case "AT_NON_BOUNDARY":
            return lambda before, after: is_word(before) == is_word(after)
        case _:
            raise UnboundedError(f"has {name}")
