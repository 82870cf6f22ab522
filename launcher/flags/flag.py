"""A flag, declared once, with the option that it sets.

``role: str = WORKERS.option("default", "--role NAME", "The role …")`` is a field with a default.
The parser of the command line, its help, the docs, the manual page and the completion are derived
from it.
"""

import re
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import fields

from .values import BadValue, boolean, refuse, string

T = TypeVar("T")

ENVIRONMENT_PREFIX: Final = "PET_"

SWITCH_ON: Final = "1"
"""The text of a switch that is given on the command line."""

_FIRST_SENTENCE: Final = re.compile(r".*?(?<!e\.g)\.(?= |$)|.*")


class Flag:
    """A flag: an on/off switch, or if its usage names a value, a flag with a value."""

    def __init__(
        self,
        usage: str,
        text: str,
        read: Callable[[str], Any] = string,
        *,
        group: str,
        ours: bool = False,
        since: str = "",
        multiple: bool = False,
        also: str = "",
        variable: str = "",
    ) -> None:
        """Declare a flag.

        Args:
            usage: the form in the help: ``-r, --redirects STREAMS``.
            text: the help.
            read: returns the value of a text, or raises ``BadValue``.
            group: the heading in the help.
            ours: whether torchrun has no such flag.
            since: the first torch whose torchrun has it. Like our own flags, it does not make a
                prefix ambiguous that was unambiguous without it.
            multiple: whether it may be repeated; the value is then a tuple, and its variable has
                values separated by semicolons.
            also: an older name, which is still accepted but not shown.
            variable: another variable, without the prefix ``PET_``; the flag's own overrides it.
        """
        words = usage.split()
        self._shown = [word.rstrip(",") for word in words if word.startswith("-")]
        self.opts = (*self._shown, also) if also else tuple(self._shown)
        self.metavar = " ".join(words[len(self._shown) :]) or None
        self.takes_value = self.metavar is not None
        self.help, self.group = text, group
        self.ours, self.since, self.multiple = ours, since, multiple
        self._read = read if self.takes_value else boolean
        self.spelling = next(word for word in self._shown if word.startswith("--"))
        """The long spelling: ``--nproc-per-node``."""
        self.key = self.spelling[2:].replace("-", "_")
        """The key of the value: ``nproc_per_node``."""
        own = (variable_of(word) for word in (self.spelling, also) if word)
        self.variables = (*own, variable) if variable else tuple(own)
        """The environment variables; the first that is set applies."""

    def described(self, text: str) -> "Flag":
        """Return the same flag with another command's help."""
        other = copy(self)
        other.help = text
        return other

    @property
    def usage(self) -> str:
        """The form in the help: ``-r, --redirects STREAMS``."""
        spellings = ", ".join(sorted(self._shown, key=lambda word: word.startswith("--")))
        return f"{spellings} {self.metavar}" if self.takes_value else spellings

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return _FIRST_SENTENCE.match(self.help)[0]  # type: ignore[index]  # it matches any text

    @property
    def absent(self) -> Any:
        """The value if none was given."""
        if self.multiple:
            return ()
        return None if self.takes_value else False

    def words(self, texts: Sequence[str]) -> list[str]:
        """Return the arguments that set the flag to these values."""
        if not self.takes_value:
            return [self.spelling]
        return [f"{self.spelling}={text}" for text in (texts if self.multiple else texts[-1:])]

    def value(self, texts: Sequence[str], origin: str) -> Any:
        """Return the value of the texts, or raise a ``UsageError`` that names ``origin``."""
        values = tuple(
            self._value(text, origin) for text in (texts if self.multiple else texts[-1:])
        )
        return values if self.multiple else values[0]

    def _value(self, text: str, origin: str) -> Any:
        try:
            return self._read(text)
        except BadValue as bad:
            raise refuse(origin, text, bad) from None


def variable_of(spelling: str) -> str:
    """Return the variable of a flag: ``PET_NPROC_PER_NODE`` of ``--nproc-per-node``."""
    return ENVIRONMENT_PREFIX + spelling[2:].replace("-", "_").upper()


class Heading:
    """A heading of the help; creates the flags under it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, usage: str, text: str, read: Callable[[str], Any] = string, **more: Any
    ) -> Flag:
        """Return a flag; see ``Flag`` for the arguments."""
        return Flag(usage, text, read, group=self.name, **more)

    def option(self, default: T, usage: str, text: str, *args: Any, **kwargs: Any) -> T:
        """Return a field with this default and one flag under this heading."""
        return option(default, self(usage, text, *args, **kwargs))


HELP: Final = Heading("Help")
"""For flags that make ft-run print an answer and exit; they have no variables."""


class _Default:
    """The default of a field, as its factory: ``msgspec`` has no other place for the flags."""

    def __init__(self, value: Any, flags: tuple[Flag, ...]) -> None:
        self._value = value
        self.flags = flags

    def __call__(self) -> Any:
        return self._value


def option(default: T, *flags: Flag) -> T:
    """Return a field with this default and these flags."""
    made: T = field(default_factory=_Default(default, flags))
    return made


def flags_of(kind: type[Struct], *names: str) -> list[Flag]:
    """Return the flags of an options class, or of some of its fields, in order."""
    factories = {one.name: one.default_factory for one in fields(kind)}
    found = (factories[name] for name in names or factories)
    return [flag for factory in found if isinstance(factory, _Default) for flag in factory.flags]
