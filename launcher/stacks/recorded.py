"""A summary of a rank's dumps of NCCL's flight recorders; the dumps themselves are never sent.

The file is a pickle (``FlightRecorderDetail.hpp`` in torch, format 2.10), and a worker can write
anything to it. So it is not unpickled: the reader supports the few operations that torch's pickler
uses for dictionaries, lists, tuples, strings and numbers, and rejects all others. None of these
calls or imports anything.

Since torch 2.15 a backend need not record collectives itself: a hook of torch does (nccl2,
nccl-lazy), into a recorder for each backend. Its records end less precisely than with the backends
in ``_OWN_RECORDERS``. ``_unseen`` lists the cases in which a rank may wait for others although
nothing is pending in its dumps.
"""

import io
import pickle
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ...rendezvous.protocol.bounds import COUNT_MAX
from ...rendezvous.protocol.collectives import (
    GROUPS_MAX,
    TEXT_MAX,
    GroupCollectives,
    RankCollectives,
)
from ..processes.regular_file import head_of_file

FILE_MAX_BYTES = 64 << 20
"""A dump of the default 2,000 collectives has about 2 MB."""
_PEERS_MAX = 64
_PEER = re.compile(r"(?:send|recv) [0-9]{1,9}(?:->|<-)([0-9]{1,9})$")
_SAME_SIZE = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")
"""Collectives to which all ranks bring tensors of the same size and type."""
_OWN_RECORDERS = ("nccl", "gloo")
"""Backends that record collectives themselves; gloo retires completed collectives."""
_OPCODES = (
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.EMPTY_DICT, pickle.EMPTY_LIST),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.BINUNICODE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.BINFLOAT, pickle.NEWTRUE, pickle.NEWFALSE, pickle.NONE, pickle.APPEND),
    *(pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS, pickle.BINPUT, pickle.LONG_BINPUT),
    *(pickle.BINGET, pickle.LONG_BINGET),
)


_FAULTS = (
    *(pickle.UnpicklingError, KeyError, IndexError, TypeError, ValueError, AttributeError),
    *(EOFError, RecursionError, MemoryError, OverflowError),
)


class BadDumpError(Exception):
    """Raised if a file is not a complete dump of the flight recorder, or is too long."""


_UNPICKLER: Any = pickle._Unpickler  # the Python version, whose methods can be replaced


class _Reader(_UNPICKLER):  # type: ignore[misc]  # not in typeshed
    dispatch: ClassVar = {code[0]: _UNPICKLER.dispatch[code[0]] for code in _OPCODES}

    def load_setitem(self) -> None:
        _text(self.stack[-2])  # the hash of a tuple in a tuple in … would overflow C's stack
        super().load_setitem()

    dispatch[pickle.SETITEM[0]] = load_setitem

    def load_setitems(self) -> None:
        for key in self.stack[::2]:  # from the mark on
            _text(key)
        super().load_setitems()

    dispatch[pickle.SETITEMS[0]] = load_setitems


Dump = Mapping[str, Any]


def read(path: str) -> Dump:
    """Return the content of a file; raises ``BadDumpError``."""
    data = head_of_file(path, FILE_MAX_BYTES + 1)
    if data is None:
        raise BadDumpError
    return parse(data)


def parse(data: bytes) -> Dump:
    """Return the content of a dump; raises ``BadDumpError``."""
    if len(data) > FILE_MAX_BYTES:
        raise BadDumpError
    try:
        dump = _Reader(io.BytesIO(data)).load()
    except _FAULTS as error:
        raise BadDumpError from error
    if not isinstance(dump, dict):
        raise BadDumpError
    return dump


def backends_of(dump: Dump) -> frozenset[str]:
    """Return the backends that have recorded the entries of a dump; raises ``BadDumpError``."""
    try:
        return frozenset(map(_backend, dump.get("entries", [])))
    except _FAULTS as error:
        raise BadDumpError from error


def summary(dump: Dump, most: int = GROUPS_MAX) -> RankCollectives:
    """Return ``merged`` of the only dump of a rank; its other backends are unknown."""
    return merged(dict.fromkeys(backends_of(dump) or {""}, dump), (), most)


def merged(
    dumps: Mapping[str, Dump], backends: Collection[str], most: int = GROUPS_MAX
) -> RankCollectives:
    """Return the process groups of a rank, and the ranks that it exchanges tensors with.

    Args:
        dumps: the dump of each recorder of the rank, by the name of its backend.
        backends: the backends of the rank's process groups; empty if unknown.
        most: maximum number of groups; groups with pending collectives are preferred.

    Raises:
        BadDumpError: If a dump does not have the fields that torch writes.
    """
    try:
        return _merged(dumps, backends, most)
    except _FAULTS as error:
        raise BadDumpError from error


