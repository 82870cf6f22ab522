"""The parser of the command line, which behaves like torchrun's argparse.

It supports both spellings of a flag, unambiguous prefixes, ``-r=3``, and options that end at the
script. It records the origin of each value. click formats the help.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from click import HelpFormatter
from msgspec import Struct

from ...errors import UsageError
from ..flags.flag import HELP, SWITCH_ON, Flag, flags_of
from ..flags.values import either, nearest, shown
from ..reporting.standard_output import say_last, standard_output
from ..version import VERSION

T = TypeVar("T", bound=Struct)
_UNBROKEN = "\u2011"
"""A non-breaking hyphen."""


class Given:
    """The values of a command's flags, and the texts and origins of given flags."""

    def __init__(self, flags: Sequence[Flag]) -> None:
        self._flags = {flag.key: flag for flag in flags}
        self.values = {flag.key: flag.absent for flag in flags}
        self.texts: dict[str, Sequence[str]] = {}
        self._origins: dict[str, str] = {}

    def put(self, key: str, texts: Sequence[str], origin: str) -> None:
        """Set the value of a flag.

        Args:
            texts: the value as text; the last one applies, unless the flag can be repeated.
            origin: ``--flag``, ``PET_FLAG`` or a description, for errors; ``--flag`` if empty.
        """
        self._origins[key] = origin or self._flags[key].spelling
        self.values[key] = self._flags[key].value(texts, self._origins[key])
        self.texts[key] = texts

    def merge(self, other: "Given") -> None:
        """Set the flags that were given in ``other``."""
        self.values |= {key: other.values[key] for key in other.texts}
        self.texts |= other.texts
        self._origins |= other._origins

    def words(self, flags: Sequence[Flag]) -> list[str]:
        """Return the given ones of ``flags`` as arguments of a command."""
        return [
            word
            for flag in flags
            if flag.key in self.texts and self[flag.key] is not False
            for word in flag.words(self.texts[flag.key])
        ]

    def __getitem__(self, key: str) -> Any:
        """Return the value; None (False for a switch) if it was not given."""
        return self.values[key]

    def get(self, key: str, default: Any) -> Any:
        """Return the value, or ``default`` if it was not given."""
        value = self.values[key]
        return default if value is None else value

    def origin(self, key: str) -> str:
        """Return ``--flag`` or ``PET_FLAG``."""
        return self._origins.get(key, self._flags[key].spelling)

    def refuse_both(self, one: str, other: str) -> None:
        """Raise ``UsageError`` if two flags that exclude each other were given."""
        if self[one] and self[other]:
            raise UsageError(
                f"{self.origin(one)} and {self.origin(other)} exclude each other; expected one of"
                " them."
            )

    def fill(self, kind: type[T], **found: Any) -> T:
        """Return options: ``found``, else the values of the fields' flags, else the defaults."""
        for name in kind.__struct_fields__:
            flags = flags_of(kind, name)
            if name not in found and len(flags) == 1 and self[flags[0].key] is not None:
                found[name] = self[flags[0].key]
        return kind(**found)


class HelpText(Struct, frozen=True):
    """The parts of the help besides the flags. ``before`` and ``after`` are preformatted."""

    before: str
    after: str
    common: Sequence[str] = ()
    """Keys of the flags that ``--help`` shows, in this order; if empty, it shows all."""
    after_common: str = ""
    """Replaces ``after`` if only the common flags are shown."""


class UnknownFlagError(UsageError):
    """Raised for an unknown flag."""

    def __init__(self, word: str, guess: str | None, help_command: str) -> None:
        advice = f"did you mean {guess}?" if guess else f"{help_command} lists the flags."
        super().__init__(f"unknown flag {shown(word)}; {advice}")
        self.word, self.guess = word, guess


