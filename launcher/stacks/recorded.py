"""A summary of a rank's dump of NCCL's flight recorder; the dump itself is never sent.

The file is a pickle (``FlightRecorderDetail.hpp`` in torch, format 2.10), and a worker can write
anything to it. So it is not unpickled: the reader supports the few operations that torch's pickler
uses for dictionaries, lists, tuples, texts and numbers, and refuses all others. None of these calls
or imports anything.
"""

import io
import pickle
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
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
    """Raised when a file is no dump of the flight recorder."""


_UNPICKLER: Any = pickle._Unpickler  # the one in Python, not in C


class _Reader(_UNPICKLER):  # type: ignore[misc]  # typeshed has it not
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


def read(path: str) -> Mapping[str, Any]:
    """Return the content of a dump.

    Raises:
        BadDumpError: it is something else, or too long.
    """
    data = head_of_file(path, FILE_MAX_BYTES + 1)
    if data is None or len(data) > FILE_MAX_BYTES:
        raise BadDumpError
    try:
        dump = _Reader(io.BytesIO(data)).load()
    except _FAULTS as error:
        raise BadDumpError from error
    if not isinstance(dump, dict):
        raise BadDumpError
    return dump


def summary(dump: Mapping[str, Any], most: int = GROUPS_MAX) -> RankCollectives:
    """Return the process groups of a rank, and the ranks that it exchanges tensors with.

    Args:
        dump: from ``read``.
        most: how many groups to return; groups with pending collectives are preferred.

    Raises:
        BadDumpError: the dump has not the fields that torch writes.
    """
    try:
        return _summary(dump, most)
    except _FAULTS as error:
        raise BadDumpError from error


def _summary(dump: Mapping[str, Any], most: int) -> RankCollectives:
    entries = dump.get("entries", [])
    members = {
        name: [int(rank) for rank in re.findall(r"[0-9]{1,9}", str(config["ranks"]))]
        for name, config in dump.get("pg_config", {}).items()
    }
    groups: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    exchanges: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for entry in entries:
        name, description = map(_text, entry["process_group"])
        if entry["is_p2p"]:
            exchanges.setdefault((name, int(entry["p2p_seq_id"])), []).append(entry)
        else:  # of calls that were made together the last has the state of all
            groups.setdefault((name, description), {})[int(entry["collective_seq_id"])] = entry
    found = [
        _group(f"{name}:{description}"[:TEXT_MAX], members.get(name, []), recorded)
        for (name, description), recorded in groups.items()
    ]
    found.sort(key=lambda group: (not group.pending, group.group))
    peers = {
        members[name][peer]
        for (name, _), together in exchanges.items()
        if not _is_done(together[-1])
        for peer in _peers(together)
        if peer < len(members.get(name, ()))
    }
    is_whole = not entries or entries[0]["record_id"] == 0
    return RankCollectives(
        tuple(found[:most]),
        tuple(sorted(peers))[:_PEERS_MAX],
        bool(is_whole) and len(found) <= most,
    )


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
