"""What modules read of the environment while they are imported, and whether they keep it.

A worker has variables that the fork server does not have, such as ``RANK``. A module that looks
one up while it is imported reads it too early. A module that keeps a copy of the environment keeps
one that belongs to no worker. A module that only walks over the environment in search of a prefix,
as tqdm and fsspec do, does neither: it finds decoys in place of those variables, so that it does
not take them for missing.
"""

import gc
import os
import secrets
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

_DECOY: Final = "<each worker has a {} of its own>"
"""The value of a variable that differs from worker to worker. It is not a number, so that code that
uses it fails."""


class _Canary:
    """A variable that is in ``os.environ`` during the preload alone.

    Name and value are objects of their own: a module that keeps a copy of the environment, or of
    the part with this variable, keeps a reference to one of them.
    """

    def __init__(self, name: str, value: str) -> None:
        self.raw_name = os.fsencode(name)
        self.raw_value = os.fsencode(value)
        # Names may be interned, as those of attributes are; then the other object tells.
        self._interned = sys.intern(name)
        self.name = os.fsdecode(self.raw_name)
        self.value = os.fsdecode(self.raw_value)

    def references(self) -> list[int]:
        return [
            sys.getrefcount(self.raw_name),
            sys.getrefcount(self.raw_value),
            sys.getrefcount(self.name),
            sys.getrefcount(self.value),
        ]


class EnvironmentWatch:
    """Records what is read from ``os.environ`` between ``start`` and ``stop``."""

    def __init__(self) -> None:
        """Create a watch that has not begun."""
        self.reads: set[str] = set()
        """The variables that were looked up, set or not."""
        self._stop: Callable[[], None] = lambda: None
        # First, as what a loop leaves behind in its variables is the last. Its
        # name has no word that a module could search for.
        self._canaries = [_Canary("_" + secrets.token_hex(8), secrets.token_hex(16))]
        self._kept_before: list[list[int]] = []

    def start(self, differing: Iterable[str]) -> None:
        """Begin.

        Args:
            differing: variables that have another value in each worker and are not in
                ``os.environ``. A look-up by name does not find them.
        """
        environ: Any = os.environ
        content = getattr(environ, "_data", None)
        if not isinstance(content, dict):  # another Python: then the list of names must do
            return
        self._canaries += [_Canary(name, _DECOY.format(name)) for name in differing]
        recording = _Recording(content, self._canaries, self.reads)
        environments: tuple[Any, ...] = (environ, os.environb)
        codecs = environ.encodekey, environ.decodekey, environ.decodevalue
        for environment in environments:
            environment._data = recording
        environ.encodekey, environ.decodekey, environ.decodevalue = self._codecs(*codecs)
        self._kept_before = self._references()

        def stop() -> None:
            content.clear()
            content.update(recording)
            for canary in self._canaries:
                if content.get(canary.raw_name) is canary.raw_value:
                    del content[canary.raw_name]
            environ.encodekey, environ.decodekey, environ.decodevalue = codecs
            for environment in environments:
                environment._data = content

        self._stop = stop

    def stop(self) -> None:
        """End; ``os.environ`` is what the modules have made of it."""
        self._stop()

    def is_kept(self) -> bool:
        """Return whether a module has a copy of the environment, or of some names or values.

        Call it between ``start`` and ``stop``. It misses a copy with changed names and values, and
        a copy of a part that has none of the workers' variables.
        """
        if self._is_referred_to():
            gc.collect()  # it may be garbage
        return self._is_referred_to()

    def _is_referred_to(self) -> bool:
        """Each object is compared by itself: a module may replace a value, which lets go of one."""
        return any(
            now > before
            for after, earlier in zip(self._references(), self._kept_before, strict=False)
            for now, before in zip(after, earlier, strict=True)
        )

    def _references(self) -> list[list[int]]:
        return [canary.references() for canary in self._canaries]

    def _codecs(
        self,
        encode_key: Callable[[str], bytes],
        decode_key: Callable[[bytes], str],
        decode_value: Callable[[bytes], str],
    ) -> tuple[Callable[[str], bytes], Callable[[bytes], str], Callable[[bytes], str]]:
        """Return functions that give and take the very objects of the canaries."""
        raw_names = {id(canary.name): canary.raw_name for canary in self._canaries}
        names = {id(canary.raw_name): canary.name for canary in self._canaries}
        values = {id(canary.raw_value): canary.value for canary in self._canaries}
        return (
            lambda name: raw_names.get(id(name)) or encode_key(name),
            lambda raw: names.get(id(raw)) or decode_key(raw),
            lambda raw: values.get(id(raw)) or decode_value(raw),
        )


class _Recording(dict[bytes, bytes]):
    """The content of ``os.environ``, which records what is looked up.

    A canary is found by the object that a walk gives for its name, by no other of the same text.
    """

    def __init__(
        self, content: dict[bytes, bytes], canaries: list[_Canary], reads: set[str]
    ) -> None:
        super().__init__({one.raw_name: one.raw_value for one in canaries} | content)
        self._names = {id(one.raw_value): one.raw_name for one in canaries}
        self._reads = reads

    def __getitem__(self, key: bytes) -> Any:
        name = self._names.get(id(self.get(key)))
        if name is not None and name is key:
            return self.get(key)
        self._reads.add(os.fsdecode(key))
        if name is not None:
            raise KeyError(key)
        return super().__getitem__(key)

    def __delitem__(self, key: bytes) -> None:
        name = self._names.get(id(self.get(key)))
        if name is not None and name is not key:
            raise KeyError(key)
        super().__delitem__(key)
