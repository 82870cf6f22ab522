"""The verdict on a hang, from recorded dumps of two ranks (torch 2.13, gloo).

Each was written by ``dumps/job.py.txt`` under two ranks, of which rank 1 is held up at the line
that its name says; ``NAME.RANK.txt`` is what ``faulthandler`` wrote of the rank.
"""

from pathlib import Path

import pytest
from ft_run.launcher.stacks.dump import main_thread
from ft_run.rendezvous.diagnosis.hang import (
    HangKind,
    group_stacks,
    has_moved,
    judge,
    ranks_text,
)
from ft_run.rendezvous.diagnosis.waits import wait_of
from ft_run.rendezvous.protocol.stacks import Frame, RankStack, RankState
from msgspec.structs import replace

DUMPS = Path(__file__).with_name("dumps")


def recorded(name: str, rank: int, source: Path) -> RankStack:
    dump = (DUMPS / f"{name}.{rank}.txt").read_text().replace('"job.py"', f'"{source}"')
    frames = main_thread(dump)
    assert frames
    return RankStack(rank, rank, f"gpu0{rank}", RankState.ANSWERED, frames, steps=12)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The source that the recorded processes ran, where its lines can be read."""
    path = tmp_path / "job.py"
    path.write_text((DUMPS / "job.py.txt").read_text())
    return path


@pytest.mark.parametrize(
    ("name", "own", "waits"),
    [
        ("sleep", "read_batch() at job.py:8", "all_reduce at job.py:13"),
        ("ddp", "read_batch() at job.py:8", "_pre_forward at job.py:18"),
        ("lock", "train() at job.py:28", "barrier at job.py:29"),
        ("fifo", "train() at job.py:40", "all_reduce at job.py:41"),
        ("async", "read_batch() at job.py:8", "wait at job.py:44"),
        ("store", "read_batch() at job.py:8", "get at job.py:47"),
        ("spin", "train() at job.py:57", "all_reduce at job.py:58"),
        ("fsdp", "read_batch() at job.py:8", "all_gather_single at job.py:54"),
        (
            "loader",
            "train() at job.py:37, inside select() of selectors.py",
            "all_reduce at job.py:37",
        ),
    ],
)
def test_the_rank_that_holds_the_others_up_is_named(
    name: str, own: str, waits: str, job: Path
) -> None:
    found = judge([recorded(name, 0, job), recorded(name, 1, job)], 61.4)
    assert found.kind is HangKind.RANK
    assert found.culprits == (1,)
    assert found.words == (
        f"rank 1 on node 1 (gpu01) hangs in {own}; "
        f"1 other rank waits for it in {waits}; no step for 61 s (step 12)"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "barrier",
            "rank 0 on node 0 (gpu00) waits in barrier at job.py:21, "
            "but rank 1 on node 1 (gpu01) waits in all_reduce at job.py:20",
        ),
        (
            "skip",
            "rank 0 on node 0 (gpu00) waits in all_reduce at job.py:23, "
            "but rank 1 on node 1 (gpu01) waits in broadcast at job.py:24",
        ),
    ],
)
def test_ranks_in_different_collectives_are_a_mismatch(name: str, words: str, job: Path) -> None:
    found = judge([recorded(name, 0, job), recorded(name, 1, job)], 61)
    assert found.kind is HangKind.MISMATCH
    assert found.words == f"{words}; no step for 61 s (step 12)"


def world(job: Path, *culprits: RankStack, size: int = 64) -> list[RankStack]:
    """A world in which all but the culprits wait in an all-reduce."""
    waits = recorded("sleep", 0, job)
    stacks = {rank: replace(waits, rank=rank, node_rank=rank // 8) for rank in range(size)}
    return list((stacks | {stack.rank: stack for stack in culprits}).values())


def test_one_of_many(job: Path) -> None:
    culprit = replace(recorded("fifo", 1, job), rank=17, node_rank=2, host="gpu07")
    found = judge(world(job, culprit), 61)
    assert found.culprits == (17,)
    assert found.words == (
        "rank 17 on node 2 (gpu07) hangs in train() at job.py:40; "
        "63 other ranks wait for it in all_reduce at job.py:13; no step for 61 s (step 12)"
    )
    assert [group.ranks for group in found.groups] == [
        (17,),
        tuple(rank for rank in range(64) if rank != 17),
    ]


def test_of_two_places_the_smaller_group_and_then_the_fewest_steps_are_named(job: Path) -> None:
    reading = [replace(recorded("sleep", 1, job), rank=rank) for rank in (3, 4)]
    locked = replace(recorded("lock", 1, job), rank=9)
    assert judge(world(job, *reading, locked), 61).culprits == (9,)
    behind = replace(reading[0], rank=12, steps=11)
    assert judge(world(job, behind, locked), 61).culprits == (12,)


def test_ranks_at_different_places_of_which_none_waits_are_both_named(job: Path) -> None:
    reading = replace(recorded("fifo", 1, job), rank=0, node_rank=0, host="gpu00")
    found = judge([reading, recorded("sleep", 1, job)], 61)
    assert found.kind is HangKind.MISMATCH
    assert found.words == (
        "rank 0 on node 0 (gpu00) is in train() at job.py:40, but rank 1 on node 1 (gpu01) is in "
        "read_batch() at job.py:8; no step for 61 s (step 12)"
    )


def test_of_ranks_that_wait_at_several_places_the_most_are_told(job: Path) -> None:
    later = [replace(recorded("barrier", 0, job), rank=rank) for rank in (4, 5)]
    reading = replace(recorded("fifo", 1, job), rank=9)
    found = judge(world(job, *later, reading), 61)
    assert found.culprits == (9,)
    assert "; 63 other ranks wait for it in all_reduce at job.py:13; " in found.words


def test_of_more_than_two_places_the_others_are_counted(job: Path) -> None:
    others = [replace(recorded("barrier", rank, job), rank=7 + rank) for rank in (0, 1)]
    found = judge(world(job, *others), 61)
    assert found.kind is HangKind.MISMATCH
    assert (
        "but ranks 0-6,9-63 wait in all_reduce at job.py:13, and ranks are at 1 other location(s)"
        in (found.words)
    )


def test_in_the_backward_pass_a_rank_waits_for_others(job: Path) -> None:
    """There DDP reduces, in C, whatever the script's line is."""
    engine = Frame("torch/autograd/graph.py", 869, "_engine_run_backward", is_library=True)
    own = Frame("job.py", 13, "train", source="loss.backward()")
    waits = replace(recorded("sleep", 0, job), frames=(engine, own))
    found = judge([waits, recorded("sleep", 1, job)], 61)
    assert found.culprits == (1,)
    assert "; 1 other rank waits for it in backward at job.py:13; " in found.words


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RankState.STOPPED, "is stopped"),
        (RankState.UNINTERRUPTIBLE, "is in uninterruptible sleep"),
        (RankState.SILENT, "does not answer"),
    ],
)
def test_a_process_that_cannot_answer_comes_first(state: RankState, words: str, job: Path) -> None:
    silent = RankStack(5, 0, "gpu00", state, remark="nfs_wait in read()")
    reading = replace(recorded("sleep", 1, job), rank=3)
    found = judge(world(job, silent, reading), 61)
    assert found.kind is HangKind.PROCESS
    assert found.culprits == (5,)
    assert found.words.startswith(
        f"rank 5 on node 0 (gpu00) {words} (nfs_wait in read()); "
        "62 other ranks wait for it in all_reduce at job.py:13; "
    )


