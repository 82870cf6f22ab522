"""Which objects in the state are the same on all ranks, and which are local to each rank.

In memory, an object has the same name on each rank. In a checkpoint, the name of a local object
starts with the rank and the number of ranks.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from ..ranks import Ranks

Path = tuple[str | int, ...]
"""Keys of a value in a nested state dict."""
_LOCAL = re.compile(r"ft_run_local\.(\d+)-of-(\d+)\.([^.]+)")
"""Name of a local object in a checkpoint."""


class WorldSizeError(RuntimeError):
    """Raised if local state was saved with a different number of ranks."""


class Place(NamedTuple):
    """The object and rank that a name in a checkpoint belongs to."""

    name: str
    rank: int | None = None
    """None if the object is not local."""
    size: int = 0


class Kinds(NamedTuple):
    """The objects of this rank that are not the same on all ranks."""

    rank: int = 0
    size: int = 1
    local: frozenset[str] = frozenset()
    """Objects that each rank has separately."""
    partial: frozenset[str] = frozenset()
    """Objects that other ranks do not have."""
    known: frozenset[int] = frozenset()
    """Hashes of the names on all ranks."""
    has_local: bool = False
    """Whether any rank has a local object."""

    @property
    def is_fixed(self) -> bool:
        """Whether only the same number of ranks can load the state."""
        return self.has_local

    def exists(self, name: str) -> bool:
        """Return whether any rank has an object of this name."""
        return _hash_of(name) in self.known

    def in_checkpoint(self, nested: Mapping[str, Any]) -> dict[str, Any]:
        """Rename the objects of a nested state dict for a checkpoint, in the same order."""
        start = f"ft_run_local.{self.rank}-of-{self.size}."
        return {
            f"{start}{name}" if name in self.local else name: value
            for name, value in nested.items()
        }

    def check_size(self, saved: Iterable[Place]) -> None:
        """Raise ``WorldSizeError`` if local objects were saved with a different number of ranks."""
        for name, rank, size in saved:
            if rank is not None and size != self.size and self.exists(name):
                raise WorldSizeError(
                    f"each of {size} ranks has saved its own {name!r}, and this job has "
                    f"{self.size}: expected {size} ranks"
                )

    def in_memory(self, saved: Mapping[str, Path]) -> dict[str, Path]:
        """Return the paths in memory of this rank's values, from their paths in a checkpoint.

        Raises:
            RuntimeError: If an object is local in the checkpoint or in the script, but not in both.
        """
        found = {}
        for key, (first, *rest) in saved.items():
            name, rank, _ = place_of(str(first))
            if rank not in (None, self.rank) or (rank is not None and not self.exists(name)):
                continue
            if rank is None and name in self.local:
                raise RuntimeError(
                    f"{name!r} was saved once for all ranks, and local= states that each rank has "
                    "its own: expected another folder"
                )
            if rank is not None and name not in self.local:
                raise RuntimeError(f"each rank has saved its own {name!r}: pass local=[{name!r}]")
            found[key] = (name, *rest)
        return found


SAME = Kinds()
"""All objects are the same on all ranks."""


def place_of(name: str) -> Place:
    """Return the object that a name in a checkpoint belongs to."""
    match = _LOCAL.fullmatch(name)
    return Place(match[3], int(match[1]), int(match[2])) if match else Place(name)


def find_kinds(
    ranks: Ranks,
    parameters: Mapping[str, frozenset[int]],
    optimizers: Collection[str],
    local: Collection[str],
) -> Kinds:
    """Return the kinds of this rank's objects. All ranks call it together.

    Objects that only rank 0 has are not local, unless others are, so that other ranks can still be
    replaced and their number can change.

    Args:
        parameters: identities of the parameters of each object, by name.
        optimizers: optimizers are local if one of their parameters belongs to a local object.
        local: names of objects that each rank has separately.

    Raises:
        TypeError: If ``local`` is not a list of names.
        ValueError: If no rank has an object of a name in ``local``.
    """
    if isinstance(local, str) or not all(isinstance(name, str) for name in local):
        raise TypeError(f"invalid value {local!r} for local: expected a list of names in state")
    rows = _gather(ranks, parameters)
    known = frozenset().union(*rows)
    unknown = next((name for name in local if _hash_of(name) not in known), None)
    if (found := ranks.first_text(unknown)) is not None:
        names = ", ".join(map(repr, parameters))
        raise ValueError(f"invalid name {found!r} in local: expected names in state ({names})")
    everywhere = rows[0].intersection(*rows[1:])
    partial = frozenset(name for name in parameters if _hash_of(name) not in everywhere)
    declared = frozenset().union(*_gather(ranks, local))
    of_rank_0 = rows[0].difference(*rows[1:]) - declared if ranks.size > 1 else frozenset()
    mine = {n for n in parameters if _hash_of(n) in declared or n in partial} - {
        n for n in parameters if _hash_of(n) in of_rank_0
    }
    trained = {one for name in mine for one in parameters[name]}
    mine |= {name for name in optimizers if not trained.isdisjoint(parameters[name])}
    everyone = frozenset().union(*_gather(ranks, mine))
    if everyone:  # files of all ranks are needed anyway
        everyone |= of_rank_0
    own = frozenset(name for name in parameters if _hash_of(name) in everyone)
    return Kinds(ranks.rank, ranks.size, own, partial, known, bool(everyone))


def check_modules(ranks: Ranks, types: Mapping[str, type], modules: Collection[str]) -> None:
    """Raise ``TypeError`` if an object is a module on some ranks and something else on others.

    All ranks call it together. ``types`` are those of the objects that are not local, by name.
    """
    known = frozenset().union(*_gather(ranks, modules))
    other = next((n for n in sorted(types) if n not in modules and _hash_of(n) in known), None)
    wrong = None if other is None else f"type {types[other].__name__} for state[{other!r}]"
    if (found := ranks.first_text(wrong)) is not None:
        raise TypeError(
            f"invalid value of {found}, which is a module on another rank: expected a module on "
            "all ranks, or the name on those ranks only that have one"
        )


def _gather(ranks: Ranks, names: Collection[str]) -> list[frozenset[int]]:
    mine = sorted(map(_hash_of, names))
    (most,) = ranks.maximum(len(mine))
    rows = ranks.all_gather(*mine, *[-1] * (most - len(mine))) if most else [[]] * ranks.size
    return [frozenset(one for one in row if one >= 0) for row in rows]


def _hash_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1
