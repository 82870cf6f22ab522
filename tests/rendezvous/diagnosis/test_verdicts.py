"""Verdicts on ranks with GPUs: their stacks, and dumps of NCCL's flight recorder.

``dumps/gpu/verdicts.txt`` is the table, and ``nccl2.txt`` that of the backends of torch 2.15. The
dumps are made in the format of torch 2.13, which 2.15 has too. Those of ``recorded.RANK`` were
written by torch itself (gloo, three ranks, of which rank 2 does not enter the last all-reduce), and
those of ``nccl2/`` by torch 2.15 (``nccl2/record.py``).
"""

import argparse
import os
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ft_run.launcher.stacks import recorded as reading
from ft_run.launcher.stacks.dump import main_thread
from ft_run.launcher.stacks.recorded import BadDumpError, ranks_text, read, summary
from ft_run.rendezvous.diagnosis.hang import HangKind, HangVerdict, judge
from ft_run.rendezvous.diagnosis.suspicion import failure_of
from ft_run.rendezvous.protocol.collectives import GroupCollectives, RankCollectives
from ft_run.rendezvous.protocol.stacks import RankStack, RankState
from msgspec.structs import replace

FOLDER = Path(__file__).parent / "dumps" / "gpu"
STATES = {
    "stopped": RankState.STOPPED,
    "D": RankState.UNINTERRUPTIBLE,
    "silent": RankState.SILENT,
}
Dump = dict[str, Any]


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for run in text.split(","):
        low, _, high = run.partition("-")
        high, _, step = high.partition("/")
        found += range(int(low), int(high or low) + 1, int(step or 1))
    return found


def entry(
    record: int, name: str, number: int, operation: str, *, is_done: bool, backend: str = "nccl"
) -> Dump:
    """Return what torch records of a collective."""
    operation, _, size = operation.partition(" ")
    name, _, description = name.partition(":")
    return {
        "frames": [{"name": operation, "filename": "/x/train.py", "line": 4}],
        "record_id": record,
        "pg_id": int(name),
        "process_group": (name, description),
        "thread_name": "pt_main_thread",
        "thread_id": "140589163436928",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"{backend}:{operation}",
        "time_created_ns": 1795603601504618758,
        "input_sizes": [[int(size or 4)]],
        "input_dtypes": ["Float"],
        "output_sizes": [[int(size or 4)]],
        "output_dtypes": ["Float"],
        "state": "completed" if is_done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1795603601504618759 if is_done else None,
        "retired": is_done,
        "timeout_ms": 600000,
        "is_p2p": False,
    }