class CommandLine:
    """The flags of one command."""

    def __init__(
        self,
        name: str,
        flags: Sequence[Flag],
        text: HelpText,
        foreign: Callable[[str, list[str]], list[str] | None] | None = None,
    ) -> None:
        """``foreign`` returns our flags for another launcher's flag; None if the flag is unknown.

        It receives the arguments after the flag and may remove a value from them.
        """
        help_flags = [
            HELP("-h, --help", "Show the most used options and exit."),
            HELP("--help-all", "Show all options and exit.", ours=True),
            HELP("--version", "Show the version and exit.", ours=True),
        ]
        if not text.common:
            help_flags[:2] = [HELP("-h, --help", "Show this text and exit.")]
        self.name = name
        self.flags: tuple[Flag, ...] = (*flags, *help_flags)
        self.text = text
        self._by_word = {word: flag for flag in self.flags for word in flag.opts}
        self._foreign = foreign

    def read(
        self, argv: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[Given, tuple[str, ...]]:
        """Return the flags' values, and the rest from the first argument that is not a flag."""
        found, rest = self.split(argv)
        return self._given(found, environ), rest

    def read_all(
        self, argv: Sequence[str], environ: Mapping[str, str], *, most: int = 0, right: str
    ) -> tuple[Given, tuple[str, ...]]:
        """Return the flags' values, and the arguments of a command that does not run a script.

        Flags and arguments may be mixed. More than ``most`` arguments are an error, whose message
        says that ``right`` is expected.
        """
        found: list[tuple[Flag, str]] = []
        arguments: list[str] = []
        rest = tuple(argv)
        while rest:
            more, rest = self.split(rest)
            found += more
            if rest and len(arguments) == most:
                raise UsageError(
                    f"unexpected argument {shown(rest[0])} for {self.name}; expected {right}."
                )
            arguments += rest[:1]
            rest = rest[1:]
        return self._given(found, environ), tuple(arguments)

    def _given(self, found: Sequence[tuple[Flag, str]], environ: Mapping[str, str]) -> Given:
        """Return the values of the flags that were found, and of the variables of the others."""
        for flag, _ in found:
            if flag.key in ("help", "help_all"):
                answer(self.help(whole=flag.key == "help_all"))
            if flag.key == "version":
                answer(f"ft-run {VERSION}")
        variables = self._from_environment(environ)
        texts: dict[Flag, list[str]] = {}
        for flag, text in found:
            texts.setdefault(flag, []).append(text)
        given = Given(self.flags)
        for flag, written in texts.items():
            given.put(flag.key, written, flag.spelling)
        for flag, written in variables.items():
            if flag not in texts:
                given.put(flag.key, written, _variable_set(flag, environ))
        return given

    def split(self, argv: Sequence[str]) -> tuple[list[tuple[Flag, str]], tuple[str, ...]]:
        """Return the flags, each with the text of its value, and the rest.

        The rest starts at the first argument that is not a flag. Like in argparse, one ``--``
        directly before it is dropped, or else one directly after it.
        """
        found: list[tuple[Flag, str]] = []
        queue = list(reversed(argv))
        while queue:
            word = queue.pop()
            if word == "--":
                break
            if word == "-" or not word.startswith("-"):
                if queue and queue[-1] == "--":
                    queue.pop()
                queue.append(word)
                break
            if word.startswith("--"):
                self._long(word, queue, found)
            else:
                self._short(word, queue, found)
        return found, tuple(reversed(queue))

    def _long(self, word: str, queue: list[str], found: list[tuple[Flag, str]]) -> None:
        name, equals, value = word.partition("=")
        try:
            flag = self._find(name)
        except UsageError:
            ours = self._foreign(word, queue) if self._foreign is not None else None
            if ours is None:
                raise
            queue.extend(reversed(ours))
            return
        if flag.takes_value:
            found.append((flag, value if equals else self._next_value(flag, queue)))
        elif equals:
            raise UsageError(
                f"unexpected value {shown(value)} for {flag.spelling}:"
                f" expected {flag.spelling} without a value."
            )
        else:
            found.append((flag, SWITCH_ON))

    def _short(self, word: str, queue: list[str], found: list[tuple[Flag, str]]) -> None:
        """Parse ``-m``, ``-r3``, ``-r 3``, ``-r=3`` or several flags in one, e.g. ``-mr3``."""
        letters = word[1:]
        while letters:
            flag = self._by_word.get("-" + letters[0])
            if flag is None:
                raise self._unknown(word)
            letters = letters[1:]
            if flag.takes_value:
                value = letters.removeprefix("=") if letters else self._next_value(flag, queue)
                found.append((flag, value))
                return
            found.append((flag, SWITCH_ON))

    def _next_value(self, flag: Flag, queue: list[str]) -> str:
        if not queue:
            raise UsageError(
                f"{flag.spelling} needs a value; expected {flag.spelling} {flag.metavar}."
            )
        value = queue.pop()
        if value.startswith("-") and len(value) > 1 and not _is_negative_or_spaced(value):
            raise UsageError(
                f"{flag.spelling} needs a value, but {shown(value)} follows;"
                f" expected {flag.spelling} {flag.metavar},"
                f" or {flag.spelling}=VALUE for a value that begins with a dash."
            )
        return value

    def _find(self, name: str) -> Flag:
        """Return the flag with this name or prefix; flags of older torchruns precede ours."""
        word = "--" + name[2:].replace("_", "-")
        exact = self._by_word.get(word)
        if exact is not None:
            return exact
        if len(word) > 2:
            for wanted in ((False, False), (False, True), (True, False)):
                found = {
                    known: flag
                    for known, flag in self._by_word.items()
                    if (flag.ours, bool(flag.since)) == wanted and known.startswith(word)
                }
                if len(set(found.values())) == 1:
                    return next(iter(found.values()))
                if found:
                    raise UsageError(
                        f"{shown(name)} is ambiguous: it could be {either(sorted(found))};"
                        " expected the whole name."
                    )
        raise self._unknown(name)

    def _unknown(self, word: str) -> UsageError:
        return UnknownFlagError(word, self.guess(word), self.help_command)

    @property
    def help_command(self) -> str:
        """Return the command that lists all flags."""
        return f"{self.name} --help{'-all' * bool(self.text.common)}"

    def guess(self, word: str) -> str | None:
        """Return the flag most similar to an unknown one; None if none is similar."""
        known = [word for word in self._by_word if word.startswith("--")]
        name = "--" + word.lstrip("-").partition("=")[0].replace("_", "-").lower()
        return nearest(name, known)

    def _from_environment(self, environ: Mapping[str, str]) -> dict[Flag, list[str]]:
        """Return the values of the ``PET_*`` variables; an empty one counts as unset."""
        found: dict[Flag, list[str]] = {}
        for flag in self.flags:
            variable = _variable_set(flag, environ)
            text = environ.get(variable, "")
            if not text or flag.group == HELP.name:
                continue
            if flag.multiple:
                found[flag] = [part for part in text.split(";") if part.strip()]
                continue
            found[flag] = [text]
            if not flag.takes_value:
                flag.value([text], variable)  # an invalid one is refused even if the flag is given
        return found

    def help(self, *, whole: bool = False) -> str:
        """Return the help: usage, flags, notes.

        If the command has common flags, only these are shown, each with the first sentence of its
        help. With ``whole``, all flags are shown, under the headings of their groups.
        """
        formatter = HelpFormatter(max_width=80)
        formatter.write(self.text.before)
        if is_short := bool(self.text.common) and not whole:
            flags = {flag.key: flag for flag in self.flags}
            sections = {
                "Options": [(flags[key].usage, flags[key].summary) for key in self.text.common]
            }
        else:
            sections = {}
            for flag in self.flags:
                sections.setdefault(flag.group, []).append((flag.usage, flag.help))
        for heading, lines in sections.items():
            # Names do not break at their dashes, so that they can be searched for and copied.
            records = [(usage, text.replace("-", _UNBROKEN)) for usage, text in lines]
            with formatter.section(heading):
                formatter.write_dl(records, col_max=28)
        text = formatter.getvalue().replace(_UNBROKEN, "-")
        after = self.text.after_common if is_short else self.text.after
        return f"{text}\n{after}".rstrip("\n")


def _variable_set(flag: Flag, environ: Mapping[str, str]) -> str:
    set_ones = [variable for variable in flag.variables if environ.get(variable)]
    return (set_ones or flag.variables)[0]


def answer(text: str) -> NoReturn:
    """Print the requested text, and exit with 0."""
    with standard_output():
        print(text, flush=True)
    raise SystemExit(0)


def say(sentences: Sequence[str]) -> None:
    """Write lines to standard error."""
    for sentence in sentences:
        say_last(f"ft-run: {sentence}")


def _is_negative_or_spaced(value: str) -> bool:
    """Return whether argparse would accept ``value`` as a value although it starts with a dash."""
    return value[1:2] in "0123456789." or " " in value
