"""Whether ranks that are late hang: what two looks at all stacks say together."""

import pytest
from ft_run.rendezvous.diagnosis.hang import HangKind
from ft_run.rendezvous.diagnosis.suspicion import compare, failure_of, stacks_text
from ft_run.rendezvous.protocol.failure import FailureKind
from ft_run.rendezvous.protocol.stacks import Frame, RankStack, RankState
from msgspec.structs import replace

START_S = 1800.0
SILENT = RankState.SILENT
MAIN = Frame("train.py", 95, "<module>", source="main()")


def reads(rank: int, line: int = 41, *inner: Frame, ticks: int = 12) -> RankStack:
    """A rank in a line of the user's own."""
    frames = (*inner, Frame("dataset.py", line, "read", source="file.read()"), MAIN)
    return RankStack(rank, rank, f"gpu0{rank}", RankState.ANSWERED, frames, ticks, "", ticks)


def waits(rank: int, ticks: int = 12) -> RankStack:
    """A rank that waits for the others."""
    library = Frame("torch/distributed/distributed_c10d.py", 1, "all_reduce", is_library=True)
    return replace(reads(rank, ticks=ticks), frames=(library, Frame("train.py", 88, "main"), MAIN))


def stopped(rank: int, remark: str = "by a signal") -> RankStack:
    return replace(reads(rank), state=RankState.STOPPED, frames=(), remark=remark)


def library(file: str) -> Frame:
    return Frame(file, 1, "call", is_library=True)


def words(before: list[RankStack], after: list[RankStack], late: set[int]) -> str:
    found = compare([before, after], {rank: 312.0 + rank for rank in late}, START_S)
    assert found.verdict is None
    return found.words


def test_where_no_rank_moves_the_stacks_are_judged() -> None:
    stacks = [waits(0), reads(1), waits(2)]
    found = compare([stacks, stacks], {0: 70.0, 1: 71.0}, START_S)
    assert found.verdict is not None
    assert found.verdict.culprits == (1,)
    assert found.verdict.words.endswith("; no step for 70 s (step 12)")
    assert not found.is_alone


@pytest.mark.parametrize("late", [{0}, {0, 1}])
def test_a_rank_that_moves_is_named_and_nothing_hangs(late: set[int]) -> None:
    said = words([waits(0), reads(1)], [waits(0), reads(1, 42)], late)
    assert said == "no step for 312 s, but rank 1 is making progress: dataset.py:42"


def test_a_rank_that_moves_below_one_line_of_the_script_moves() -> None:
    before = [waits(0), reads(1, 41, library("torch/nn/linear.py"))]
    after = [waits(0), reads(1, 41, library("torch/nn/relu.py"))]
    assert words(before, after, {0}).endswith("rank 1 is making progress: dataset.py:41")


def test_a_rank_that_is_back_at_its_line_at_the_last_look_has_moved() -> None:
    same = [waits(0), reads(1)]
    found = compare([same, same, [waits(0), reads(1, 42)], same], {0: 70.0}, START_S)
    assert found.verdict is None
    assert found.words.endswith("rank 1 is making progress: dataset.py:41")


def test_a_rank_that_is_slow_to_answer_once_is_taken_by_what_it_says_else() -> None:
    same, silent = [waits(0), reads(1)], [waits(0), replace(reads(1), frames=(), state=SILENT)]
    for looks in ([same, silent, same], [silent, same, silent]):
        found = compare(looks, {0: 70.0}, START_S)
        assert found.verdict is not None
        assert "hangs in read() at dataset.py:41" in found.verdict.words
    moved = compare([same, silent, [waits(0), reads(1, 42)]], {0: 70.0}, START_S)
    assert moved.verdict is None
    moved = compare([silent, same, [waits(0), reads(1, 42)]], {0: 70.0}, START_S)
    assert moved.verdict is None
    found = compare([silent, silent], {0: 70.0}, START_S)
    assert found.verdict is not None
    assert "does not answer" in found.verdict.words


def test_late_ranks_that_have_done_a_step_meanwhile_go_on() -> None:
    before, after = [waits(0), reads(1)], [waits(0, 13), reads(1, ticks=13)]
    assert words(before, after, {0, 1}) == ""


def test_progress_that_is_only_said_is_progress_of_all() -> None:
    after = [reads(0, 7), replace(reads(1), ticks=13)]
    said = words([reads(0, 7), reads(1)], after, {0})
    assert said == "no step for 312 s, but rank 1 is making progress: dataset.py:41"


def test_a_rank_that_has_ended_leaves_nothing_to_say() -> None:
    assert words([waits(0), reads(1)], [waits(0)], {0}) == ""


def test_a_rank_alone_is_judged_while_others_get_on() -> None:
    before = [reads(0), reads(1), reads(2)]
    after = [reads(0, ticks=13), reads(1), reads(2, ticks=15)]
    found = compare([before, after], {1: 61.0}, START_S)
    assert found.verdict is not None
    assert found.is_alone
    assert found.verdict.words == (
        "rank 1 on node 1 (gpu01) hangs in read() at dataset.py:41; no step for 61 s (step 12)"
    )


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(waits(1), id="it has done its part and waits for the others"),
        pytest.param(reads(1, ticks=0), id="it never had steps: it serves or evaluates"),
    ],
)
def test_a_rank_that_need_not_get_on_is_not_judged_while_others_do(late: RankStack) -> None:
    said = words([reads(0), late], [reads(0, ticks=13), late], {1})
    assert said == "no step for 313 s, but rank 0 is making progress: dataset.py:41"