@dataclass
class Case:
    """One paragraph of the table."""

    places: dict[int, str] = field(default_factory=dict)
    dumps: dict[int, dict[str, Dump]] = field(default_factory=dict)
    """Of each rank, by the backend that has recorded it."""
    backends: dict[int, set[str]] = field(default_factory=dict)
    """Of each rank's groups."""
    expected: str = ""
    says: str = ""

    def read(self, lines: list[str]) -> None:
        backend, group, members = "", "", ""
        for line in lines:
            first, _, rest = line.partition(" ")
            if first == "->":
                self.expected = rest
            elif first == "says":
                self.says = rest
            elif first in ("nccl", "nccl2", "nccl-lazy"):
                backend, (group, members) = first, rest.split()
                for rank in self.places if backend == "nccl" else numbers(members):
                    self.dumps.setdefault(rank, {}).setdefault(backend, new_dump())
                    self.backends.setdefault(rank, set()).add(backend)
            elif first in ("p2p", "batched"):
                self.exchange(backend, group, members, first, *rest.split(maxsplit=1))
            elif first == "issued":
                self.issue(backend, group, members, *rest.split(maxsplit=2))
            elif first == "none":
                without, _, which = rest.partition(" ")
                self.dumps[int(without)].pop(which or backend)
            elif first == "late":
                late = entry(5000, "9:old", 1, "all_reduce", is_done=True)
                self.dumps[int(rest)][backend]["entries"].append(late)
            elif group:
                for rank in numbers(first):
                    self.record(backend, rank, group, members, *rest.split(maxsplit=2))
            else:
                self.places.update(dict.fromkeys(numbers(first), rest))

    def _dump(self, backend: str, rank: int, group: str, members: str) -> Dump:
        dump = self.dumps[rank][backend]
        name, _, description = group.partition(":")
        config = {"name": name, "desc": description, "ranks": str(numbers(members))}
        dump["pg_config"][name] = config
        return dump

    def record(
        self,
        backend: str,
        rank: int,
        group: str,
        members: str,
        entered: str,
        pending: str,
        operation: str,
    ) -> None:
        first = int(pending.replace("-", "0"))
        entries = self._dump(backend, rank, group, members)["entries"]
        begin = max(1, (first or int(entered)) - 3)
        for number in range(begin, int(entered) + 1):
            is_this = number == (first or int(entered))
            what = operation if is_this else "all_reduce"
            done = not first or number < first
            one = entry(len(entries), group, number, what, is_done=done, backend=backend)
            entries.append(one)

    def issue(self, backend: str, group: str, members: str, ranks: str, to: str, what: str) -> None:
        """Of a backend without completion hooks: retired when it is issued."""
        for rank in numbers(ranks):
            entries = self._dump(backend, rank, group, members)["entries"]
            for number in range(1, int(to) + 1):
                one = entry(len(entries), group, number, what, is_done=False, backend=backend)
                entries.append(one | {"retired": True})

    def exchange(
        self, backend: str, group: str, members: str, how: str, rank: str, what: str
    ) -> None:
        """A send or recv that is not complete, or a batched one: complete when it is issued."""
        entries = self._dump(backend, int(rank), group, members)["entries"]
        one = entry(len(entries), group, 1, "p2p", is_done=how == "batched", backend=backend)
        number = 1 + sum(other["is_p2p"] for other in entries)
        one |= {"is_p2p": True, "p2p_seq_id": number, "profiling_name": f"{backend}:{what}"}
        entries.append(one)


def new_dump() -> Dump:
    return {
        "version": "2.10",
        "pg_config": {},
        "comm_lib_version": "2.28.9",
        "pg_status": {},
        "entries": [],
    }