def _merged(dumps: Mapping[str, Dump], backends: Collection[str], most: int) -> RankCollectives:
    found: list[GroupCollectives] = []
    peers: set[int] = set()
    is_whole = True
    for dump in {id(dump): dump for dump in dumps.values()}.values():
        entries = dump.get("entries", [])
        is_whole &= not entries or entries[0]["record_id"] == 0
        members = {
            name: [int(rank) for rank in re.findall(r"[0-9]{1,9}", str(config["ranks"]))]
            for name, config in dump.get("pg_config", {}).items()
        }
        found += _groups(entries, members)
        peers.update(_awaited_peers(entries, members))
    found.sort(key=lambda group: (not group.pending, group.group))
    return RankCollectives(
        tuple(found[:most]),
        tuple(sorted(peers))[:_PEERS_MAX],
        is_whole and len(found) <= most,
        _unseen(dumps, backends)[:TEXT_MAX],
    )


def _unseen(dumps: Mapping[str, Dump], backends: Collection[str]) -> str:
    """Return why a rank may wait although nothing is pending in its dumps; empty if it cannot."""
    if missing := sorted(set(backends) - dumps.keys()):
        return f"the process groups of {' and '.join(map(_named, missing))} are not recorded"
    for backend, dump in sorted(dumps.items()):
        entries = [one for one in dump.get("entries", []) if _backend(one) == backend]
        if backend in _OWN_RECORDERS or not entries:
            continue
        if any(entry["retired"] and entry["state"] != "completed" for entry in entries):
            return f"{_named(backend)} does not record the end of its collectives"
        if _ends_with_exchange(entries):
            return f"{_named(backend)} does not record the end of batched sends and receives"
        if not backends:
            return f"process groups of other backends than {_named(backend)} may not be recorded"
    return ""


def _ends_with_exchange(entries: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether some group has completed a send or receive after its last collective.

    A batched one is completed when it is issued. A later collective of its group proves its end.
    """
    last: dict[tuple[str, str], bool] = {}
    for entry in entries:
        if entry["state"] == "completed":
            name, description = map(_text, entry["process_group"])
            last[name, description] = bool(entry["is_p2p"])
    return any(last.values())


def _backend(entry: Mapping[str, Any]) -> str:
    return str(entry["profiling_name"]).rpartition(":")[0]


def _named(backend: str) -> str:
    return backend if re.fullmatch(r"[\w.-]{1,30}", backend) else "another backend"


def _groups(
    entries: Iterable[Mapping[str, Any]], members: Mapping[str, Sequence[int]]
) -> Iterator[GroupCollectives]:
    groups: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for entry in entries:
        name, description = map(_text, entry["process_group"])
        if not entry["is_p2p"]:  # the last of coalesced calls has the state of all
            groups.setdefault((name, description), {})[int(entry["collective_seq_id"])] = entry
    for (name, description), recorded in groups.items():
        yield _group(f"{name}:{description}"[:TEXT_MAX], members.get(name, []), recorded)


def _awaited_peers(
    entries: Iterable[Mapping[str, Any]], members: Mapping[str, Sequence[int]]
) -> Iterator[int]:
    exchanges: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["is_p2p"]:
            name, _ = map(_text, entry["process_group"])
            exchanges.setdefault((name, int(entry["p2p_seq_id"])), []).append(entry)
    for (name, _), together in exchanges.items():
        ranks = members.get(name, ())
        if not _is_done(together[-1]):
            yield from (ranks[peer] for peer in _peers(together) if peer < len(ranks))


def _group(
    name: str, members: Sequence[int], recorded: Mapping[int, Mapping[str, Any]]
) -> GroupCollectives:
    pending = min((n for n, entry in recorded.items() if not _is_done(entry)), default=0)
    entered = max(recorded)
    entry = recorded[pending or entered]
    operation = str(entry["profiling_name"]).rpartition(":")[2]
    if operation in _SAME_SIZE and len(entry["input_sizes"]) == 1:
        sizes = ", ".join(str(int(size)) for size in entry["input_sizes"][0])
        operation += f" {entry['input_dtypes'][0]}[{sizes}]"
    last, first = (min(max(0, number), COUNT_MAX) for number in (entered, pending))
    return GroupCollectives(name, ranks_text(members), last, first, operation[:TEXT_MAX])


def _is_done(entry: Mapping[str, Any]) -> bool:
    return entry["state"] == "completed" or bool(entry["retired"])


def _peers(together: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    for entry in together:
        if found := _PEER.search(str(entry["profiling_name"])):
            yield int(found[1])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ascending ranks as text: ``0-7``, ``0-56/8``, ``0,3,5``, ``#`` and a digest."""
    if len(ranks) > 2:
        step = ranks[1] - ranks[0]
        if step > 0 and list(ranks) == list(range(ranks[0], ranks[-1] + 1, step)):
            return f"{ranks[0]}-{ranks[-1]}" + (f"/{step}" if step > 1 else "")
    text = ",".join(map(str, ranks))
    return text if len(text) <= TEXT_MAX else f"#{zlib.crc32(text.encode()):08x}"