def test_where_all_wait_at_one_place_all_are_doubted(job: Path) -> None:
    found = judge(world(job), 61)
    assert found.kind is HangKind.ALL
    assert found.culprits == tuple(range(64))
    assert found.words == "ranks 0-63 wait in all_reduce at job.py:13; no step for 61 s (step 12)"


def test_a_rank_of_which_nothing_is_known_is_not_taken_for_a_waiting_one() -> None:
    unknown = [RankStack(rank, 0, "h", RankState.UNKNOWN) for rank in range(2)]
    found = judge(unknown, 61)
    assert found.kind is HangKind.RANK
    assert found.words == "ranks 0-1 hang at an unknown location; no step for 61 s"


def test_a_rank_has_moved_when_its_line_or_its_steps_differ(job: Path) -> None:
    before = recorded("sleep", 1, job)
    assert not has_moved(before, before)
    assert has_moved(before, replace(before, steps=13))
    assert has_moved(before, recorded("lock", 1, job))
    # Also another line of a library: a long evaluation is at one line of the script.
    polls = recorded("loader", 1, job)
    other = (Frame("selectors.py", 416, "select", is_library=True), *polls.frames[1:])
    assert has_moved(polls, replace(polls, frames=other))
    silent = replace(polls, state=RankState.SILENT, frames=())
    assert not has_moved(polls, silent)
    stopped = replace(silent, state=RankState.STOPPED)
    assert not has_moved(stopped, replace(stopped, remark="by a debugger"))
    assert has_moved(stopped, replace(stopped, state=RankState.UNINTERRUPTIBLE))


def test_groups_are_told_the_smallest_first(job: Path) -> None:
    groups = group_stacks(world(job, replace(recorded("sleep", 1, job), rank=63)))
    assert [len(group.ranks) for group in groups] == [1, 63]


def test_stopped_ranks_are_told_apart_by_what_has_stopped_them() -> None:
    stopped = [
        RankStack(rank, 0, "h", RankState.STOPPED, remark=remark)
        for rank, remark in enumerate(("by a signal", "by a debugger", "by a signal"))
    ]
    assert [group.ranks for group in group_stacks(stopped)] == [(1,), (0, 2)]


@pytest.mark.parametrize(
    ("frames", "wait"),
    [
        pytest.param(
            (
                Frame("torch/distributed/c10d_logger.py", 81, "wrapper", is_library=True),
                Frame("torch/distributed/distributed_c10d.py", 9, "gather_object", is_library=True),
                Frame("job.py", 13, "train", source="gather()"),
            ),
            "gather_object",
            id="a function around it says nothing",
        ),
        pytest.param(
            (
                Frame("selectors.py", 415, "select", is_library=True),
                Frame("job.py", 13, "train", source="batch = next(batches).cpu()"),
            ),
            None,
            id="it is not yet in what the line says",
        ),
        pytest.param((Frame("job.py", 13, "train", source="loss.item()"),), "item", id="on a GPU"),
        pytest.param(
            (
                Frame("ft_run/training/work_loop.py", 90, "shared_work_piece", is_library=True),
                Frame("ft_run/training/work_loop.py", 50, "_loop", is_library=True),
                Frame("job.py", 13, "train", source="for piece in shared_work('w', 9):"),
            ),
            "shared_work_piece",
            id="for pieces of other ranks",
        ),
    ],
)
def test_a_wait_is_called_by_its_name(frames: tuple[Frame, ...], wait: str | None) -> None:
    assert wait_of(RankStack(0, 0, "h", RankState.ANSWERED, frames)) == wait


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((0,), "0"), ((0, 1, 2, 5), "0-2,5"), ((1, 3, 5, 7, 9), "1,3,5,7,…")],
)
def test_ranks_are_folded(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text