def cases(table: str = "verdicts.txt") -> Iterator[Any]:
    text = re.sub(r"^#.*\n", "", (FOLDER / table).read_text(), flags=re.MULTILINE)
    for paragraph in text.strip().split("\n\n"):
        title, *lines = paragraph.splitlines()
        case = Case()
        case.read(lines)
        yield pytest.param(case, id=title.partition(":")[0])


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    source = tmp_path_factory.mktemp("job") / "train.py"
    source.write_text((FOLDER / "train.py.txt").read_text())
    text = (FOLDER / "places.txt").read_text().replace('"train.py"', f'"{source}"')
    found = re.split(r"^# (\S+)\n", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def stacks_of(case: Case, places: dict[str, str], folder: Path) -> list[RankStack]:
    """Return the stacks of a case, as the agents send them."""
    found = []
    for rank, place in sorted(case.places.items()):
        state = STATES.get(place, RankState.ANSWERED)
        frames = main_thread(places[place]) if state is RankState.ANSWERED else ()
        assert frames or place in STATES
        recorded, dumps = None, {}
        for backend, dump in case.dumps.get(rank, {}).items():
            path = folder / f"dump_{rank}.{backend}"
            path.write_bytes(pickle.dumps(dump, protocol=2))
            dumps[backend] = read(str(path))
        if dumps:  # torch 2.13 has one recorder, and its groups are not noted
            backends = case.backends[rank]
            recorded = reading.merged(dumps, () if backends == {"nccl"} else backends)
        stack = RankStack(rank, rank // 8, f"gpu0{rank // 8}", state, frames, 12, "", 12)
        found.append(replace(stack, uses_gpu=True, collectives=recorded))
    return found


def text_of(verdict: HangVerdict) -> str:
    if verdict.kind in (HangKind.PROCESS, HangKind.RANK):
        return "rank " + ",".join(map(str, verdict.culprits))
    return verdict.kind.name.lower()


@pytest.mark.parametrize("case", [*cases(), *cases("nccl2.txt")])
def test_verdicts(case: Case, places: dict[str, str], tmp_path: Path) -> None:
    stacks = stacks_of(case, places, tmp_path)
    verdict = judge(stacks, 61)
    assert text_of(verdict) == case.expected, verdict.words
    failure = failure_of(verdict, stacks)
    assert case.says in f"{verdict.words}\n{failure.stderr_tail}"
    nodes = {rank // 8 for rank in numbers(case.expected.partition("rank ")[2] or "0-8")}
    # What no rank is known to have caused replaces no node.
    assert failure.node_rank == (min(nodes) if len(nodes) == 1 else -1)


def test_there_are_enough() -> None:
    assert len(list(cases())) >= 40
    assert len(list(cases("nccl2.txt"))) >= 20


def test_no_node_is_replaced_where_no_rank_is_known(places: dict[str, str], tmp_path: Path) -> None:
    case = Case()
    case.read(["0 synchronize", "1-15 backward"])
    stacks = stacks_of(case, places, tmp_path)
    verdict = judge(stacks, 61)
    assert verdict.words.startswith(
        "it is not known which rank hangs: rank 0 on node 0 (gpu00) is in synchronize at train.py:5"
    )
    assert (failure_of(verdict, stacks).rank, failure_of(verdict, stacks).node_rank) == (-1, -1)


def test_without_a_gpu_stacks_are_believed(places: dict[str, str], tmp_path: Path) -> None:
    case = Case()
    case.read(["0 sleep", "1-3 all_reduce"])
    stacks = [replace(one, uses_gpu=False) for one in stacks_of(case, places, tmp_path)]
    assert text_of(judge(stacks, 61)) == "rank 0"
    assert text_of(judge([replace(one, uses_gpu=True) for one in stacks], 61)) == "unknown"


def test_dumps_that_torch_has_written() -> None:
    group = GroupCollectives("0:default_pg", "", 5, 5, "all_reduce Float[4]")
    other = GroupCollectives("1:undefined", "", 1, 0, "broadcast Float[4]")
    assert summary(read(str(FOLDER / "recorded.0"))) == RankCollectives((group, other), (), True)
    behind = GroupCollectives("0:default_pg", "", 4, 0, "barrier")
    assert summary(read(str(FOLDER / "recorded.2"))) == RankCollectives((behind,), (), True)


WRITTEN = [
    ("missing", ("nccl2",), "rank 2"),
    ("single", ("nccl2",), "rank 0"),
    ("batched", ("nccl2",), "unknown"),
    ("two", ("nccl2", "nccl-lazy"), "rank 0"),
    ("two", ("nccl2",), "unknown"),
    ("python", ("nccl2",), "unknown"),
]
"""Jobs of ``record.py``, the backends whose dumps are read, and the verdict."""


@pytest.mark.parametrize(("job", "read_of", "expected"), WRITTEN)
def test_dumps_that_torch_2_15_has_written(
    job: str, read_of: tuple[str, ...], expected: str, places: dict[str, str], tmp_path: Path
) -> None:
    case = Case()
    case.read(["0 launch", "1 item", "2 synchronize"])
    backends = {path.suffixes[0][1:] for path in (FOLDER / "nccl2").glob(f"{job}.*.0")}
    assert backends >= {*read_of}
    stacks = [
        replace(
            stack,
            collectives=reading.merged(
                {one: read(f"{FOLDER}/nccl2/{job}.{one}.{stack.rank}") for one in read_of}, backends
            ),
        )
        for stack in stacks_of(case, places, tmp_path)
    ]
    assert text_of(judge(stacks, 61)) == expected


def test_dumps_are_what_torch_writes(tmp_path: Path) -> None:
    """Those of the table have the fields of those that were recorded."""
    with open(FOLDER / "recorded.0", "rb") as file:
        recorded = pickle.load(file)
    assert recorded["entries"][0].keys() == entry(0, "0:x", 1, "all_reduce", is_done=True).keys()
    assert recorded.keys() == new_dump().keys()
    with open(FOLDER / "nccl2" / "missing.nccl2.0", "rb") as file:
        hooked = pickle.load(file)
    assert hooked.keys() == new_dump().keys()
    fields = recorded["entries"][0].keys()
    assert {*hooked["entries"][0]} == {*fields} - {"frames"}, "the server dumps no frames"


DEEP = b"K\x01" + b"\x85" * 200_000
"""A tuple in a tuple in …: its hash would end the process."""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02K\x01.",
        b"cos\nsystem\n(S'false'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02}" + DEEP + b"K\x01s.",
        b"\x80\x02}(" + DEEP + b"K\x01u.",
        b"\x80\x02X\xff\xff\xff\x7f.",
        pickle.dumps({"entries": [{"process_group": "x"}]}, protocol=2),
        pickle.dumps({"entries": [{"process_group": ((1, 2), "")}]}, protocol=2),
        pickle.dumps({"entries": 7}, protocol=2),
        pickle.dumps({"entries": [], "pg_config": {"0": {}}}, protocol=2),
    ],
)
def test_what_is_no_dump_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(data)
    with pytest.raises(BadDumpError):
        summary(read(str(path)))


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(FOLDER / "recorded.0")
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "pipe", "r+b", buffering=0) as pipe:
        pipe.write((FOLDER / "recorded.0").read_bytes())
        for name in ("link", "pipe", "none"):
            with pytest.raises(BadDumpError):
                read(str(tmp_path / name))