def test_one_of_which_nothing_is_known_is_not_judged_while_others_get_on() -> None:
    unknown = replace(
        reads(1), state=RankState.UNKNOWN, frames=(), remark="the stacks hook was removed"
    )
    before = [reads(0), unknown, waits(2)]
    said = words(before, [reads(0, ticks=13), unknown, waits(2)], {1, 2})
    assert said == "no step for 313 s, but rank 0 is making progress: dataset.py:41"


def test_a_rank_that_moves_alone_does_not_hang() -> None:
    said = words([reads(0), reads(1)], [reads(0, ticks=13), reads(1, 44)], {1})
    assert said == "no step for 313 s, but rank 0 is making progress: dataset.py:41"


@pytest.mark.parametrize(
    "at",
    [
        reads(1, 41, library("pdb.py")),
        reads(1, 41, library("bdb.py"), library("pdb.py")),
        stopped(1, "by a debugger"),
    ],
)
def test_a_rank_in_a_debugger_is_left_alone(at: RankStack) -> None:
    stacks = [waits(0), at]
    assert words(stacks, stacks, {0, 1}).startswith(
        "no step for 312 s, but rank 1 is in a debugger"
    )


def test_a_script_that_is_called_like_a_debugger_is_none() -> None:
    stacks = [waits(0), reads(1, 41, Frame("pdb.py", 3, "fetch"))]
    found = compare([stacks, stacks], {0: 61.0}, START_S)
    assert found.verdict is not None


def test_a_call_that_may_take_long_has_the_time_until_the_first_step() -> None:
    stacks = [waits(0), reads(1, 41, library("torch/serialization.py"))]
    said = words(stacks, stacks, {0, 1})
    assert said == (
        "no step for 312 s, but rank 1 is in a call that may take a long time: dataset.py:41"
    )
    found = compare([stacks, stacks], {0: START_S, 1: START_S}, START_S)
    assert found.verdict is not None
    assert found.verdict.culprits == (1,)


def test_a_stopped_rank_hangs_and_a_stopped_job_does_not() -> None:
    stacks = [waits(0), stopped(1)]
    found = compare([stacks, stacks], {0: 61.0, 1: 61.0}, START_S)
    assert found.verdict is not None
    assert found.verdict.kind is HangKind.PROCESS
    alone = compare([[stopped(0)], [stopped(0)]], {0: 61.0}, START_S)
    assert alone.verdict is not None
    stacks = [stopped(0), stopped(1)]
    assert words(stacks, stacks, {0, 1}) == (
        "no step for 312 s, but all ranks are stopped by a signal"
    )
    stacks = [stopped(0, "by a debugger"), stopped(1, "by a debugger")]
    assert words(stacks, stacks, {0, 1}) == "no step for 312 s, but rank 0 is in a debugger"


def test_a_job_of_which_nothing_is_known_does_not_hang() -> None:
    unknown = RankStack(0, 0, "h", RankState.UNKNOWN, remark="it has ended")
    assert words([unknown], [unknown], {0}) == ""
    # But others may wait for a process that never came to be watched.
    stacks = [unknown, waits(1)]
    found = compare([stacks, stacks], {1: 61.0}, START_S)
    assert found.verdict is not None
    assert found.verdict.culprits == (0,)


@pytest.mark.parametrize(
    ("stacks", "rank", "node_rank", "host"),
    [
        ([waits(0), reads(1), waits(2)], 1, 1, "gpu01"),
        ([waits(0), stopped(1)], 1, 1, "gpu01"),
        # Of several nodes none is known to be at fault, nor of a mismatch; in doubt all are.
        ([waits(0), waits(1), waits(2), reads(3), reads(4)], 3, -1, ""),
        ([reads(0), reads(1, 42)], 0, -1, ""),
        ([waits(0), waits(1)], -1, -1, ""),
    ],
)
def test_a_hang_as_a_failure(stacks: list[RankStack], rank: int, node_rank: int, host: str) -> None:
    found = compare([stacks, stacks], {0: 61.0}, START_S)
    assert found.verdict is not None
    failure = failure_of(found.verdict, stacks)
    assert failure.kind is FailureKind.HANG
    assert (failure.rank, failure.node_rank, failure.host) == (rank, node_rank, host)
    assert failure.summary() == found.verdict.words
    first = min(found.verdict.culprits)
    assert failure.stderr_tail.startswith((f"rank {first} ", f"ranks {first}"))


@pytest.mark.parametrize("hanging", [{1}, {0, 1}])
def test_the_note_of_one_rank_that_hangs_is_named(hanging: set[int]) -> None:
    stacks = [reads(rank) if rank in hanging else waits(rank) for rank in range(3)]
    stacks = [replace(stack, node_rank=0, note=f"doing {stack.rank}") for stack in stacks]
    found = compare([stacks, stacks], {0: 61.0}, START_S)
    assert found.verdict is not None
    note = failure_of(found.verdict, stacks).note
    assert note == ("doing 1" if hanging == {1} else "")
    unclear = replace(found.verdict, kind=HangKind.UNKNOWN)
    assert failure_of(unclear, stacks).note == ""


def test_the_stacks_are_cut_where_they_are_too_long() -> None:
    stacks = [waits(0), reads(1)]
    found = compare([stacks, stacks], {0: 61.0}, START_S)
    assert found.verdict is not None
    whole = stacks_text(found.verdict, stacks)
    assert whole.splitlines() == [
        "rank 1 on node 1 (gpu01) · step 12",
        "  dataset.py:41 read  file.read()",
        "  train.py:95 <module>  main()",
        "rank 0 on node 0 (gpu00) · step 12",
        "  torch/distributed/distributed_c10d.py:1 all_reduce",
        "  train.py:88 main",
        "  train.py:95 <module>  main()",
    ]
    cut = stacks_text(found.verdict, stacks, len(whole) - 1)
    assert cut == whole.rpartition("\n")[0] + "\n…"