def test_dumps_that_are_too_long_are_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = (FOLDER / "recorded.0").read_bytes()
    path = tmp_path / "dump"
    monkeypatch.setattr(reading, "FILE_MAX_BYTES", len(data))
    path.write_bytes(data)
    assert read(str(path))
    path.write_bytes(data + b"x")
    with pytest.raises(BadDumpError):
        read(str(path))


def test_of_many_groups_those_that_are_pending_are_kept() -> None:
    dump = new_dump()
    dump["entries"] = [
        entry(0, "0:a", 1, "barrier", is_done=True),
        entry(1, "1:b", 1, "barrier", is_done=False),
    ]
    pending = GroupCollectives("1:b", "", 1, 1, "barrier")
    done = GroupCollectives("0:a", "", 1, 0, "barrier")
    assert summary(dump) == RankCollectives((pending, done), (), True)
    assert summary(dump, 1) == RankCollectives((pending,), (), False)


def test_calls_that_were_made_together_have_the_state_of_the_last(tmp_path: Path) -> None:
    dump = new_dump()
    first = entry(0, "0:dp", 1, "all_gather", is_done=False)
    dump["entries"] = [first, entry(1, "0:dp", 1, "coalesced", is_done=True)]
    assert summary(dump).groups == (GroupCollectives("0:dp", "", 1, 0, "coalesced"),)


def test_of_several_tensors_sizes_are_not_compared() -> None:
    dump = new_dump()
    dump["entries"] = [entry(0, "0:dp", 1, "all_reduce", is_done=False)]
    assert summary(dump).groups[0].operation == "all_reduce Float[4]"
    dump["entries"][0]["input_sizes"] = [[4], [2]]
    assert summary(dump).groups[0].operation == "all_reduce"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0, 1, 2, 3], "0-3"),
        ([0, 8, 16], "0-16/8"),
        ([0, 5], "0,5"),
        ([0, 3, 4], "0,3,4"),
        ([5, 5, 5], "5,5,5"),
        ([*range(0, 900, 7), 901], "#5fe2d6d6"),
    ],
)
def test_ranks_as_text(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


NCCL_ONLY = ("never-entered", "missing-collective-on-two-nodes", "dead-link", "different-sizes")


@pytest.mark.parametrize("case", [one for one in cases() if one.id in NCCL_ONLY])
def test_torchs_own_analysis_agrees(case: Any, places: dict[str, str], tmp_path: Path) -> None:
    """``torchfrtrace`` lists missing ranks of the first collective that is not complete."""
    from torch.distributed.flight_recorder.components.builder import build_db

    details = {str(rank): {**dumps["nccl"], "rank": rank} for rank, dumps in case.dumps.items()}
    arguments = argparse.Namespace(
        **dict.fromkeys(("verbose", "just_print_entries", "print_stack_trace"), False),
        mismatch_cap=10,
        allow_incomplete_ranks=True,
    )
    for dump in details.values():
        for one in dump["entries"]:
            one["pg_id"] = int(one["process_group"][0])
    database = build_db(details, arguments, "2.10")
    last = database.collectives[-1]
    verdict = judge(stacks_of(case, places, tmp_path), 61)
    if verdict.kind is HangKind.RANK:
        assert last.missing_ranks == set(verdict.culprits)
    elif verdict.kind is HangKind.ALL:
        assert last.missing_ranks is None
        assert last.collective_state == "scheduled"
    else:
        assert last.mismatch_collectives
